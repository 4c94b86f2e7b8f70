"""Contexts by rule: where a chunk stands and what it defines, without a model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import anyio.lowlevel

from ragpg.providers.sentences import FRONT_MATTER
from ragpg.types import WrittenContext

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from ragpg.types import Chunk, Document

_SUBJECT_NAMES = 4
_CHUNK_NAMES = 8
_SENTENCE_CHARS = 200
# Prose begins within so many lines, or the document has none to speak of.
_SENTENCE_LINES = 60
_LINE_CHARS = 1000

_MODIFIERS = (
    r"(?:(?:pub(?:\([^)\n]*\))?|export|default|public|private|protected|internal|static|final"
    r"|abstract|async|unsafe|const|inline|extern(?: \"C\")?|virtual|override|data|sealed|declare)"
    r"[ \t]+)*"
)
_DEFINITION = re.compile(
    "|".join(
        (
            # Python, Ruby, Rust, JavaScript, PHP, Go with its receiver, Kotlin.
            (
                rf"^[ \t]*{_MODIFIERS}(?:def|fn|function\*?|func(?:[ \t]+\([^)\n]*\))?|fun)[ \t]+"
                r"(?P<callable>[\w.]+[?!]?)[ \t]*[(<\[]"
            ),
            # What follows the name tells a definition from prose that begins with "class".
            (
                rf"^[ \t]*{_MODIFIERS}(?:class|struct|enum|trait|interface|union|namespace|module"
                r"|mod|protocol|record|object|type|macro_rules!)[ \t]+(?P<type>[A-Za-z_]\w*)"
                r"(?=[ \t]*(?:[({:;<=\[]|(?:struct|interface|extends|implements|where)\b))"
            ),
            (
                r"^[ \t]*(?:unsafe[ \t]+)?impl(?:<[^{\n]*?>)?[ \t]+(?:[^{\n]*?\bfor[ \t]+)?"
                r"(?P<impl>[A-Za-z_]\w*)[^{\n]*\{"
            ),
            (
                rf"^[ \t]*{_MODIFIERS}(?:const|let|var)[ \t]+(?P<arrow>[A-Za-z_$][\w$]*)[ \t]*"
                r"(?::[^=\n]*)?=[ \t]*(?:async[ \t]*)?(?:function\b"
                r"|\([^)\n]*\)[^=\n]*=>|\w+[ \t]*=>)"
            ),
            # C, C++, Java, C#: types before the name, a body after the arguments.
            (
                r"^[ \t]*(?!(?:if|for|while|switch|return|else|elif|catch|do|new|throw|case|using"
                r"|import|def|fn|class|struct|enum|namespace|union|interface)\b)"
                r"(?:[\w:<>,\[\]~]+[*&]*[ \t]+[*&]*){1,6}(?P<method>(?:\w+::)*~?\w+)"
                r"[ \t]*\([^;{}]{0,300}\)[^;{}()\n]{0,80}\s*\{"
            ),
            r"^(?P<member>\w+::~?\w+)[ \t]*\([^;{}]{0,300}\)[^;{}\n]{0,80}\{",
            r"^[ \t]*#[ \t]*define[ \t]+(?P<macro>\w+)",
            (
                r"(?i:^[ \t]*create[ \t]+(?:or[ \t]+replace[ \t]+)?(?:\w+[ \t]+){0,2}?(?:table|view"
                r"|function|procedure|index|type|schema|trigger|role|sequence|policy|extension)"
                r"[ \t]+(?:concurrently[ \t]+)?(?:if[ \t]+not[ \t]+exists[ \t]+)?"
                r"\"?(?P<sql>[a-z_][\w.]*))"
            ),
        )
    ),
    re.MULTILINE,
)
_NOT_A_SENTENCE = re.compile(
    r"copyright|licen[sc]e|spdx|all rights reserved|permission|warrant|redistribut|@|coding[:=]"
    r"|^(?:use|import|from|include|package|using|pragma|require|const|let|var|extern|mod|pub"
    r"|define|ifn?def|usr/bin)\b|[{;=,(]\s*$",
    re.IGNORECASE,
)
_LEADING_MARKS = re.compile(r"^[\s#/*!\-;<>%\"'|=~`+]+")
_SENTENCE_END = re.compile(r"[.!?](?=\s)|[。！？]")
_PROSE = re.compile(
    r"(?:[^\W\d_]{2,}\W+){2}[^\W\d_]{2,}|[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]{6}"
)
_OPAQUE_KEY = re.compile(r"[0-9a-fA-F-]{16,}|\W*\d+\W*")


class RuleContextWriter:
    """Writes each context from the document's own words; deterministic, offline and free.

    A context is the document's title (or the words of its key) and the section path, then the names
    that the chunk's code defines. A chunk under no heading is also told what the document defines
    and which type it continues; where nothing of that is known, the document's first sentence.
    """

    provider = "rule"
    model = "rule-1"
    prompt_version = 1

    async def write(
        self, document: Document, chunks: Sequence[Chunk]
    ) -> AsyncIterator[WrittenContext]:
        """One WrittenContext per chunk, in order; none fails and none is empty."""
        definitions = _definitions(document.text)
        subject = _subject(document)
        sentence = _first_sentence(document.text)
        for number, chunk in enumerate(chunks):
            # Letting others run takes as long as a context.
            if number % 16 == 0:
                await anyio.lowlevel.checkpoint()
            place = _place(subject, chunk.section_path)
            about = _about(chunk, definitions, sentence)
            context = " ".join(part for part in (place, *about) if part) or document.key
            yield WrittenContext(position=chunk.position, context=context)


@dataclass(frozen=True, slots=True)
class _Definition:
    offset: int
    name: str
    is_type: bool


def _definitions(text: str) -> list[_Definition]:
    """What the text's code defines, in order of appearance."""
    return [
        _Definition(
            match.start(match.lastgroup),
            match[match.lastgroup],
            match.lastgroup in {"type", "impl"},
        )
        for match in _DEFINITION.finditer(text)
        if match.lastgroup is not None
    ]


def _about(chunk: Chunk, definitions: Sequence[_Definition], sentence: str) -> Iterator[str]:
    """Sentences about what the chunk defines and, where no heading says so, what it belongs to."""
    if not chunk.section_path:
        everything = _distinct(definitions)[:_SUBJECT_NAMES]
        yield f"File with {', '.join(everything)}." if everything else sentence
        types = [each.name for each in definitions if each.is_type and each.offset < chunk.start]
        if types:
            yield f"In {types[-1]}."
    own = _distinct([each for each in definitions if chunk.start <= each.offset < chunk.stop])
    if own:
        yield f"Defines {', '.join(own[:_CHUNK_NAMES])}."


def _distinct(definitions: Sequence[_Definition]) -> list[str]:
    return list(dict.fromkeys(each.name for each in definitions))


def _place(subject: str, section_path: Sequence[str]) -> str:
    """Title and headings, outermost first; a heading that repeats the title is said once."""
    steps = [step for step in (subject, *section_path) if step]
    return f"{' > '.join(dict.fromkeys(steps))}." if steps else ""


def _subject(document: Document) -> str:
    """The title, else the words of the key's last part; empty for a key that is only a number."""
    if document.title:
        return document.title
    stem = PurePosixPath(document.key).stem
    return "" if _OPAQUE_KEY.fullmatch(stem) else re.sub(r"[\s_-]+", " ", stem).strip()


def _first_sentence(text: str) -> str:
    """The first line of prose, up to its first full stop; empty where the beginning holds none.

    Front matter, licence headers, imports and lines of code are passed over.
    """
    front_matter = FRONT_MATTER.match(text)
    body = text[front_matter.end() if front_matter else 0 :]
    for line in body.split("\n", _SENTENCE_LINES)[:_SENTENCE_LINES]:
        prose = _LEADING_MARKS.sub("", line[:_LINE_CHARS]).strip()
        if _PROSE.search(prose) and not _NOT_A_SENTENCE.search(prose):
            end = _SENTENCE_END.search(prose)
            return prose[: end.end() if end else _SENTENCE_CHARS][:_SENTENCE_CHARS]
    return ""
