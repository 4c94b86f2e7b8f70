"""Two sessions that write into one collection wait for each other and never end in a deadlock."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.conftest import TestDatabase
from tests.sql.lexical_corpus import RECIPE

CLAIM = "00000000-0000-0000-0000-000000000001"
STAGE = """
with document as (
    insert into ragpg.staged_document (
        tenant_id, collection_id, key, status, claim, text, content_hash, tags, metadata,
        expires_at, media_type, page_starts)
    values (ragpg.current_tenant(), %(home)s, %(key)s, 'staged', %(claim)s, %(text)s, '', '{}',
            '{}', '2020-01-01', 'text', '{}')
        on conflict (tenant_id, collection_id, key) do update
       set text = excluded.text, claim = excluded.claim
    returning tenant_id, collection_id, key, text
)
insert into ragpg.staged_chunk (
    tenant_id, collection_id, document_key, position, start, stop, section_path, table_header,
    text, text_hash, embedding)
select document.tenant_id, document.collection_id, document.key, 0, 0, length(document.text), '{}',
       '', document.text, sha256(document.text::bytea), '[1,0.5,0]'
  from document
    on conflict do nothing
"""
# What the first session does to document a, and then to b in the same transaction.
FIRST = {
    "publish": "select ragpg.publish('docs', %(key)s, %(claim)s)",
    "delete": "select ragpg.delete_document('docs', %(key)s)",
    "rename": "select ragpg.rename_document('docs', %(key)s, %(key)s || 'x')",
    "stage": "select ragpg.hold_collection(%(home)s)",
    "enqueue": "select ragpg.enqueue('docs', array[%(key)s])",
}
# What the second does meanwhile.
SECOND = {
    "delete_collection": "select ragpg.delete_collection('docs')",
    "delete_tenant": "select ragpg.delete_tenant('acme')",
    "delete_expired": "select ragpg.delete_expired('docs')",
    "delete_document": "select ragpg.delete_document('docs', 'b')",
    "publish_documents": (
        "select ragpg.publish_documents('docs', array['b', 'a'], array[%(claim)s, %(claim)s]::uuid[])"
    ),
    "rename": "select ragpg.rename_document('docs', 'b', 'a2')",
    "enqueue": "select ragpg.enqueue('docs', array['b', 'a'])",
    "compact": "select ragpg.compact_lexical(ragpg.current_tenant(), %(home)s)",
    "rebuild": "select ragpg.rebuild_lexical(ragpg.current_tenant(), %(home)s)",
    "rebuild_step": "select ragpg.rebuild_lexical_step(ragpg.current_tenant(), %(home)s, 1)",
    "index_step": "select ragpg.index_lexical_step(ragpg.current_tenant(), %(home)s)",
}
OWNERS = {"compact", "rebuild", "rebuild_step", "index_step"}


def outcome(run: Callable[[], Any]) -> str:
    """Done, or the SQLSTATE that it ended with."""
    try:
        run()
    except psycopg.Error as exc:
        return exc.sqlstate or str(exc)
    return "done"


def waits(owner: psycopg.Connection[Any], conn: psycopg.Connection[Any]) -> bool:
    row = owner.execute(
        "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s",
        [conn.info.backend_pid],
    ).fetchone()
    return row is not None and bool(row[0])


def until_it_waits(
    owner: psycopg.Connection[Any], conn: psycopg.Connection[Any], work: Future[str]
) -> None:
    """Return when this session waits for another, or has ended."""
    deadline = time.monotonic() + 20
    while not (work.done() or waits(owner, conn)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def two_live_documents(conn: psycopg.Connection[Any]) -> int:
    """The collection of two documents that are live, expired and staged again."""
    conn.execute("select ragpg.create_tenant('acme')")
    conn.execute("select ragpg.use_tenant('acme', true)")
    made = conn.execute(
        "select ragpg.create_collection('docs', %s)", [json.dumps(RECIPE)]
    ).fetchone()
    assert made
    for text in ("first words", "second words"):
        for key in ("a", "b"):
            conn.execute(
                STAGE, {"home": made[0], "key": key, "claim": CLAIM, "text": f"{text} of {key}"}
            )
        if text == "first words":
            # Stored in another order than that of the keys, in which tables are often read.
            for key in ("b", "a"):
                conn.execute("select ragpg.publish('docs', %s, %s)", [key, CLAIM])
    return int(made[0])


def session(url: str) -> psycopg.Connection[Any]:
    conn = psycopg.connect(url)
    conn.execute("select ragpg.use_tenant('acme', true)")
    conn.commit()
    return conn


@pytest.mark.parametrize("second_step", SECOND)
def test_whoever_writes_beside_another_waits_and_is_no_victim_of_a_deadlock(
    owner: psycopg.Connection[Any], database: TestDatabase, second_step: str
) -> None:
    owner.execute(f"alter database {database.name} set deadlock_timeout = '100ms'")
    ends = {}
    for first_step, step in FIRST.items():
        home = two_live_documents(owner)
        url = database.owner_url if second_step in OWNERS else database.service_url
        named = {"home": home, "claim": CLAIM}
        with (
            session(database.service_url) as first,
            session(url) as second,
            ThreadPoolExecutor(1) as pool,
        ):

            def do(conn: psycopg.Connection[Any], step: str, key: str, named: Any = named) -> None:
                conn.execute(step, named | {"key": key})
                if step == FIRST["stage"]:
                    conn.execute(STAGE, named | {"key": key, "text": "third words"})

            def finish(conn: psycopg.Connection[Any] = second, run: Any = do) -> None:
                run(conn, SECOND[second_step], "")
                conn.commit()

            do(first, step, "a")
            work = pool.submit(outcome, finish)
            until_it_waits(owner, second, work)
            of_first = outcome(partial(do, first, step, "b"))
            first.commit() if of_first == "done" else first.rollback()
            ends[first_step] = (of_first, work.result(timeout=20))
        if owner.execute("select 1 from ragpg.tenant where key = 'acme'").fetchone():
            owner.execute("select ragpg.delete_tenant('acme')")
    said = {"done", "RG003", "RG007", "RG010", "RG011"}
    assert {step: end for step, end in ends.items() if not set(end) <= said} == {}


def test_a_deletion_comes_to_its_turn_beside_steady_ingestion(
    owner: psycopg.Connection[Any], database: TestDatabase
) -> None:
    home = two_live_documents(owner)
    with (
        session(database.service_url) as writing,
        session(database.service_url) as deleting,
        session(database.service_url) as next_writing,
        ThreadPoolExecutor(2) as pool,
    ):
        writing.execute("select ragpg.publish('docs', 'a', %s)", [CLAIM])

        def delete() -> None:
            deleting.execute("select ragpg.delete_collection('docs')")
            deleting.commit()

        deletion = pool.submit(outcome, delete)
        until_it_waits(owner, deleting, deletion)
        later = pool.submit(
            outcome, lambda: next_writing.execute("select ragpg.publish('docs', 'b', %s)", [CLAIM])
        )
        until_it_waits(owner, next_writing, later)
        assert not later.done()
        writing.commit()
        assert (deletion.result(timeout=20), later.result(timeout=20)) == ("done", "RG003")
        next_writing.rollback()
        assert next_writing.execute("select ragpg.hold_collection(%s)", [home]).fetchone() == (
            False,
        )
