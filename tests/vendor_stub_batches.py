"""Message Batches of the vendor stub: accepted at once, checked and done late, results in any order."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from tests.vendor_stub_claude import ClaudeModel, Result
from tests.vendor_stub_rules import claude_error

PATH = "/v1/messages/batches"
MOST_REQUESTS = 100_000
MOST_BYTES = 256_000_000
LIFE_S = 24 * 3_600
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Items that run together cannot read what each other writes to the cache.
AT_ONCE = 4


@dataclass(slots=True)
class Batch:
    """What was sent, when (of time.time and the clock), and the results once it has ended."""

    id: str
    requests: list[dict[str, Any]]
    headers: dict[str, str]
    created: float
    status: str = "in_progress"
    ended: float | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)


class ClaudeBatches:
    """Batches wait until a test calls `end`; add to the model's `clock_s` to let them expire."""

    def __init__(self, model: ClaudeModel, url: str) -> None:
        self.batches: dict[str, Batch] = {}
        self._model = model
        self._url = url
        self._lock = threading.Lock()

    def end(self, outcomes: Mapping[int, str] | None = None) -> None:
        """Do all that is waiting. `outcomes` are by place: expired, canceled or a type of error."""
        with self._lock:
            for batch in self.batches.values():
                if batch.ended is None:
                    self._end(batch, outcomes or {})

    def answer(
        self, method: str, path: str, query: str, headers: dict[str, str], body: Any
    ) -> Result:
        """The response to a request below /v1/messages/batches."""
        if headers.get("authorization") in {None, "Bearer wrong"}:
            return 401, claude_error("authentication_error", "invalid api key"), {}
        parts = path.removeprefix(PATH).strip("/").split("/")
        with self._lock:
            for batch in self.batches.values():
                if batch.ended is None and self._now() > batch.created + LIFE_S:
                    self._end(batch, dict.fromkeys(range(len(batch.requests)), "expired"))
            if parts == [""]:
                if method == "POST":
                    return self._create(headers, body)
                return self._list({name: each[0] for name, each in parse_qs(query).items()})
            known = self.batches.get(parts[0])
            if known is None:
                return _not_found(parts[0])
            return self._one(method, known, parts[1:])

    def _one(self, method: str, batch: Batch, rest: list[str]) -> Result:
        if rest == ["cancel"] and method == "POST":
            batch.status = "canceling" if batch.ended is None else batch.status
        elif rest == ["results"] and method == "GET":
            if batch.ended is None:
                return _not_found(f"results of {batch.id}, which has not ended")
            lines = "".join(json.dumps(line) + "\n" for line in batch.lines)
            return 200, lines.encode(), {"content-type": "application/binary"}
        elif not rest and method == "DELETE":
            if batch.ended is None:
                return 400, claude_error("invalid_request_error", "the batch has not ended"), {}
            del self.batches[batch.id]
            return 200, {"id": batch.id, "type": "message_batch_deleted"}, {}
        elif rest or method != "GET":
            return _not_found("/".join(rest))
        return 200, self._shown(batch), {}

    def _create(self, headers: dict[str, str], body: dict[str, Any]) -> Result:
        requests = body["requests"]
        ids = [each["custom_id"] for each in requests]
        if int(headers["content-length"]) > MOST_BYTES:
            return 413, claude_error("request_too_large", "over 256 MB"), {}
        if not 1 <= len(requests) <= MOST_REQUESTS:
            return 400, claude_error("invalid_request_error", "requests: 1 to 100,000 items"), {}
        if len(set(ids)) < len(ids):
            return 400, claude_error("invalid_request_error", "custom_id: must be unique"), {}
        wrong = next((each for each in ids if not CUSTOM_ID.fullmatch(each)), None)
        if wrong is not None:
            message = f"requests.custom_id: {wrong!r} should match ^[a-zA-Z0-9_-]{{1,64}}$"
            return 400, claude_error("invalid_request_error", message), {}
        name = f"msgbatch_{len(self.batches) + 1:03}"
        batch = Batch(id=name, requests=requests, headers=headers, created=self._now())
        self.batches[name] = batch
        return 200, self._shown(batch), {}

    def _list(self, query: dict[str, str]) -> Result:
        newest_first = list(reversed(self.batches.values()))
        names = [batch.id for batch in newest_first]
        if "after_id" in query:
            newest_first = newest_first[names.index(query["after_id"]) + 1 :]
        if "before_id" in query:
            newest_first = newest_first[: names.index(query["before_id"])]
        limit = int(query.get("limit", "20"))
        page = newest_first[:limit]
        return (
            200,
            {
                "data": [self._shown(batch) for batch in page],
                "has_more": len(newest_first) > limit,
                "first_id": page[0].id if page else None,
                "last_id": page[-1].id if page else None,
            },
            {},
        )

    def _shown(self, batch: Batch) -> dict[str, Any]:
        kinds = [line["result"]["type"] for line in batch.lines]
        counts = {
            kind: kinds.count(kind) for kind in ("succeeded", "errored", "canceled", "expired")
        }
        # Counts say nothing before the whole batch has ended.
        counts["processing"] = len(batch.requests) if batch.ended is None else 0
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": batch.status,
            "request_counts": counts,
            "created_at": _iso(batch.created),
            "expires_at": _iso(batch.created + LIFE_S),
            "ended_at": _iso(batch.ended) if batch.ended else None,
            "cancel_initiated_at": None,
            "archived_at": None,
            "results_url": f"{self._url}{PATH}/{batch.id}/results" if batch.ended else None,
        }

    def _end(self, batch: Batch, outcomes: Mapping[int, str]) -> None:
        everything = dict.fromkeys(range(len(batch.requests)), "canceled")
        scripted = everything if batch.status == "canceling" else outcomes
        places = range(len(batch.requests))
        for first in range(0, len(places), AT_ONCE):
            group = [(place, batch.requests[place]) for place in places[first : first + AT_ONCE]]
            started = [
                (request["custom_id"], self._start(batch, request["params"], scripted.get(place)))
                for place, request in group
            ]
            batch.lines += [{"custom_id": name, "result": begun()} for name, begun in started]
        random.Random(len(batch.lines)).shuffle(batch.lines)  # noqa: S311
        batch.status, batch.ended = "ended", self._now()

    def _start(self, batch: Batch, params: dict[str, Any], scripted: str | None) -> Any:
        if scripted in {"expired", "canceled"}:
            return lambda: {"type": scripted}
        if scripted is not None:
            return lambda: {"type": "errored", "error": claude_error(scripted, "scripted")}
        if params.get("stream") or "speed" in params or params.get("max_tokens", 0) < 1:
            error = claude_error("invalid_request_error", "not permitted in a batch")
            return lambda: {"type": "errored", "error": error}
        settle = self._model.arrive(batch.headers, params, "/v1/messages", now=time.monotonic())

        def finish() -> dict[str, Any]:
            status, answer, _ = settle()
            if status != 200:
                return {"type": "errored", "error": answer}
            usage = {**answer["usage"], "service_tier": "batch"}
            return {"type": "succeeded", "message": {**answer, "usage": usage}}

        return finish

    def _now(self) -> float:
        return time.time() + self._model.clock_s


def _not_found(what: str) -> Result:
    return 404, claude_error("not_found_error", f"there is no {what}"), {}


def _iso(moment: float) -> str:
    return dt.datetime.fromtimestamp(moment, dt.UTC).isoformat().replace("+00:00", "Z")
