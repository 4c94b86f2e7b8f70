"""Texts, vectors, tenants and questions of the hybrid benchmark, as files that every side reads.

Texts come from `benchmarks.corpus`; vectors are clusters within the text's topic. Half of the chunks
are one tenant's, one tenant has 1 %, the rest belongs to tenants of 5, 2 and 0.5 %. Deterministic.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.corpus import FUNCTION_WORDS, Corpus

DIMENSIONS = 384
LATENT = 96
QUESTIONS = 40
SHARES = [0.5, 0.01, *[0.05] * 6, *[0.02] * 7, *[0.005] * 10]
KINDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked, of which tenant and, in some cells, of which kind of chunk; `source` is the
    chunk that it was made from."""

    tenant: str
    kind: str | None
    text: str
    source: int


def write(folder: Path, size: int) -> None:
    """Files of `size` chunks: texts.json, chunks.npz, questions.json, questions.npy."""
    random = np.random.default_rng(5)
    counts = [int(size * share) for share in SHARES]
    counts[0] += size - sum(counts)
    tenant = np.repeat(np.arange(len(counts)), counts)
    corpus = Corpus(words=100_000)
    texts = [
        text
        for number, count in enumerate(counts)
        for text in corpus.chunks(count, seed=1000 * (number + 1))
    ]
    # Runs of 20 chunks are of one topic, as in the corpus; a power law gives few strong dimensions.
    spectrum = np.arange(1, LATENT + 1) ** -0.4
    run = np.concatenate([np.arange(count) // 20 for count in counts]) + tenant * 1_000_003
    _, run = np.unique(run, return_inverse=True)
    centres = random.standard_normal((run.max() + 1, LATENT)) * spectrum
    topics = random.standard_normal((200, LATENT)) * spectrum
    centres = 0.75 * topics[random.integers(0, 200, len(centres))] + 0.8 * centres
    projection = random.standard_normal((LATENT, DIMENSIONS)) / np.sqrt(DIMENSIONS)
    offset = random.standard_normal(DIMENSIONS)
    offset *= 1.5 / np.linalg.norm(offset)

    def embed(latent: np.ndarray) -> np.ndarray:
        points: np.ndarray = latent @ projection + offset
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        return points.astype(np.float32)

    latent = centres[run] + 0.7 * random.standard_normal((size, LATENT)) * spectrum
    kind = random.integers(0, KINDS, size)
    common = set(FUNCTION_WORDS)
    questions: list[Question] = []
    for number, kinds in ((1, [None]), (0, [None]), (0, range(KINDS))):
        mine = np.flatnonzero(tenant == number)
        for place in range(QUESTIONS):
            wanted = kinds[place % len(kinds)]
            pool = mine if wanted is None else mine[kind[mine] == wanted]
            source = int(random.choice(pool))
            words = sorted(set(texts[source].replace(".", "").split()) - common)
            text = " ".join(random.choice(words, 2 + place % 4, replace=False).tolist())
            questions.append(
                Question(
                    tenant=f"t{number}",
                    kind=None if wanted is None else f"k{wanted}",
                    text=text,
                    source=source,
                )
            )
    sources = [question.source for question in questions]
    asked = latent[sources] + 1.2 * random.standard_normal((len(sources), LATENT)) * spectrum
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "chunks.npz", vectors=embed(latent), tenant=tenant, kind=kind)
    np.save(folder / "questions.npy", embed(asked))
    (folder / "texts.json").write_text(json.dumps(texts), "utf-8")
    (folder / "questions.json").write_text(json.dumps([asdict(q) for q in questions]), "utf-8")
