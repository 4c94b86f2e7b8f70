"""Background ingestion: the job queue in a schema of its own, and documents that wait for it."""

from __future__ import annotations

from typing import Any

from alembic import op
from procrastinate.schema import SchemaManager

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

FORWARD_ONLY = "forward only: restore a backup or write a new revision"


def upgrade() -> None:
    """Create procrastinate's objects in ragpg_jobs and let staged documents be queued."""
    # The driver's own connection: SQLAlchemy would read % and : in function bodies.
    driver: Any = op.get_bind().connection.driver_connection
    before = driver.execute("select current_setting('search_path')").fetchone()[0]
    driver.execute("set local search_path = ragpg_jobs, pg_catalog")
    driver.execute(SchemaManager.get_schema())
    driver.execute("select set_config('search_path', %s, true)", [before])
    op.execute(SEAL)
    op.execute(QUEUED)


def downgrade() -> None:
    """Refuse."""
    raise NotImplementedError(FORWARD_ONLY)


# The queue knows no tenants, so nobody reads its tables: its functions run as the owner, with a
# path of their own, whoever calls them. The columns below are what a worker asks for by itself.
SEAL = """
do $$
declare
    routine regprocedure;
begin
    for routine in
        select proc.oid::regprocedure from pg_proc as proc
         where proc.pronamespace = 'ragpg_jobs'::regnamespace
    loop
        execute format(
            'alter function %s security definer set search_path = ragpg_jobs, pg_catalog, pg_temp',
            routine);
        execute format('revoke all on function %s from public', routine);
        execute format('grant execute on function %s to ragpg_app', routine);
    end loop;
end $$;
revoke all on schema ragpg_jobs from public;
grant usage on schema ragpg_jobs to ragpg_app;
grant select (id, queue_name, status, abort_requested) on ragpg_jobs.procrastinate_jobs to ragpg_app;
create index jobs_by_lock on ragpg_jobs.procrastinate_jobs (lock);
comment on index ragpg_jobs.jobs_by_lock is 'Whether a document has a job.';
"""

QUEUED = """
alter table ragpg.staged_document
    drop constraint status_is_known,
    add constraint status_is_known check (status in ('queued', 'staged', 'failed', 'no_text')),
    add column queued_at timestamptz;
comment on table ragpg.staged_document is
    'A version that is not live: waiting, being worked on, failed, or without text. Publishing moves it to document.';
comment on column ragpg.staged_document.status is
    'queued (waits for a worker, for another try if there is a last_error), staged (in work), failed or no_text.';
comment on column ragpg.staged_document.queued_at is
    'When it was given to the workers; null while an ingest in a process of the caller holds it.';
comment on column ragpg.staged_document.attempts is
    'How often it was tried; counted before the work begins, so that a crash counts.';
comment on column ragpg.staged_document.last_error is
    'Why the last try failed; kept until one succeeds.';
"""
