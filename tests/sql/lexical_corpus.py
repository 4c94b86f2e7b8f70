"""What the lexical tests share: a tenant with chunks, and BM25 computed in Python."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

RECIPE = {
    "embedding_provider": "local",
    "embedding_model": "none",
    "dimensions": 3,
    "embedding_dtype": "float",
    "context_provider": "none",
    "context_model": "none",
    "context_prompt_version": 1,
    "glossary": "",
    "splitter": "whole",
    "max_tokens": 400,
    "overlap_tokens": 0,
    "language": "english",
}
ADD_DOCUMENT = """
with made as (
    insert into ragpg.document (tenant_id, collection_id, key, revision, text, content_hash, source,
                                tags, metadata, modified_at, expires_at, media_type, page_starts)
    values (%(tenant)s, %(collection)s, %(key)s, 1, %(text)s, '', %(source)s, %(tags)s,
            %(metadata)s, %(modified_at)s, %(expires_at)s, 'text', '{}')
    returning document_id
), passage as (
    insert into ragpg.chunk (tenant_id, collection_id, document_id, position, start, stop,
                             section_path, table_header, text, text_hash, context)
    select %(tenant)s, %(collection)s, document_id, 0, 0, length(%(text)s), '{}', '', %(text)s, '',
           %(context)s
      from made
    returning chunk_id
)
insert into ragpg.embedding (tenant_id, chunk_id, collection_id, document_key, source, tags,
                             modified_at, expires_at, attributes, embedding)
select %(tenant)s, chunk_id, %(collection)s, %(key)s, %(source)s, %(tags)s, %(modified_at)s,
       %(expires_at)s, ragpg.attributes(%(metadata)s, %(key)s, %(source)s, %(tags)s,
       %(modified_at)s) || jsonb_build_object('@collection', %(collection)s::integer), '[1,0,0]'
  from passage
returning chunk_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A collection of a tenant, by number and by name."""

    tenant: int
    collection: int
    name: str


def make_home(conn: psycopg.Connection[Any], name: str = "notes", **recipe: object) -> Home:
    """A new tenant with one collection; the connection's session is set to the tenant."""
    tenant = conn.execute(
        "select ragpg.create_tenant('tenant ' || (select count(*) from ragpg.tenant))"
    ).fetchone()
    assert tenant
    conn.execute("select set_config('ragpg.tenant_id', %s, false)", [str(tenant[0])])
    made = conn.execute(
        "select ragpg.create_collection(%s, %s)", [name, json.dumps(RECIPE | recipe)]
    ).fetchone()
    assert made
    return Home(tenant=tenant[0], collection=made[0], name=name)


def add(conn: psycopg.Connection[Any], home: Home, texts: list[str], **fields: object) -> list[int]:
    """The chunk ids of these texts, each a document of one chunk, added in one call."""
    added = []
    for text in texts:
        given = {
            "source": None,
            "tags": [],
            "metadata": "{}",
            "modified_at": None,
            "expires_at": None,
            "context": None,
            "key": f"document {random.getrandbits(64):x}",
        } | fields
        row = conn.execute(
            ADD_DOCUMENT,
            given | {"tenant": home.tenant, "collection": home.collection, "text": text},
        ).fetchone()
        assert row
        added.append(row[0])
    conn.execute("select ragpg.lexical_add(%s, %s, %s)", [home.tenant, home.collection, added])
    return added


def put_into_index(conn: psycopg.Connection[Any], home: Home, most: int = 1_000_000) -> int:
    """Index rows that a small collection leaves to the scan; how many there were, up to `most`."""
    row = conn.execute(
        "select ragpg._index_rows(%s, %s, %s)", [home.tenant, home.collection, most]
    ).fetchone()
    assert row
    return int(row[0])


def remove(conn: psycopg.Connection[Any], home: Home, chunk_ids: list[int]) -> None:
    """Take chunks out of the index, then delete them."""
    conn.execute(
        "select ragpg.lexical_remove(%s, %s, %s)", [home.tenant, home.collection, chunk_ids]
    )
    conn.execute(
        "delete from ragpg.chunk where tenant_id = %s and chunk_id = any (%s)",
        [home.tenant, chunk_ids],
    )


def search(
    conn: psycopg.Connection[Any], home: Home, query: str, k: int = 10, **filters: object
) -> list[tuple[int, float]]:
    """Chunk ids and scores of search_lexical, in rank order."""
    extra = "".join(f", {name} => %({name})s" for name in filters)
    rows = conn.execute(
        "select chunk_id, score, rank from ragpg.search_lexical("
        f"%(collection)s, %(query)s, %(k)s{extra}) order by rank",
        {"collection": home.name, "query": query, "k": k} | filters,
    ).fetchall()
    assert [row[2] for row in rows] == list(range(1, len(rows) + 1))
    return [(row[0], row[1]) for row in rows]


def read_chunks(conn: psycopg.Connection[Any], home: Home) -> dict[int, Counter[str]]:
    """The lexemes of every chunk of the collection with their frequencies, from ragpg.tokenize."""
    return {
        chunk_id: Counter(dict(zip(lexemes, counts, strict=True)))
        for chunk_id, lexemes, counts in conn.execute(
            """
            select chunk.chunk_id, array_remove(array_agg(lexeme.lexeme), null),
                   array_remove(array_agg(cardinality(lexeme.positions)), null)
              from ragpg.chunk
              left join unnest(ragpg.tokenize(
                       ragpg.contextualized(chunk.context, chunk.table_header, chunk.text)))
                   as lexeme on true
             where chunk.tenant_id = %s and chunk.collection_id = %s
             group by chunk.chunk_id
            """,
            [home.tenant, home.collection],
        )
    }


def ask(conn: psycopg.Connection[Any], query: str) -> dict[str, int]:
    """The lexemes of a query, with how often each occurs."""
    return dict(
        conn.execute(
            "select lexeme, cardinality(positions) from unnest(ragpg.tokenize(%s))", [query]
        ).fetchall()
    )


def rank_bm25(
    chunks: dict[int, Counter[str]], asked: dict[str, int], k: int
) -> list[tuple[int, float]]:
    """The k chunks of highest BM25 score (k1 1.2, b 0.75), ties by id."""
    total = len(chunks)
    average = max(1, sum(sum(chunk.values()) for chunk in chunks.values()) / max(1, total))
    scores: dict[int, float] = {}
    for lexeme, times in sorted(asked.items()):
        holders = [chunk_id for chunk_id, chunk in chunks.items() if lexeme in chunk]
        idf = math.log(1 + (total - len(holders) + 0.5) / (len(holders) + 0.5))
        for chunk_id in holders:
            frequency = chunks[chunk_id][lexeme]
            length = sum(chunks[chunk_id].values())
            weight = frequency * 2.2 / (frequency + 1.2 * (0.25 + 0.75 * length / average))
            scores[chunk_id] = scores.get(chunk_id, 0) + times * idf * weight
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]


def assert_same_ranking(found: list[tuple[int, float]], expected: list[tuple[int, float]]) -> None:
    """Equal chunks at each rank, those of equal scores by id, and scores within 1e-5."""
    assert [chunk_id for chunk_id, _ in found] == [chunk_id for chunk_id, _ in expected]
    for (_, score), (_, wanted) in zip(found, expected, strict=True):
        assert math.isclose(score, wanted, rel_tol=1e-5)


def random_text(rng: random.Random, vocabulary: int = 300) -> str:
    """A text of 1 to 60 words of a Zipfian vocabulary."""
    ranks = [int(vocabulary ** rng.random()) for _ in range(rng.randint(1, 60))]
    return " ".join(f"wort{rank}" for rank in ranks)
