"""Runs the revisions, then applies every file of ragpg/sql/functions, in one transaction.

`ragpg.database.migrate` calls this with an open connection that holds the migration lock and acts as
ragpg_owner; there is no other way in.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection


def run(connection: Connection) -> None:
    """Bring the schema on this connection to the newest revision."""
    context.configure(
        connection=connection,
        version_table_schema="ragpg",
        transaction_per_migration=False,
    )
    context.run_migrations()


run(context.config.attributes["connection"])
