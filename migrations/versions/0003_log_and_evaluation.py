"""The retrieval log, provider usage, and a tenant's own evaluation data."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Create the log, usage and evaluation tables."""
    op.execute(LOG)
    op.execute(USAGE)
    op.execute(EVALUATION)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


LOG = """
create table ragpg.search (
    tenant_id integer not null,
    search_id bigint generated always as identity,
    collection_id integer not null,
    query text not null,
    query_embedding halfvec,
    filter jsonb,
    k integer not null,
    dense_mode text,
    lexical_mode text,
    reranker text,
    notices text[] not null,
    degraded text[] not null,
    timings_ms jsonb not null,
    searched_at timestamptz not null default now(),
    primary key (tenant_id, search_id),
    foreign key (tenant_id, collection_id) references ragpg.collection on delete cascade
);
create index search_searched_at on ragpg.search (tenant_id, collection_id, searched_at);
comment on table ragpg.search is 'One logged search.';
comment on column ragpg.search.tenant_id is 'The tenant that searched.';
comment on column ragpg.search.search_id is 'The number used inside.';
comment on column ragpg.search.collection_id is 'The collection that was searched.';
comment on column ragpg.search.query is 'What was asked.';
comment on column ragpg.search.query_embedding is 'Its vector; with it the search can be run again.';
comment on column ragpg.search.filter is 'The filter, as JSON; null without one.';
comment on column ragpg.search.k is 'How many hits were asked for.';
comment on column ragpg.search.dense_mode is 'Which plan the dense arm took.';
comment on column ragpg.search.lexical_mode is 'Which plan the lexical arm took.';
comment on column ragpg.search.reranker is 'Provider and model that reranked; null if none did.';
comment on column ragpg.search.notices is 'Sentences about the query.';
comment on column ragpg.search.degraded is 'Sentences about a part that failed and was left out.';
comment on column ragpg.search.timings_ms is 'Milliseconds by stage.';
comment on column ragpg.search.searched_at is 'When.';
comment on index ragpg.search_searched_at is 'The newest searches of a collection.';

create table ragpg.search_hit (
    tenant_id integer not null,
    search_id bigint not null,
    chunk_id bigint not null,
    dense_rank integer,
    dense_score double precision,
    lexical_rank integer,
    lexical_score double precision,
    fused_rank integer not null,
    fused_score double precision not null,
    rerank_rank integer,
    rerank_score double precision,
    shown boolean not null default false,
    cited boolean not null default false,
    primary key (tenant_id, search_id, chunk_id),
    foreign key (tenant_id, search_id) references ragpg.search on delete cascade
);
comment on table ragpg.search_hit is
    'A candidate of a logged search, with every rank and score that it had on the way.';
comment on column ragpg.search_hit.tenant_id is 'The tenant that searched.';
comment on column ragpg.search_hit.search_id is 'The search.';
comment on column ragpg.search_hit.chunk_id is 'The chunk, which may be gone by now.';
comment on column ragpg.search_hit.dense_rank is 'Rank in the dense arm, from 1; null if not in it.';
comment on column ragpg.search_hit.dense_score is 'Cosine similarity, -1 to 1.';
comment on column ragpg.search_hit.lexical_rank is 'Rank in the lexical arm, from 1; null if not in it.';
comment on column ragpg.search_hit.lexical_score is 'BM25 score.';
comment on column ragpg.search_hit.fused_rank is 'Rank after fusion, from 1.';
comment on column ragpg.search_hit.fused_score is 'Sum of weight / (k + rank).';
comment on column ragpg.search_hit.rerank_rank is 'Rank after reranking, from 1; null if not reranked.';
comment on column ragpg.search_hit.rerank_score is 'The reranker''s score.';
comment on column ragpg.search_hit.shown is 'Whether the caller, or the generator, got it.';
comment on column ragpg.search_hit.cited is 'Whether the answer cites it.';
"""

USAGE = """
create table ragpg.usage (
    tenant_id integer not null references ragpg.tenant on delete cascade,
    usage_id bigint generated always as identity,
    collection_id integer,
    provider text not null,
    model text not null,
    operation text not null constraint operation_is_known
        check (operation in ('embed', 'context', 'rerank', 'generate')),
    input_tokens bigint not null,
    output_tokens bigint not null,
    cache_write_tokens bigint not null,
    cache_read_tokens bigint not null,
    cost_usd numeric(14, 8),
    duration_ms double precision not null,
    request_id text,
    used_at timestamptz not null default now(),
    primary key (tenant_id, usage_id)
);
create index usage_used_at on ragpg.usage (tenant_id, used_at);
comment on table ragpg.usage is 'One provider call and what it used.';
comment on column ragpg.usage.tenant_id is 'The tenant that it was made for.';
comment on column ragpg.usage.usage_id is 'The number used inside.';
comment on column ragpg.usage.collection_id is 'The collection that it was made for.';
comment on column ragpg.usage.provider is 'Who was called.';
comment on column ragpg.usage.model is 'The model that answered.';
comment on column ragpg.usage.operation is 'embed, context, rerank or generate.';
comment on column ragpg.usage.input_tokens is 'Tokens read at the full price.';
comment on column ragpg.usage.output_tokens is 'Tokens written.';
comment on column ragpg.usage.cache_write_tokens is 'Tokens written to the prompt cache.';
comment on column ragpg.usage.cache_read_tokens is 'Tokens read from the prompt cache.';
comment on column ragpg.usage.cost_usd is 'Cost in US dollars; null where the price is not known.';
comment on column ragpg.usage.duration_ms is 'Milliseconds, retries included.';
comment on column ragpg.usage.request_id is 'The vendor''s own id of the call.';
comment on column ragpg.usage.used_at is 'When.';
comment on index ragpg.usage_used_at is 'Spend of a tenant over time.';
"""

EVALUATION = """
create table ragpg.golden_query (
    tenant_id integer not null references ragpg.tenant on delete cascade,
    query_id text not null,
    query text not null,
    metadata jsonb not null default '{}',
    primary key (tenant_id, query_id)
);
comment on table ragpg.golden_query is 'A query of a tenant''s evaluation set.';
comment on column ragpg.golden_query.tenant_id is 'The tenant that owns it.';
comment on column ragpg.golden_query.query_id is 'The caller''s id of it.';
comment on column ragpg.golden_query.query is 'What is asked.';
comment on column ragpg.golden_query.metadata is 'The caller''s fields.';

create table ragpg.qrel (
    tenant_id integer not null,
    query_id text not null,
    document_key text not null,
    relevance double precision not null
        constraint relevance_positive check (relevance > 0),
    primary key (tenant_id, query_id, document_key),
    foreign key (tenant_id, query_id) references ragpg.golden_query on delete cascade
);
comment on table ragpg.qrel is 'A judgement: this document answers this query.';
comment on column ragpg.qrel.tenant_id is 'The tenant that owns it.';
comment on column ragpg.qrel.query_id is 'The query.';
comment on column ragpg.qrel.document_key is 'The document that answers it.';
comment on column ragpg.qrel.relevance is 'How well; larger is better.';
"""
