"""Front matter: YAML between `---` lines or TOML between `+++` lines, at the very start."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

import yaml

_SIZE_MAX = 100_000  # characters; a longer block is no front matter but a document with rules
_YAML: Final = re.compile(
    r"---[ \t]*(?:\r\n?|\n)(?P<body>.*?)^(?:---|\.\.\.)[ \t]*(?:\r\n?|\n|\Z)",
    re.DOTALL | re.MULTILINE,
)
_TOML: Final = re.compile(
    r"\+\+\+[ \t]*(?:\r\n?|\n)(?P<body>.*?)^\+\+\+[ \t]*(?:\r\n?|\n|\Z)", re.DOTALL | re.MULTILINE
)
_PAIR = re.compile(r"^([A-Za-z_][\w .-]*?)[ \t]*[:=][ \t]*(.*?)[ \t]*$", re.MULTILINE)


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


def split_front_matter(text: str) -> tuple[Mapping[Any, Any], str]:
    """The values and the body after them; no values and all of the text where there are none.

    A block that is not valid YAML or TOML but has `name: value` lines is read line by line, as
    text. One that has none is not front matter, and stays.
    """
    head = text[: _SIZE_MAX + 10]
    match = _YAML.match(head) or _TOML.match(head)
    if match is None:
        return {}, text
    values = _read(match["body"], toml=text.startswith("+++"))
    return ({}, text) if values is None else (values, text[match.end() :])


def _read(body: str, *, toml: bool) -> Mapping[Any, Any] | None:
    body = body.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    values: Any
    try:
        values = tomllib.loads(body) if toml else yaml.load(body, Loader=_Loader)  # noqa: S506
    except (tomllib.TOMLDecodeError, yaml.YAMLError, ValueError, TypeError, RecursionError):
        return _lines(body)
    if values is None:
        return {}
    return values if isinstance(values, Mapping) else None


def _lines(body: str) -> Mapping[str, str] | None:
    return {name: value.strip("\"'") for name, value in _PAIR.findall(body)} or None
