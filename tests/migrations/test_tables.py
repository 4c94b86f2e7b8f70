"""The published SQLAlchemy tables are those of the database."""

from __future__ import annotations

import psycopg
import pytest

from ragpg import tables


@pytest.mark.parametrize("name", sorted(table.name for table in tables.metadata.tables.values()))
def test_a_table_has_the_columns_types_and_nulls_of_the_database(owner: psycopg.Connection, name):
    rows = owner.execute(
        "select attname, format_type(atttypid, atttypmod), attnotnull from pg_attribute"
        " where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum",
        [f"ragpg.{name}"],
    ).fetchall()
    # The sketch is an inner matter of the dense arm.
    stored = [row for row in rows if row[0] != "sketch"]
    names = {
        "TEXT": "text", "INTEGER": "integer", "BIGINT": "bigint", "JSONB": "jsonb",
        "TEXT[]": "text[]", "INTEGER[]": "integer[]", "BYTEA": "bytea", "DATE": "date",
        "BOOLEAN": "boolean", "HALFVEC": "halfvec", "DOUBLE PRECISION": "double precision",
        "TIMESTAMP WITH TIME ZONE": "timestamp with time zone", "DOUBLE": "double precision",
    }  # fmt: skip
    from sqlalchemy.dialects import postgresql

    declared = [
        (
            column.name,
            names[column.type.compile(dialect=postgresql.dialect())],
            not column.nullable,
        )
        for column in tables.metadata.tables[f"ragpg.{name}"].columns
    ]
    assert declared == stored
