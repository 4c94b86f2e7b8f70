"""Front matter: YAML between `---` lines or TOML between `+++` lines, at the very start."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError

from ragpg.errors import DocumentError
from ragpg.inputs import shortened

_SIZE_MAX = 100_000  # characters; a longer block is no front matter but a document with rules
_YAML: Final = re.compile(
    r"---[ \t]*(?:\r\n?|\n)(?P<body>.*?)^(?:---|\.\.\.)[ \t]*(?:\r\n?|\n|\Z)",
    re.DOTALL | re.MULTILINE,
)
_TOML: Final = re.compile(
    r"\+\+\+[ \t]*(?:\r\n?|\n)(?P<body>.*?)^\+\+\+[ \t]*(?:\r\n?|\n|\Z)", re.DOTALL | re.MULTILINE
)
# How tomllib says where; it counts from 1, below the line that opens the block.
_TOML_PLACE: Final = re.compile(r"(?P<problem>.*) \(at line (?P<line>\d+), column \d+\)")
# Behind a rule comes an empty line or a sentence; behind the mark of front matter a name.
_PAIR: Final = re.compile(r"(?:#.*\n)*[\w\"'][\w .\"'-]*[:=]")


class _Loader(yaml.SafeLoader):
    """YAML as version 1.2 reads it: `no` and `on` are text, `1:30` is text, `010` is text.

    A name that stands twice in a mapping is an error, and each error has its line.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for name in [name for name, _ in node.value if isinstance(name, yaml.ScalarNode)]:
            if name.value in seen:  # as text: in metadata 1 and "1" are one name
                problem = f"{shortened(name.value)} stands here a second time"
                raise ConstructorError(None, None, problem, name.start_mark)
            seen.add(name.value)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        try:
            return super().construct_object(node, deep)
        except ValueError as exc:
            raise ConstructorError(None, None, str(exc), node.start_mark) from exc
        except (AttributeError, LookupError) as exc:
            # How PyYAML fails on `!!bool maybe`.
            kind = node.tag.replace("tag:yaml.org,2002:", "!!")
            problem = f"no value of the type {kind}"
            raise ConstructorError(None, None, problem, node.start_mark) from exc


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
    """What is wrong, and on which line of the file where that is known; one line."""
    if isinstance(exc, yaml.MarkedYAMLError) and exc.problem_mark is not None:
        # Counted from 0, below the line that opens the block.
        return f"line {exc.problem_mark.line + 2}: {exc.problem}"
    told = " ".join(str(exc).split())
    place = _TOML_PLACE.fullmatch(told)
    return told if place is None else f"line {int(place['line']) + 1}: {place['problem']}"
