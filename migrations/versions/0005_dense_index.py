"""What the dense arm picks its plan by, how many rows a collection has, and measured recall."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Create the settings, the counts and the recall results."""
    op.execute(STATISTICS)
    op.execute(SETTING)
    op.execute(COLLECTION)
    op.execute(RECALL)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


STATISTICS = """
-- A collection has one tenant; without this the planner multiplies both and expects too few rows.
create statistics ragpg.embedding_home (dependencies) on tenant_id, collection_id
  from ragpg.embedding;
comment on statistics ragpg.embedding_home is 'A collection belongs to one tenant.';
alter table ragpg.embedding alter column collection_id set statistics 1000;
alter table ragpg.embedding alter column attributes set statistics 500;
"""

SETTING = """
create table ragpg.dense_setting (
    only_row boolean primary key default true constraint one_dense_setting check (only_row),
    exact_max integer not null default 5000 check (exact_max >= 0),
    sketch_max integer not null default 200000 check (sketch_max >= 0),
    prefilter_max integer not null default 20000 check (prefilter_max >= 0),
    sketch_rescored integer not null default 1000 check (sketch_rescored > 0),
    ef_search integer not null default 600 check (ef_search between 1 and 1000),
    index_above integer not null default 50000,
    unindex_below integer not null default 25000,
    constraint index_above_unindex_below check (index_above > unindex_below and unindex_below >= 0)
);
insert into ragpg.dense_setting default values;
comment on table ragpg.dense_setting is
    'One row: the sizes at which the dense arm changes its plan. The owner may update it.';
comment on column ragpg.dense_setting.only_row is 'Always true: keeps the table at one row.';
comment on column ragpg.dense_setting.exact_max is
    'Up to so many rows, matching or in all, every vector is compared.';
comment on column ragpg.dense_setting.sketch_max is
    'Up to so many rows in a collection, filters on source and time scan its sketches.';
comment on column ragpg.dense_setting.prefilter_max is
    'Up to so many expected matches, rows are filtered first and then compared exactly.';
comment on column ragpg.dense_setting.sketch_rescored is
    'At least so many of the nearest sketches are compared exactly; 6 times k if that is more.';
comment on column ragpg.dense_setting.ef_search is 'Breadth of the search in an HNSW index.';
comment on column ragpg.dense_setting.index_above is
    'From so many rows on, a collection gets an HNSW index of its own.';
comment on column ragpg.dense_setting.unindex_below is
    'Below so many rows a collection loses its HNSW index.';
"""

COLLECTION = """
create table ragpg.dense_collection (
    tenant_id integer not null,
    collection_id integer not null,
    rows bigint not null,
    counted_at timestamptz not null default now(),
    primary key (tenant_id, collection_id),
    foreign key (tenant_id, collection_id) references ragpg.collection on delete cascade
);
comment on table ragpg.dense_collection is
    'How many vectors a collection had when it was counted last; a search counts what is not here.';
comment on column ragpg.dense_collection.tenant_id is 'The tenant that owns the collection.';
comment on column ragpg.dense_collection.collection_id is 'The collection.';
comment on column ragpg.dense_collection.rows is 'Its vectors.';
comment on column ragpg.dense_collection.counted_at is 'When.';
"""

RECALL = """
create table ragpg.dense_recall (
    tenant_id integer not null,
    collection_id integer not null,
    recall_id bigint generated always as identity,
    measured_at timestamptz not null default now(),
    query_source text not null constraint query_source_is_known
        check (query_source in ('logged', 'stored')),
    queries integer not null,
    k integer not null,
    modes text[] not null,
    mean_recall double precision not null,
    lowest_recall double precision not null,
    primary key (tenant_id, collection_id, recall_id),
    foreign key (tenant_id, collection_id) references ragpg.collection on delete cascade
);
comment on table ragpg.dense_recall is
    'One check of a collection: the dense arm against the exact scan, over a sample of queries.';
comment on column ragpg.dense_recall.tenant_id is 'The tenant that owns the collection.';
comment on column ragpg.dense_recall.collection_id is 'The collection.';
comment on column ragpg.dense_recall.recall_id is 'The number used inside.';
comment on column ragpg.dense_recall.measured_at is 'When.';
comment on column ragpg.dense_recall.query_source is
    'logged: queries of its search log; stored: its own vectors with noise, where the log is empty.';
comment on column ragpg.dense_recall.queries is 'How many queries were run.';
comment on column ragpg.dense_recall.k is 'How many results of each were compared.';
comment on column ragpg.dense_recall.modes is 'The plans that the dense arm took.';
comment on column ragpg.dense_recall.mean_recall is
    'Share of the exact results that it found, over all queries.';
comment on column ragpg.dense_recall.lowest_recall is 'The same of the worst query.';
"""
