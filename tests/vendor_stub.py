"""A loopback server that answers as the vendors do: Anthropic, Voyage and Cohere.

It checks requests by the rules of the current API versions, counts tokens, keeps a prompt cache,
and answers sensibly, so that a test can follow a text from a document to a cited answer. `push`
puts scripted replies in front of it: a status, a reset, a page of a proxy.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import sqrt
from typing import Any, Self

from tests.vendor_stub_batches import PATH as BATCHES
from tests.vendor_stub_batches import ClaudeBatches
from tests.vendor_stub_claude import ClaudeModel
from tests.vendor_stub_rules import claude_error

WRONG_KEY = "wrong"
VOYAGE_REQUEST_TOKENS = {"voyage-4": 320_000, "voyage-4-lite": 1_000_000, "voyage-3.5": 320_000}
VOYAGE_TEXT_TOKENS = 32_000
WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Reply:
    """A scripted response; `body` is sent as JSON unless it is bytes."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection breaks after `after` bytes of a response; 0 means before any."""

    after: bytes = b""


@dataclass(frozen=True, slots=True)
class Stall:
    """A response that begins with these bytes of a stream and then stays silent for a while."""

    after: bytes
    seconds: float = 1.0


@dataclass(slots=True)
class Call:
    """One request as it arrived, and what went back.

    Times are of time.monotonic; `ended` is when the response is about to be sent.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    began: float
    query: str = ""
    ended: float = 0.0
    status: int = 0
    answer: Any = None


Scripted = Reply | Reset | Stall | Callable[[Any], Reply]


def voyage_error(status: int, detail: str) -> Reply:
    return Reply(status, {"detail": detail})


def words(text: str) -> list[str]:
    return [word.lower() for word in re.findall(r"\w+", text)]


def count(text: str) -> int:
    """Tokens as the stub counts them: words and punctuation marks."""
    return len(WORD.findall(text))


class VendorStub:
    """All three vendors on one port. `latency_s` delays each response's beginning.

    `log` holds the calls in order of arrival; `in_flight_most` is the most at one time. With
    `gather` set, no response begins before that many requests have been there together.
    """

    def __init__(self) -> None:
        self.log: list[Call] = []
        self.latency_s = 0.0
        self.in_flight_most = 0
        self.gather = 0
        self.claude = ClaudeModel()
        self.change: Callable[[Call, Any], Any] | None = None
        self._in_flight = 0
        self._waiting = 0
        self._waiting_most = 0
        self._script: list[Scripted] = []
        self._lock = threading.Condition()
        handler = type("StubHandler", (_Handler,), {"stub": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.anthropic_url = self.url
        self.batches = ClaudeBatches(self.claude, self.url)
        self.voyage_url = f"{self.url}/voyage/v1"
        self.cohere_url = f"{self.url}/cohere"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def push(self, *replies: Scripted) -> None:
        """The next requests get these instead of a real answer, whatever they ask."""
        self._script.extend(replies)

    def calls(self, path: str) -> list[Call]:
        """The calls whose path ends so."""
        return [call for call in self.log if call.path.endswith(path)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, call: Call) -> Scripted | None:
        with self._lock:
            self.log.append(call)
            self._in_flight += 1
            self.in_flight_most = max(self.in_flight_most, self._in_flight)
            return self._script.pop(0) if self._script else None

    def end(self, call: Call) -> None:
        with self._lock:
            self._in_flight -= 1
            call.ended = time.monotonic()

    def answer(self, call: Call) -> Reply:
        """What the vendor of this path says; with `change`, what that makes of its body."""
        vendor = "claude" if call.path.startswith("/v1/") else call.path.split("/")[1]
        if call.path.startswith(BATCHES):
            self._wait()
            status, body, headers = self.batches.answer(
                call.method, call.path, call.query, call.headers, call.body
            )
            reply = Reply(status, body, headers)
        elif vendor == "claude":
            # The cache must see the request now and the response's beginning later.
            settle = self.claude.arrive(call.headers, call.body, call.path, now=call.began)
            self._wait()
            status, body, headers = settle()
            reply = Reply(status, body, headers)
        else:
            self._wait()
            reply = _ROUTES.get(call.path, _unknown)(call)
        if self.change is not None and reply.status == 200:
            return Reply(reply.status, self.change(call, reply.body), reply.headers)
        return reply

    def _wait(self) -> None:
        time.sleep(self.latency_s)
        with self._lock:
            self._waiting += 1
            self._waiting_most = max(self._waiting_most, self._waiting)
            self._lock.notify_all()
            # Five seconds and not for ever: then the test fails instead of hanging.
            self._lock.wait_for(lambda: self._waiting_most >= self.gather, timeout=5)
            self._waiting -= 1


def _unknown(call: Call) -> Reply:
    return Reply(404, {"detail": f"no route {call.path}", "message": f"no route {call.path}"})


def _embeddings(call: Call) -> Reply:
    body = call.body
    refused = _voyage_refusal(call)
    if refused is not None:
        return refused
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    if len(texts) > 1_000:
        return voyage_error(400, f"The batch size limit is 1000. Your batch size is {len(texts)}.")
    blank = next((i for i, text in enumerate(texts) if not text.strip("\u200b \n\t")), None)
    if blank is not None:
        return voyage_error(400, f"Input at {blank} cannot be an empty string.")
    tokens = [count(text) for text in texts]
    if not body["truncation"] and max(tokens) > VOYAGE_TEXT_TOKENS:
        place = tokens.index(max(tokens))
        return voyage_error(
            400, f"Input at {place} has {max(tokens)} tokens, over the limit of the context length."
        )
    limit = VOYAGE_REQUEST_TOKENS.get(body["model"], 120_000)
    if sum(tokens) > limit:
        return voyage_error(
            400,
            f"Request to model '{body['model']}' failed. The max allowed tokens per submitted "
            f"batch is {limit}. Your batch has {sum(tokens)} tokens after truncation.",
        )
    entries = [_entry(body, text, place) for place, text in enumerate(texts)]
    return Reply(
        200,
        {
            "object": "list",
            "data": entries,
            "model": body["model"],
            "usage": {"total_tokens": sum(tokens)},
        },
    )


def _contextualized(call: Call) -> Reply:
    body = call.body
    refused = _voyage_refusal(call)
    if refused is not None:
        return refused
    documents = [[each] if isinstance(each, str) else each for each in body["inputs"]]
    tokens = [sum(count(chunk) for chunk in chunks) for chunks in documents]
    if len(documents) > 1_000 or sum(tokens) > VOYAGE_TEXT_TOKENS:
        return voyage_error(
            400, f"The inputs have {sum(tokens)} tokens; the limit is 32000 tokens."
        )
    lists = [
        {
            "object": "list",
            "index": i,
            # A chunk's vector leans to its document: the mark of a contextualized embedding.
            "data": [
                _entry(body, f"{chunk} {chunk} {chunk} {' '.join(chunks)}", j)
                for j, chunk in enumerate(chunks)
            ],
        }
        for i, chunks in enumerate(documents)
    ]
    answer = {"object": "list", "data": lists, "model": body["model"]}
    return Reply(200, {**answer, "usage": {"total_tokens": sum(tokens)}})


def _voyage_rerank(call: Call) -> Reply:
    body = call.body
    refused = _voyage_refusal(call)
    if refused is not None:
        return refused
    if not body["documents"] or len(body["documents"]) > 1_000:
        return voyage_error(400, "The number of documents must be between 1 and 1000.")
    scores = overlap_scores(body["query"], body["documents"])[: body.get("top_k") or None]
    tokens = count(body["query"]) * len(body["documents"]) + sum(map(count, body["documents"]))
    return Reply(
        200,
        {
            "object": "list",
            "data": [{"index": i, "relevance_score": score} for i, score in scores],
            "model": body["model"],
            "usage": {"total_tokens": tokens},
        },
    )


def _cohere_rerank(call: Call) -> Reply:
    body = call.body
    if _bearer(call) == WRONG_KEY:
        return Reply(401, {"message": f"invalid api token {WRONG_KEY}"})
    documents = body["documents"]
    if not documents or len(documents) > 10_000:
        return Reply(400, {"message": "invalid request: between 1 and 10000 documents"})
    if any(not document.strip() for document in documents):
        return Reply(400, {"message": "invalid request: all documents must be non-empty strings"})
    scores = overlap_scores(body["query"], documents)[: body.get("top_n")]
    return Reply(
        200,
        {
            "id": "07734bd2-stub",
            "results": [{"index": i, "relevance_score": score} for i, score in scores],
            "meta": {
                "api_version": {"version": "2", "is_experimental": False},
                "billed_units": {"search_units": (len(documents) + 99) // 100},
            },
        },
    )


_ROUTES: dict[str, Callable[[Call], Reply]] = {
    "/voyage/v1/embeddings": _embeddings,
    "/voyage/v1/contextualizedembeddings": _contextualized,
    "/voyage/v1/rerank": _voyage_rerank,
    "/cohere/v2/rerank": _cohere_rerank,
}


def _voyage_refusal(call: Call) -> Reply | None:
    if _bearer(call) == WRONG_KEY:
        return voyage_error(401, f"Provided API key {WRONG_KEY} is invalid.")
    dimension = call.body.get("output_dimension")
    if dimension not in {None, 8, 256, 512, 1024, 2048}:  # 8 is the stub's own, for short tests
        return voyage_error(400, f"The output_dimension {dimension} is not supported.")
    return None


def _bearer(call: Call) -> str:
    return call.headers.get("authorization", "").removeprefix("Bearer ")


def _entry(body: dict[str, Any], text: str, index: int) -> dict[str, Any]:
    vector = bag_of_words(text, body.get("output_dimension") or 1024)
    if body.get("output_dtype") == "int8":
        packed = struct.pack(f"<{len(vector)}b", *(round(127 * each) for each in vector))
        values: list[Any] = [round(127 * each) for each in vector]
    else:
        packed = struct.pack(f"<{len(vector)}f", *vector)
        values = vector
    encoded = base64.b64encode(packed).decode() if body.get("encoding_format") else values
    return {"object": "embedding", "embedding": encoded, "index": index}


def bag_of_words(text: str, dimensions: int) -> list[float]:
    """A unit vector by hashed words: the cosine of two texts grows with the words they share."""
    vector = [0.0] * dimensions
    for word in words(text) or [text]:
        vector[zlib.crc32(word.encode()) % dimensions] += 1.0
    length = sqrt(sum(each * each for each in vector))
    return [each / length for each in vector]


def overlap_scores(query: str, texts: Iterable[str]) -> list[tuple[int, float]]:
    """Index and score of each text, best first; the score is the share of the query's words."""
    wanted = set(words(query))
    scores = [
        (i, round(0.01 + 0.98 * len(wanted & set(words(text))) / max(1, len(wanted)), 6))
        for i, text in enumerate(texts)
    ]
    return sorted(scores, key=lambda pair: (-pair[1], pair[0]))


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Nothing: a client that was killed resets its connections."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: VendorStub

    def log_message(self, *_: Any) -> None:
        """Nothing: the log is `stub.log`."""

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        call = Call(
            method=self.command,
            path=self.path.partition("?")[0],
            query=self.path.partition("?")[2],
            headers={
                **{name.lower(): value for name, value in self.headers.items()},
                # Shows which calls came over one connection.
                "x-stub-port": str(self.client_address[1]),
            },
            body=json.loads(raw) if raw else None,
            began=time.monotonic(),
        )
        scripted = self.stub.begin(call)
        if isinstance(scripted, Reset | Stall):
            self.stub.end(call)
            self._break_off(scripted)
            return
        if scripted is None:
            reply = self.stub.answer(call)
        else:
            time.sleep(self.stub.latency_s)
            reply = scripted if isinstance(scripted, Reply) else scripted(call.body)
        call.status, call.answer = reply.status, reply.body
        # Before it is sent: the client's next request may arrive before this thread goes on.
        self.stub.end(call)
        self._send(reply)

    def do_GET(self) -> None:
        if self.path.startswith(BATCHES):
            self.do_POST()
        else:
            self._send(Reply(404, claude_error("not_found_error", f"no route {self.path}")))

    def do_DELETE(self) -> None:
        self.do_GET()

    def _send(self, reply: Reply) -> None:
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        headers = {"content-type": "application/json", "request-id": "req_stub", **reply.headers}
        # A client that gave up, as after a timeout, has closed the connection.
        with contextlib.suppress(ConnectionError):
            self.send_response(reply.status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _break_off(self, broken: Reset | Stall) -> None:
        if broken.after:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(broken.after), broken.after))
            self.wfile.flush()
        else:
            # SO_LINGER of zero seconds makes close() send a reset instead of an end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if isinstance(broken, Stall):
            time.sleep(broken.seconds)
        self.close_connection = True
