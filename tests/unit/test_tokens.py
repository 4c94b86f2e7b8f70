from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from ragpg.tokens import TokenMap, count_tokens, is_blank

SHARED = Path(os.environ.get("RAGPG_SHARED", Path(__file__).parents[2].parent / "shared"))
REALDOCS = SHARED / "cases" / "realdocs"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        (" \n\t", 0),
        ("pages", 1),
        ("rotates the key", 3),
        ("configuration", 3),  # config-ura tion as 7 + 4 + 2
        ("a" * 10_000, 2500),
        ("2025-05-18", 6),
        ("数据库", 3),
        ("데이터", 3),
        ("snake_case", 3),
        ("{}", 2),
        ("👩‍👩‍👧", 3),
    ],
)
def test_tokens_of_a_text_are_counted_as_documented(text, tokens):
    assert count_tokens(text) == tokens


@pytest.mark.parametrize(
    "text", ["", "   ", "\n\n", "\u200b", "\ufeff \u00a0\u2060", "\0", "\u00ad"]
)
def test_a_text_without_a_visible_character_is_blank(text):
    assert is_blank(text)
    assert count_tokens(text) == 0


@pytest.mark.parametrize("text", ["ok", "@", " . ", "\u200bx"])
def test_a_text_with_a_visible_character_is_not_blank(text):
    assert not is_blank(text)


@given(st.text(), st.data())
def test_a_passage_never_has_more_tokens_than_its_map_says(text, data):
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, len(text)))
    assert count_tokens(text[start:stop]) <= TokenMap(text).count(start, stop)


@given(st.text(), st.integers(0, 20))
def test_what_is_within_reach_has_no_more_tokens_than_asked(text, tokens):
    reach = TokenMap(text).reach(0, tokens)
    assert count_tokens(text[:reach]) <= tokens
    assert reach == len(text) or count_tokens(text[: reach + 1]) == tokens + 1


CHARACTERS = st.sampled_from("aZé\u0301ßж0٣²_-. \n\t\0\u00ad\u200b\u200c\u200d\ufeff\u2003กข๑ᄀ™←")


@given(st.lists(st.tuples(CHARACTERS, st.integers(1, 12)), min_size=50, max_size=60))
def test_a_long_text_has_the_same_tokens_with_and_without_a_character_beyond_the_table(runs):
    text = "".join(character * count for character, count in runs).ljust(301, "x")
    matched, looked_up = TokenMap(text + " 𠀀"), TokenMap(text)
    assert count_tokens(text) == count_tokens(text + " 𠀀") - 1
    for place in range(0, len(text), 9):
        assert looked_up.count(place, place + 1) == matched.count(place, place + 1)
        assert looked_up.count(place, len(text)) == matched.count(place, len(text))


@pytest.mark.parametrize(
    "unit",
    [
        "abcdefghijk",
        "1234",
        "a\u200db",
        "§ ",
        "\u200dlonger",
        "漢字ab",
        "あ한국longer ",
        "👩\u200d👧🇨🇭a",
        "１２３４x",
    ],
)
def test_tokens_of_a_very_long_text_are_those_of_one_that_is_matched(unit):
    text = (unit * 70_000)[:140_001]
    matched, looked_up = TokenMap(text + " 𠀀"), TokenMap(text)
    assert count_tokens(text) == count_tokens(text + " 𠀀") - 1
    for place in (1, 65_535, 65_536, 65_537, 131_071, 131_072, 131_073, 139_900):
        assert looked_up.count(0, place) == matched.count(0, place)
        assert looked_up.reach(place - 1, 3) == matched.reach(place - 1, 3)


def test_the_estimate_is_near_the_wordpiece_count_for_plain_english():
    tokenizer = _wordpiece()
    text = (
        "The on-call engineer acknowledges within five minutes. After fifteen minutes the page "
        "goes to the second person, who rolls back the deployment with `make rollback TAG=v1.2.3`."
    )
    true = len(tokenizer.encode(text, add_special_tokens=False).ids)
    assert count_tokens(text) == pytest.approx(true, rel=0.1)


def test_the_estimate_is_within_the_documented_error_on_real_documents():
    if not REALDOCS.is_dir():
        pytest.skip(f"{REALDOCS} is absent; set RAGPG_SHARED")
    tokenizer = _wordpiece()
    errors = []
    for path in sorted(REALDOCS.glob("[01]*.md")):
        text = path.read_text(encoding="utf-8")
        true = len(tokenizer.encode(text, add_special_tokens=False).ids)
        if "korean" not in path.name:
            errors.append(count_tokens(text) / true - 1)
    assert len(errors) == 13
    assert max(map(abs, errors)) < 0.135
    assert sum(map(abs, errors)) / len(errors) < 0.055


def _wordpiece() -> Tokenizer:
    asset = files("ragpg") / "assets" / "minilm-l6-v2-tokenizer.json"
    tokenizer = Tokenizer.from_str(json.dumps(json.loads(asset.read_text(encoding="utf-8"))))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
