"""Tenants take turns at the workers, whoever queued first and however much."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from ragpg.client import AsyncClient
from ragpg.jobs import WorkerLimits, work
from ragpg.types import Document

pytestmark = pytest.mark.anyio
ONE_AT_A_TIME = replace(WorkerLimits(), concurrency=1, poll_s=0.05)


async def enqueue(client: AsyncClient, tenant: str, count: int, start: int = 0) -> None:
    docs = client.collection(tenant=tenant, name="docs")
    await docs.create()
    await docs.enqueue(
        [Document(key=f"{n:03}.md", text=f"Rule {n}.") for n in range(start, start + count)]
    )


def order(owner: psycopg.Connection) -> list[str]:
    """The tenants in the order in which their documents became live."""
    return [
        key
        for (key,) in owner.execute(
            "select tenant.key from ragpg.document join ragpg.tenant using (tenant_id)"
            " order by document.document_id"
        )
    ]


async def test_a_tenant_with_few_documents_does_not_wait_for_all_of_one_with_many(client, owner):
    await enqueue(client, "many", 70)
    await enqueue(client, "few", 2)
    await enqueue(client, "many", 10, start=70)
    await enqueue(client, "late", 1)
    await work(client, limits=ONE_AT_A_TIME, drain=True)
    became_live = order(owner)
    assert len(became_live) == 83
    assert became_live[:5] == ["many", "few", "late", "many", "few"]
    keys = [
        key
        for (key,) in owner.execute(
            "select document.key from ragpg.document join ragpg.tenant using (tenant_id)"
            " where tenant.key = 'many' order by document.document_id"
        )
    ]
    assert keys == [f"{n:03}.md" for n in range(80)]


async def test_who_comes_later_begins_at_the_turn_that_is_served_and_passes_nobody_for_ever(
    client, owner
):
    await enqueue(client, "many", 6)
    # As if three of them had been served.
    owner.execute("delete from ragpg_jobs.procrastinate_jobs where priority > -3")
    await enqueue(client, "late", 4)
    await enqueue(client, "many", 1, start=6)
    priorities = owner.execute(
        "select tenant.key, -priority from ragpg_jobs.procrastinate_jobs"
        " join ragpg.tenant on tenant.tenant_id = (args ->> 'tenant_id')::integer"
        " order by priority desc, id"
    ).fetchall()
    assert priorities == [
        ("many", 3),
        ("late", 3),
        ("many", 4),
        ("late", 4),
        ("many", 5),
        ("late", 5),
        ("late", 6),
        ("many", 6),
    ]
