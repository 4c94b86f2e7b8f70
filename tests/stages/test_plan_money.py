"""What a dry run says a collection will cost, against what the vendors then charge for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from ragpg.client import AsyncClient
from ragpg.ingestion.plan import CONTEXT_TOKENS
from ragpg.settings import Settings
from ragpg.types import Recipe
from tests.vendor_stub import Call, VendorStub, count

pytestmark = pytest.mark.anyio

# Words of up to seven letters, which the stub and ragpg count alike: what is left of a difference
# is the plan's.
SENTENCE = "Line {0} has a valve {1} that the crew shuts before the pump of line {0} is opened. "
SPENT = """
select operation, provider, model, sum(input_tokens)::int, sum(output_tokens)::int,
       sum(cache_write_tokens)::int, sum(cache_read_tokens)::int, sum(cost_usd)::float8
  from ragpg.usage group by operation, provider, model order by operation
"""


class Assumed(VendorStub):
    """Writes contexts as long as a plan assumes: 75 words, which are 100 tokens of Claude's."""

    def answer(self, call: Call):
        self.change = self._lengthened
        return super().answer(call)

    def _lengthened(self, call: Call, body: Any) -> Any:
        if call.path != "/v1/messages":
            return body
        said = {"type": "text", "text": "valve " * CONTEXT_TOKENS}
        usage = body["usage"] | {"output_tokens": round(1.3 * CONTEXT_TOKENS)}
        return body | {"content": [said], "usage": usage}


@pytest.fixture
def stub() -> Iterator[Assumed]:
    with Assumed() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve documents: four of one chunk, and eight of seven, whose text is cached."""
    for line in range(12):
        parts = "".join(
            f"## Valve {part}\n\n" + 15 * SENTENCE.format(line, part) + "\n\n"
            for part in range(1 if line < 4 else 7)
        )
        (tmp_path / f"line-{line:02}.md").write_text(f"# Line {line}\n\n{parts}")
    return tmp_path


async def test_a_dry_run_says_within_a_tenth_what_the_run_costs_by_vendor_and_model(
    database, stub, folder, owner
):
    settings = Settings(
        database_url=SecretStr(database.service_url),
        voyage_api_key=SecretStr("pa-test"),
        voyage_base_url=stub.voyage_url,
        anthropic_api_key=SecretStr("sk-ant-test"),
        anthropic_base_url=stub.anthropic_url,
    )
    async with AsyncClient(settings) as client:
        docs = client.collection(tenant="acme", name="docs")
        await docs.create(
            Recipe(
                embedding_provider="voyage",
                embedding_model="voyage-4",
                dimensions=256,
                context_provider="claude",
                context_model="claude-haiku-5-5",
            )
        )
        plan = await docs.plan(folder)
        assert stub.log == []
        report = await docs.sync(folder, plan=plan)
    assert report.ingested.chunks == sum(one.chunks for one in plan.documents) == 60
    spent = owner.execute(SPENT).fetchall()
    assert [row[:3] for row in spent] == [
        ("context", "claude", "claude-haiku-5-5"),
        ("embed", "voyage", "voyage-4"),
    ]
    planned = [
        (
            one.input_tokens,
            one.output_tokens,
            one.cache_write_tokens,
            one.cache_read_tokens,
            one.cost_usd,
        )
        for one in plan.usage
    ]
    assert [(one.operation, one.provider, one.model) for one in plan.usage] == [
        row[:3] for row in spent
    ]
    for figures, row in zip(planned, spent, strict=True):
        assert figures == pytest.approx(row[3:], rel=0.1)
    assert all(row[-1] > 0 for row in spent)
    assert plan.cost_usd == pytest.approx(sum(row[-1] for row in spent), rel=0.1)
    # What is embedded is the chunks' text and a context of 75 tokens each, and nothing else.
    texts = [text for call in stub.calls("/embeddings") for text in call.body["input"]]
    assert plan.usage[1].input_tokens == pytest.approx(sum(map(count, texts)), rel=0.02)
    assert sum(len(re.findall("valve", text)) >= CONTEXT_TOKENS for text in texts) == 60
