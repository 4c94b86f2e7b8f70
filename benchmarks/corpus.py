"""Synthetic chunks with the statistics of text: real function words, a Zipfian tail, topics, codes.

Nothing here is taken from a third party. Common words are a list written for this file; the tail is
made of syllables, so that the stemmer has endings to cut. Deterministic by seed.
"""

# ruff: noqa: SIM905 - a hundred words read better as one text than as a hundred literals

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

FUNCTION_WORDS = (
    "the of and to in is for on that with as by this be are from or it an at when if not can you we"
    " will has have which all one more was but so than then there into out only no before after"
).split()
COMMON_WORDS = (
    "service data user time table query server file system request error value name number set"
    " run start stop check update change report team cluster node job task queue message batch"
    " key index page read write load test build release version config setting option default"
    " limit size memory disk network host port client database schema column row record event log"
    " metric alert dashboard incident runbook owner review plan cost budget month quarter growth"
    " customer account order payment invoice price product contract sales region market policy"
    " access role permission token password secret certificate security audit backup restore"
    " replica failover deploy rollback pipeline stage source target model training example result"
    " response retry timeout latency throughput traffic cache storage volume image container"
    " process thread lock transaction commit branch merge issue ticket change request approval"
    " document section chapter summary note question answer search filter sort group count total"
    " average maximum minimum rate ratio percent increase decrease compare measure estimate"
    " language word sentence text format string integer list array object method function class"
    " library package module import export interface endpoint address email calendar meeting"
    " office employee manager training holiday leave travel expense safety quality standard"
    " machine sensor battery pressure temperature engine vehicle station route delivery warehouse"
).split()
ONSETS = "b c d f g h j k l m n p r s t v w br cr dr fl gr pl pr sl st tr ch sh th".split()
VOWELS = "a e i o u ai ea ou io".split()
CODAS = ["", "", "", "n", "r", "l", "s", "t", "m", "nd", "st", "ck"]
ENDINGS = ["", "", "", "", "s", "ed", "ing", "er", "ion", "al", "ly", "ment"]
TOPICS = 200


def vocabulary(size: int, seed: int = 1) -> list[str]:
    """`size` words, most frequent first: the common list, then words of two to four syllables."""
    rng = np.random.default_rng(seed)
    words = list(dict.fromkeys(COMMON_WORDS))
    known = set(words)
    while len(words) < size:
        syllables = "".join(
            ONSETS[rng.integers(len(ONSETS))]
            + VOWELS[rng.integers(len(VOWELS))]
            + CODAS[rng.integers(len(CODAS))]
            for _ in range(rng.integers(2, 5))
        )
        word = syllables + ENDINGS[rng.integers(len(ENDINGS))]
        if word not in known:
            known.add(word)
            words.append(word)
    return words


def codes(rng: np.random.Generator) -> str:
    """An identifier as texts of a data team hold them, from a Zipfian stock."""
    number = int(rng.zipf(1.3)) % 20_000
    kind = rng.integers(5)
    if kind == 0:
        return f"ERR-{1000 + number}"
    if kind == 1:
        return f"job_{COMMON_WORDS[number % 180]}_{number % 500}"
    if kind == 2:
        return f"v{number % 12}.{number % 31}.{number % 7}"
    if kind == 3:
        return f"20{18 + number % 9}-{1 + number % 12:02}-{1 + number % 28:02}"
    return COMMON_WORDS[number % 180].title() + COMMON_WORDS[number % 97].title()


class Corpus:
    """Draws chunks: 30 to 200 words, 38 % function words, a third of the rest from one topic."""

    def __init__(self, words: int = 300_000, seed: int = 1) -> None:
        self.words = np.array(vocabulary(words, seed), dtype=object)
        ranks = np.arange(1, words + 1)
        weights = 1 / (ranks + 2.7) ** 1.07
        self.cumulative = np.cumsum(weights / weights.sum())
        topical = 1 / (np.arange(1, 401) + 5.0)
        self.topical = np.cumsum(topical / topical.sum())
        rng = np.random.default_rng(seed + 1)
        self.topics = rng.integers(150, min(words, 30_000), size=(TOPICS, 400))
        self.function = np.array(FUNCTION_WORDS, dtype=object)

    def chunks(self, count: int, seed: int) -> Iterator[str]:
        """`count` chunks; neighbours share a topic in runs of about 20, as in documents."""
        rng = np.random.default_rng(seed)
        topic = 0
        for number in range(count):
            if number % 20 == 0:
                topic = int(rng.integers(TOPICS))
            yield self._chunk(rng, topic)

    def _chunk(self, rng: np.random.Generator, topic: int) -> str:
        length = int(np.clip(rng.lognormal(4.45, 0.4), 30, 300))
        kind = rng.random(length)
        drawn = self.words[np.searchsorted(self.cumulative, rng.random(length))]
        special = self.topics[topic][np.searchsorted(self.topical, rng.random(length))]
        function = self.function[
            np.minimum(rng.exponential(9, length).astype(int), len(self.function) - 1)
        ]
        drawn = np.where(kind < 0.38, function, np.where(kind < 0.58, self.words[special], drawn))
        words = drawn.tolist()
        for place in range(int(rng.integers(0, 4))):
            words[int(rng.integers(length))] = codes(rng)
            del place
        for place in range(0, length, 14):
            words[place] = words[place].capitalize()
            words[place - 1] += "."
        return " ".join(words)

    def queries(self, texts: list[str], count: int, seed: int) -> list[str]:
        """Questions cut from texts: a third of rare words, a third of common ones, the rest mixed."""
        rng = np.random.default_rng(seed)
        openings = ["How do I {}?", "What is the {}?", "{}", "Why does {} fail?", "when was {}"]
        asked: list[str] = []
        while len(asked) < count:
            source = texts[int(rng.integers(len(texts)))].replace(".", "").split()
            content = [word for word in source if word.lower() not in FUNCTION_WORDS]
            common = [word for word in content if word in COMMON_WORDS[:180]]
            kind = len(asked) % 3
            pool = common if kind == 0 else content
            size = int(rng.integers(3, 7)) if kind == 0 else int(rng.integers(2, 6))
            if len(pool) < size:
                continue
            words = [str(word) for word in rng.choice(pool, size, replace=False)]
            opening = openings[int(rng.integers(len(openings)))]
            asked.append(opening.format(" ".join(words)))
        return asked
