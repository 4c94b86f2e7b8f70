from __future__ import annotations

import time

import anyio
import pytest

from ragpg.providers.rule import RuleContextWriter
from ragpg.types import Chunk, Document

PYTHON = '''"""Reads ledgers from a folder."""
import csv

class LedgerReader:
    def open_all(self, folder):
        pass

    async def close(self):
        pass

def main():
    pass
'''


def contexts(document, *spans, section_path=()):
    chunks = [
        Chunk(
            position=position,
            start=start,
            stop=stop,
            text=document.text[start:stop],
            section_path=section_path,
        )
        for position, (start, stop) in enumerate(spans)
    ]

    async def collect():
        return [each async for each in RuleContextWriter().write(document, chunks)]

    written = anyio.run(collect)
    assert [(each.position, each.error) for each in written] == [
        (position, None) for position in range(len(spans))
    ]
    return [each.context for each in written]


def whole(text, *, key="a/notes.md", title=None, section_path=()):
    document = Document(key=key, text=text, title=title)
    return contexts(document, (0, len(text)), section_path=section_path)[0]


def test_a_chunk_under_headings_is_told_its_title_and_section_path():
    context = whole("Rotate it yearly.", title="Key runbook", section_path=("Keys", "Rotation"))
    assert context == "Key runbook > Keys > Rotation."


def test_a_heading_that_repeats_the_title_is_said_once():
    assert whole("Text.", title="Keys", section_path=("Keys", "Use")) == "Keys > Use."


def test_without_a_title_the_words_of_the_key_stand_for_it():
    context = whole("Text.", key="ops/cost_run-book.md", section_path=("Alerts",))
    assert context == "cost run book > Alerts."


@pytest.mark.parametrize("key", ["5e4c01057a10732d34784af2a97bee9d", "docs/0042.md"])
def test_a_key_that_says_nothing_is_left_out(key):
    assert whole("Our scheduler retries failed jobs. More.", key=key) == (
        "Our scheduler retries failed jobs."
    )


def test_a_document_of_which_nothing_is_known_has_its_key_as_context():
    assert whole("42", key="0042") == "0042"


def test_code_is_told_what_the_file_defines_what_it_continues_and_what_it_defines_itself():
    document = Document(key="0001", text=PYTHON)
    cut = PYTHON.index("    async def close")
    assert contexts(document, (0, cut), (cut, len(PYTHON))) == [
        "File with LedgerReader, open_all, close, main. Defines LedgerReader, open_all.",
        "File with LedgerReader, open_all, close, main. In LedgerReader. Defines close, main.",
    ]


def test_a_code_fence_under_a_heading_adds_the_names_that_it_defines():
    text = "Make it:\n\n```sql\ncreate table if not exists app.invoice (id int);\n```\n"
    assert whole(text, title="Set-up", section_path=("Tables",)) == (
        "Set-up > Tables. Defines app.invoice."
    )


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("def load(path):", "load"),
        ("    async def load(self):", "load"),
        ("pub(crate) async fn load<T>(x: T) {", "load"),
        ("func (s *Store) Load(ctx context.Context) error {", "Load"),
        ("export default function load(a) {", "load"),
        ("export const load = async (a) => {", "load"),
        ("class Loader(Base):", "Loader"),
        ("public final class Loader extends Base {", "Loader"),
        ("pub struct Loader {", "Loader"),
        ("impl<T> Iterator for Loader<T> {", "Loader"),
        ("type Loader struct {", "Loader"),
        ("interface Loader {", "Loader"),
        ("static inline int load_all(const char *path)\n{", "load_all"),
        ("    public List<String> loadAll(int count) throws IOException {", "loadAll"),
        ("void Loader::load(int x) {", "Loader::load"),
        ("Loader::Loader(int x) : x_(x) {", "Loader::Loader"),
        ("#define LOAD_MAX 10", "LOAD_MAX"),
        ("CREATE OR REPLACE FUNCTION app.load(x int)", "app.load"),
        ("create unique index concurrently load_idx on t (a);", "load_idx"),
    ],
)
def test_definitions_of_many_languages_are_found(code, name):
    assert whole(code, key="0001") == f"File with {name}. Defines {name}."


@pytest.mark.parametrize(
    "prose",
    [
        "class of people who read manuals",
        "type your password and wait",
        "    return load(path)",
        "if (ready) { go(); }",
        "} else if (x) {",
        "object to the proposal in writing",
        "record your hours every day",
    ],
)
def test_prose_and_calls_define_nothing(prose):
    assert "Defines" not in whole(prose, key="0001")


def test_the_first_sentence_passes_over_front_matter_licences_and_imports():
    text = (
        "---\ntitle: Some long title here\n---\n\n// Copyright 2020 by all the people\n"
        "import some.long.module.name\n\n// Sends letters to late payers. Twice.\n"
    )
    assert whole(text, key="0001") == "Sends letters to late payers."


def test_the_first_sentence_of_a_chinese_document_ends_at_its_full_stop():
    assert whole("数据库的备份在每天夜里进行。其他的事情。", key="0001") == (
        "数据库的备份在每天夜里进行。"
    )


def test_at_most_eight_names_of_the_chunk_and_four_of_the_file_are_told():
    text = "".join(f"def f{number}(): pass\n" for number in range(12))
    assert whole(text, key="0001") == (
        "File with f0, f1, f2, f3. Defines f0, f1, f2, f3, f4, f5, f6, f7."
    )


@pytest.mark.parametrize("unit", ["word ", "a", "impl<", "(", "| x ", "const a = (", "pub "])
def test_a_long_line_takes_linear_time(unit):
    text = (unit * 300_000)[:300_000]
    started = time.process_time()
    whole(text, key="0001")
    assert time.process_time() - started < 3
