"""Front matter: YAML between `---` lines or TOML between `+++` lines, at the very start."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

import yaml

from ragpg.errors import DocumentError

_SIZE_MAX = 100_000  # characters; a longer block is no front matter but a document with rules
_YAML: Final = re.compile(
    r"---[ \t]*(?:\r\n?|\n)(?P<body>.*?)^(?:---|\.\.\.)[ \t]*(?:\r\n?|\n|\Z)",
    re.DOTALL | re.MULTILINE,
)
_TOML: Final = re.compile(
    r"\+\+\+[ \t]*(?:\r\n?|\n)(?P<body>.*?)^\+\+\+[ \t]*(?:\r\n?|\n|\Z)", re.DOTALL | re.MULTILINE
)
# Behind a rule comes an empty line or a sentence; behind the mark of front matter a name.
_PAIR: Final = re.compile(r"(?:#.*\n)*[\w\"'][\w .\"'-]*[:=]")


class _Loader(yaml.SafeLoader):
    """YAML as version 1.2 reads it: `no` and `on` are text, `1:30` is text, `010` is text."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in {"tag:yaml.org,2002:bool", "tag:yaml.org,2002:int"}
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789")
)


def split_front_matter(text: str, *, key: str) -> tuple[Mapping[Any, Any], str]:
    """The values and the body after them; no values and all of the text where there are none.

    Raises DocumentError for a block that begins with a `name:` line and cannot be read: what its
    values were meant to be is not guessed. Another block is no front matter, and stays.
    """
    head = text[: _SIZE_MAX + 10]
    match = _YAML.match(head) or _TOML.match(head)
    if match is None:
        return {}, text
    values = _read(match["body"], toml=text.startswith("+++"), key=key)
    return ({}, text) if values is None else (values, text[match.end() :])


def _read(body: str, *, toml: bool, key: str) -> Mapping[Any, Any] | None:
    body = body.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    values: Any
    try:
        values = tomllib.loads(body) if toml else yaml.load(body, Loader=_Loader)  # noqa: S506
    except (tomllib.TOMLDecodeError, yaml.YAMLError, ValueError, TypeError, RecursionError) as exc:
        if _PAIR.match(body) is None:
            return None
        raise DocumentError(
            f"The front matter of {key} is no valid {'TOML' if toml else 'YAML'} ({_why(exc)});"
            " mend it (quote a value that holds a colon, say), or remove it.",
            reason="front_matter",
        ) from exc
    if values is None:
        return {}
    return values if isinstance(values, Mapping) else None


def _why(exc: Exception) -> str:
    """What is wrong, and in YAML on which line of the file; one line."""
    if isinstance(exc, yaml.MarkedYAMLError) and exc.problem_mark is not None:
        # Counted from 0, below the line that opens the block.
        return f"line {exc.problem_mark.line + 2}: {exc.problem}"
    return " ".join(str(exc).split())
