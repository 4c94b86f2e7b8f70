"""What Anthropic's API refuses with 401 or 400, by the rules of version 2026-10-21."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

Refusal = tuple[int, dict[str, Any]]

SAMPLING = ("temperature", "top_p", "top_k")
NO_FORCED_TOOLS = ("claude-sonnet-5-5", "claude-opus-5-5", "claude-fable-5-1")
BUDGET_THINKING = ("claude-haiku-4-5", "claude-sonnet-4-5", "claude-opus-4-5")
NO_EFFORT = ("claude-haiku-4-5", "claude-sonnet-4-5")
PREFILL = BUDGET_THINKING


def claude_error(kind: str, message: str) -> dict[str, Any]:
    error = {"type": kind, "message": message}
    return {"type": "error", "error": error, "request_id": "req_stub"}


def refusal(headers: dict[str, str], body: Any, *, counting: bool) -> Refusal | None:
    """The status and error of a request that breaks a rule, None for one that does not."""
    key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
    if key in {"", "wrong"}:
        return 401, claude_error("authentication_error", f"invalid api key {key}")
    if "anthropic-version" not in headers:
        return _bad("anthropic-version: header is required")
    required = ("model", "messages") if counting else ("model", "messages", "max_tokens")
    for name in required:
        if name not in body:
            return _bad(f"{name}: Field required")
    for rule in (_parameters, _warming, _blocks, _cache_marks, _citations, _tools):
        message = rule(body)
        if message is not None:
            return _bad(message)
    return None


def _bad(message: str) -> Refusal:
    return 400, claude_error("invalid_request_error", message)


def _parameters(body: dict[str, Any]) -> str | None:
    model = body["model"]
    for name in SAMPLING:
        if name in body:
            return f"{name}: Extra inputs are not permitted"
    if body["messages"][-1]["role"] == "assistant" and not model.startswith(PREFILL):
        return "This model does not support assistant message prefill."
    thinking = (body.get("thinking") or {}).get("type")
    if thinking == "enabled" and not model.startswith(BUDGET_THINKING):
        return "thinking.type: enabled is not supported by this model"
    if (body.get("output_config") or {}).get("effort") and model.startswith(NO_EFFORT):
        return "output_config.effort is not supported by this model"
    forced = (body.get("tool_choice") or {}).get("type") in {"any", "tool"}
    if forced and model.startswith(NO_FORCED_TOOLS):
        return "tool_choice: this model does not support forced tool use"
    return None


def _warming(body: dict[str, Any]) -> str | None:
    forced = (body.get("tool_choice") or {}).get("type") in {"any", "tool"}
    thinking = (body.get("thinking") or {}).get("type") == "enabled"
    if body.get("max_tokens") == 0 and (body.get("stream") or forced or thinking):
        return "max_tokens: 0 is not permitted with stream, forced tools or thinking"
    return None


def _blocks(body: dict[str, Any]) -> str | None:
    for role, block in _all_blocks(body):
        kind = block["type"]
        if kind == "text" and not block["text"].strip():
            return "messages: text content blocks must contain non-whitespace text"
        if role == "assistant" and kind in {"document", "search_result"}:
            return f"messages: {kind} blocks are not permitted in assistant messages"
        if role == "user" and kind == "text" and block.get("citations"):
            return "messages: text.citations: not permitted in user messages"
        if kind == "search_result":
            if not all(block.get(name) for name in ("source", "title", "content")):
                return "search_result: source, title and content are required"
            for text in block["content"]:
                if text["type"] != "text" or not text["text"].strip() or text.get("citations"):
                    return "search_result.content: non-empty text blocks only"
    return None


def _cache_marks(body: dict[str, Any]) -> str | None:
    marks = re.findall(r'"cache_control": (\{[^}]*\})', json.dumps(body))
    if len(marks) > 4:
        return f"A maximum of 4 blocks with cache_control may be provided. Found {len(marks)}."
    lives = [json.loads(mark).get("ttl", "5m") for mark in marks]
    if any(life not in {"5m", "1h"} for life in lives):
        return "cache_control.ttl: must be 5m or 1h"
    if lives != sorted(lives):  # "1h" sorts before "5m"
        return "cache_control: a ttl of 1h must not come after a ttl of 5m"
    return None


def _citations(body: dict[str, Any]) -> str | None:
    flags = {
        bool((block.get("citations") or {}).get("enabled"))
        for _, block in _all_blocks(body)
        if block["type"] in {"search_result", "document"}
    }
    if len(flags) > 1:
        return "citations.enabled must be the same for all search results"
    if flags == {True} and (body.get("output_config") or {}).get("format"):
        return "output_config.format is not compatible with citations"
    return None


def _tools(body: dict[str, Any]) -> str | None:
    messages = body["messages"]
    for place, message in enumerate(messages):
        asked = {b["id"] for b in _content(message) if b["type"] == "tool_use"}
        following = _content(messages[place + 1]) if place + 1 < len(messages) else []
        answered = {b["tool_use_id"] for b in following if b["type"] == "tool_result"}
        if asked - answered:
            return "messages: tool_use ids were found without tool_result blocks right after"
        for block in _content(message):
            inner = block.get("content") if block["type"] == "tool_result" else None
            kinds = {b["type"] for b in inner} if isinstance(inner, list) else set()
            if "search_result" in kinds and len(kinds) > 1:
                return "tool_result: search_result blocks cannot be mixed with other blocks"
    return None


def _all_blocks(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every block with the role of its message; a tool result's inner blocks count as user's."""
    for message in body["messages"]:
        for block in _content(message):
            yield message["role"], block
            inner = block.get("content") if block["type"] == "tool_result" else None
            if isinstance(inner, list):
                yield from (("user", each) for each in inner)


def _content(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
