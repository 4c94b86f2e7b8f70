"""The Anthropic part of the vendor stub: prompt cache, answers, streams."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.vendor_stub_rules import claude_error, refusal

MINIMUM_TOKENS = {
    "claude-haiku-5-5": 512,
    "claude-sonnet-5-5": 512,
    "claude-opus-5-5": 512,
    "claude-opus-4-7": 2_048,
    "claude-haiku-4-5": 4_096,
}
CONTEXT_TOKENS = {"claude-haiku-4-5": 200_000}
LOOKBACK = 20
WORD = re.compile(r"\w+|[^\w\s]")
LITTLE_WORDS = frozenset(
    re.findall(r"\w+", "a an and are at be by do does for how in is it long of on the to was what")
)
Result = tuple[int, Any, dict[str, str]]


def sse(*events: dict[str, Any]) -> bytes:
    """The events as a body of text/event-stream."""
    return "".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events
    ).encode()


def tokens_of(model: str, text: str) -> int:
    """Words and punctuation marks, and 30 % more for the tokenizer of the newer models."""
    return round(len(WORD.findall(text)) * (1.0 if model == "claude-haiku-4-5" else 1.3))


@dataclass(slots=True)
class _Entry:
    tokens: int
    visible: bool
    ttl_s: float
    expires: float


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of the prefix: what identifies everything up to it, its tokens, its cache mark."""

    key: str
    tokens: int
    ttl: str | None


class ClaudeModel:
    """Answers of /v1/messages; add to `clock_s` to let cache entries expire."""

    def __init__(self) -> None:
        self.clock_s = 0.0
        self._cache: dict[str, _Entry] = {}
        self._lock = threading.Lock()

    def arrive(
        self, headers: dict[str, str], body: dict[str, Any], path: str, *, now: float
    ) -> Callable[[], Result]:
        """Look the prefix up as the request arrives; the returned call begins the response.

        Only then can other requests read what this one writes.
        """
        refused = refusal(headers, body, counting=path.endswith("count_tokens"))
        if path not in {"/v1/messages", "/v1/messages/count_tokens"}:
            refused = 404, claude_error("not_found_error", f"no route {path}")
        if refused is not None:
            status, error = refused
            return lambda: (status, error, {})
        blocks = list(_blocks(body))
        total = sum(block.tokens for block in blocks)
        most = CONTEXT_TOKENS.get(body["model"], 1_000_000)
        if total > most:
            message = f"prompt is too long: {total} tokens > {most} maximum"
            return lambda: (400, claude_error("invalid_request_error", message), {})
        if path.endswith("count_tokens"):
            return lambda: (200, {"input_tokens": total}, {})
        with self._lock:
            usage, written = self._look_up(body["model"], blocks, now + self.clock_s)

        def settle() -> Result:
            with self._lock:
                for entry in written:
                    entry.visible = True
            return _respond(body, usage)

        return settle

    def _look_up(
        self, model: str, blocks: list[_Block], now: float
    ) -> tuple[dict[str, Any], list[_Entry]]:
        upto = [sum(block.tokens for block in blocks[: i + 1]) for i in range(len(blocks))]
        marks = [i for i, block in enumerate(blocks) if block.ttl is not None]
        hit = next((p for mark in reversed(marks) if (p := self._hit(blocks, mark, now)) >= 0), -1)
        read = upto[hit] if hit >= 0 else 0
        covered, written, by_ttl = read, [], {"5m": 0, "1h": 0}
        for mark in [mark for mark in marks if mark > hit]:
            if upto[mark] < MINIMUM_TOKENS.get(model, 1_024):
                continue
            ttl = blocks[mark].ttl or "5m"
            ttl_s = 3_600.0 if ttl == "1h" else 300.0
            by_ttl[ttl] += upto[mark] - covered
            covered = upto[mark]
            entry = _Entry(upto[mark], visible=False, ttl_s=ttl_s, expires=now + ttl_s)
            known = self._cache.get(blocks[mark].key)
            if known is None or known.expires <= now:
                self._cache[blocks[mark].key] = entry
            else:
                entry = known
            written.append(entry)
        usage = {
            "input_tokens": upto[-1] - covered,
            "cache_creation_input_tokens": by_ttl["5m"] + by_ttl["1h"],
            "cache_read_input_tokens": read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": by_ttl["5m"],
                "ephemeral_1h_input_tokens": by_ttl["1h"],
            },
            "service_tier": "standard",
            "inference_geo": "global",
        }
        return usage, written

    def _hit(self, blocks: list[_Block], mark: int, now: float) -> int:
        """The last position at or before the mark that can be read, and -1 if none can."""
        for position in range(mark, max(-1, mark - LOOKBACK), -1):
            entry = self._cache.get(blocks[position].key)
            if entry is not None and entry.visible and entry.expires > now:
                entry.expires = now + entry.ttl_s
                return position
        return -1


def _blocks(body: dict[str, Any]) -> Iterator[_Block]:
    """The blocks in the order of the prefix: tools, system, messages."""
    shared = {
        name: body.get(name) for name in ("model", "thinking", "tool_choice", "output_config")
    }
    digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode())
    system = body.get("system") or []
    flat: list[dict[str, Any]] = [*body.get("tools", [])]
    flat += [{"type": "text", "text": system}] if isinstance(system, str) else system
    for message in body["messages"]:
        content = message["content"]
        inner = [{"type": "text", "text": content}] if isinstance(content, str) else content
        flat += [{**block, "role": message["role"]} for block in inner]
    for place, block in enumerate(flat):
        mark = block.get("cache_control")
        if mark is None and place == len(flat) - 1:
            mark = body.get("cache_control")
        plain = {name: value for name, value in block.items() if name != "cache_control"}
        digest.update(json.dumps(plain, sort_keys=True).encode())
        yield _Block(
            key=digest.hexdigest(),
            tokens=tokens_of(body["model"], " ".join(_strings(plain))),
            ttl=mark.get("ttl", "5m") if mark else None,
        )


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in {"type", "role"}:
                yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _respond(body: dict[str, Any], usage: dict[str, Any]) -> Result:
    content, stop = _content(body)
    said = " ".join(block["text"] for block in content if block["type"] == "text")
    usage = {**usage, "output_tokens": tokens_of(body["model"], said)}
    if usage["output_tokens"] > body["max_tokens"]:
        stop = "max_tokens"
    message = {
        "id": "msg_01Stub",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "stop_details": None,
        "usage": usage,
    }
    if body.get("stream"):
        return 200, sse(*events(message)), {"content-type": "text/event-stream; charset=utf-8"}
    return 200, message, {}


def events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The message as the events of a stream, text in pieces of a few words."""
    start_usage = {**message["usage"], "output_tokens": 1}
    start = {**message, "content": [], "stop_reason": None, "usage": start_usage}
    yield {"type": "message_start", "message": start}
    for index, block in enumerate(message["content"]):
        empty = {**block, "text": ""} if block["type"] == "text" else block
        empty = {**empty, "citations": []} if "citations" in block else empty
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        if index == 0:
            yield {"type": "ping"}
        deltas: list[dict[str, Any]] = [
            {"type": "text_delta", "text": piece}
            for piece in re.findall(r"(?:\S+\s*){1,3}|\s+", block.get("text", ""))
        ]
        deltas[1:1] = [
            {"type": "citations_delta", "citation": each} for each in block.get("citations", [])
        ]
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {
        "type": "message_delta",
        "delta": {
            "stop_reason": message["stop_reason"],
            "stop_sequence": None,
            "stop_details": message["stop_details"],
        },
        "usage": {"output_tokens": message["usage"]["output_tokens"]},
    }
    yield {"type": "message_stop"}


def _content(body: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    if body["max_tokens"] == 0:
        return [], "max_tokens"
    last = body["messages"][-1]["content"]
    last = [{"type": "text", "text": last}] if isinstance(last, str) else last
    thinking = [{"type": "thinking", "thinking": "", "signature": "Eo-stub"}]
    results = [block for block in last if block["type"] == "search_result"]
    if results:
        return [*thinking, *_cited(body, last, results)], "end_turn"
    text = " ".join(block.get("text", "") for block in last)
    return [*thinking, {"type": "text", "text": _context(text)}], "end_turn"


def _context(prompt: str) -> str:
    """A context as the prompt of contextual retrieval asks for, quoting the first heading."""
    document = re.search(r"<document>\n(.*?)\n</document>", prompt, re.DOTALL)
    chunk = re.search(r"<chunk>\n(.*?)\n</chunk>", prompt, re.DOTALL)
    if document is None or chunk is None:
        return "There is nothing to situate."
    heading = re.search(r"^#+\s+(.+)$", document[1], re.MULTILINE)
    subject = heading[1] if heading else " ".join(document[1].split()[:6])
    return f"From {subject}: on {' '.join(chunk[1].split()[:6])}."


def _cited(
    body: dict[str, Any], last: list[dict[str, Any]], results: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The block with the most words of the question, quoted and cited; or the agreed sentence."""
    question = _words(next(b["text"] for b in reversed(last) if b["type"] == "text"))
    options = [
        (len(question & _words(block["text"])), -i, -j, result, block["text"])
        for i, result in enumerate(results)
        for j, block in enumerate(result["content"])
    ]
    shared, i, j, result, text = max(options, key=lambda option: option[:3])
    if shared < 2:
        agreed = re.search(r'"([^"]+)"', " ".join(_strings(body.get("system", ""))))
        return [{"type": "text", "text": agreed[1] if agreed else "I do not know."}]
    citation = {
        "type": "search_result_location",
        "cited_text": text,
        "source": result["source"],
        "title": result["title"],
        "search_result_index": -i,
        "start_block_index": -j,
        "end_block_index": -j + 1,
    }
    return [
        {"type": "text", "text": "The documents say: "},
        {"type": "text", "text": text.strip(), "citations": [citation]},
        {"type": "text", "text": " That is all."},
    ]


def _words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"\w+", text)} - LITTLE_WORDS
