"""What a caller may pass: a check gives the value back, or raises InputError with a next step."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Literal, cast, get_args, get_origin, get_type_hints

from ragpg.errors import InputError
from ragpg.types import Hits, Recipe

MAX_K = 1000
# A hundred years.
MAX_LOG_DAYS = 36_500
MAX_NAME = 200
MAX_CHUNK_ID = 2**63 - 1
# Largest integer of Postgres, in which the sizes of a recipe are stored.
_MAX_INTEGER = 2_147_483_647
# Least and greatest of a recipe's integers. The greatest vector is that of halfvec with an index.
_RANGES = {
    "dimensions": (1, 4000),
    "context_prompt_version": (0, _MAX_INTEGER),
    "max_tokens": (1, _MAX_INTEGER),
    "overlap_tokens": (0, _MAX_INTEGER),
    "whole_corpus_tokens": (0, _MAX_INTEGER),
}
_LONGEST_SHOWN = 60
# People copy paths and keys from a message, so those of a usual length stand there whole.
_LONGEST_PATH = 300
# Some 1,200 digits; Python writes no decimal of more than 4,300.
_LONGEST_DECIMAL_BITS = 4000


class _Repr(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        return hex(x) if x.bit_length() > _LONGEST_DECIMAL_BITS else super().repr_int(x, level)


# Stops at a depth and a length, where repr of a hostile value recurses or fills memory. It leaves
# out the middle of a text, so that must lie beyond what is shown.
_REPR = _Repr()
_REPR.maxlevel = 4
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 4 * _LONGEST_SHOWN
_REPR.maxdict = _REPR.maxlist = _REPR.maxtuple = _LONGEST_SHOWN // 3
_MAY_BE_EMPTY = frozenset({"glossary"})


def check_process(opened_in: int, why: str) -> None:
    """Raise InputError in another process than the one that opened the client, a fork's child."""
    if opened_in != os.getpid():
        raise InputError(
            f"the client was opened in process {opened_in} and is used in process {os.getpid()},"
            f" {why}; open one in each process, after the fork"
        )


def checked_count(name: str, value: object, *, least: int = 1, greatest: int = MAX_K) -> int:
    """A whole number from `least` to `greatest`; True and 2.0 are none."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= greatest:
        raise InputError(
            f"{name} is {shown(value)}, it must be {least} to {greatest}; give a whole number"
        )
    return value


def checked_text(name: str, value: object) -> str:
    """A str; bytes are none."""
    if not isinstance(value, str):
        raise InputError(f"{name} is {shown(value)}; give it as text (str)")
    return value


def checked_key(value: object) -> str:
    """The key of a document, as text that Postgres can hold."""
    key = checked_text("key", value)
    if not _storable(key):
        raise InputError("the key holds NUL or half a character, so no document has it; mend it")
    return key


def checked_chunk_ids(name: str, values: object) -> list[int]:
    """The numbers of chunks."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InputError(f"{name} is {shown(values)}; give a list of chunk ids")
    return [
        checked_count(f"{name}[{place}]", value, greatest=MAX_CHUNK_ID)
        for place, value in enumerate(values)
    ]


def checked_texts(name: str, values: object) -> list[str]:
    """The texts of a list or another sequence; a single str is no list of them."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise InputError(f"{name} is {shown(values)}; give a list of texts")
    return [checked_text(f"{name}[{place}]", value) for place, value in enumerate(values)]


def checked_name(what: str, value: object) -> str:
    """The name of a tenant, a collection or an alias: 1 to 200 characters, not all blank."""
    name = checked_text(what, value)
    if not name.strip() or len(name) > MAX_NAME or not _storable(name):
        raise InputError(
            f"{what} is {shown(name)} of {len(name)} characters; give 1 to {MAX_NAME} characters"
            " that are not all blank, without NUL and half characters"
        )
    return name


def checked_choice(name: str, value: object, choices: tuple[str, ...]) -> object:
    """One of these texts."""
    if value not in choices:
        raise InputError(f"{name} is {shown(value)}; it may be {', '.join(map(repr, choices))}")
    return value


def checked_hits(value: object) -> Hits:
    """What a search returned."""
    if not isinstance(value, Hits):
        raise InputError(f"hits is {shown(value)}; give the ragpg.Hits of retrieve or search")
    return value


def checked_recipe(recipe: object) -> Recipe:
    """A recipe of which each field has its type and its range.

    Whether the server knows its language, and whether there is a provider for it, is asked
    elsewhere.
    """
    if not isinstance(recipe, Recipe):
        raise InputError(f"the recipe is {shown(recipe)}; give a ragpg.Recipe")
    kinds = get_type_hints(Recipe)
    for each in fields(Recipe):
        _check_field(each.name, kinds[each.name], getattr(recipe, each.name))
    if recipe.overlap_tokens >= recipe.max_tokens:
        raise InputError(
            f"overlap_tokens is {recipe.overlap_tokens} and max_tokens {recipe.max_tokens}; an"
            " overlap is smaller than a chunk, so give both, such as"
            f" Recipe(max_tokens={recipe.max_tokens}, overlap_tokens={recipe.max_tokens // 8})"
        )
    return recipe


def _check_field(name: str, kind: object, value: object) -> None:
    if kind == int | None:
        if value is None:
            return
        kind = int
    if kind is int:
        least, greatest = _RANGES[name]
        checked_count(name, value, least=least, greatest=greatest)
    elif get_origin(kind) is Literal:
        checked_choice(name, value, get_args(kind))
    elif not _storable(checked_text(name, value)):
        raise InputError(f"{name} holds NUL or half a character, which is not stored; remove it")
    elif name not in _MAY_BE_EMPTY and not cast("str", value).strip():
        raise InputError(f"{name} is {shown(value)}; name one, or leave the field at its default")


def _storable(text: str) -> bool:
    """Whether Postgres can hold it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def shown(value: object) -> str:
    """The value as a message shows it: short, and with its type where that is the point."""
    text = shortened(_REPR.repr(value))
    plain = isinstance(value, str | int | float | None)
    return text if plain else f"{type(value).__name__} {text}"


def shortened(text: str) -> str:
    """The text, or its beginning and three dots where it is longer than a message should be."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def without_middle(value: object, longest: int = _LONGEST_PATH) -> str:
    """A path, a key or a sentence as text: beginning, three dots and end if it is too long."""
    text = str(value)
    if len(text) <= longest:
        return text
    end = longest // 3
    return f"{text[: longest - end - 3]}...{text[-end:]}"
