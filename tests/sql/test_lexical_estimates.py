"""What the planner expects of a collection among many tenants, since it decides how chunks are read."""

from __future__ import annotations

import pytest

from tests.sql.lexical_corpus import add, make_home


@pytest.mark.parametrize("table", ["lexeme_vector", "chunk", "embedding"])
def test_the_planner_expects_of_a_collection_its_average_and_not_the_share_of_a_share(owner, table):
    homes = [make_home(owner) for _ in range(20)]
    for home in homes:
        add(owner, home, [f"disk {number}" for number in range(20)])
    owner.execute(f"analyze ragpg.{table}")
    owner.execute("set plan_cache_mode = force_generic_plan")
    owner.execute(
        f"prepare held (integer, integer) as select from ragpg.{table}"
        " where tenant_id = $1 and collection_id = $2"
    )
    # One twentieth of 400 chunks; one twentieth of one twentieth would be one.
    top = owner.execute(
        f"explain execute held ({homes[3].tenant}, {homes[3].collection})"
    ).fetchone()[0]
    assert "rows=20 " in top
