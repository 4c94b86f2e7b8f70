"""Which servers are refused, and of what others are warned."""

from __future__ import annotations

import pytest

from ragpg.database.server_checks import judge_server, pgvector_warnings
from ragpg.errors import ConfigurationError


def test_an_old_pgvector_is_named_with_its_fault():
    old = pgvector_warnings("0.8.0")
    assert old == (
        (
            "pgvector 0.8.0 can overflow a buffer when it builds HNSW indexes in parallel (before"
            " 0.8.2); update the extension"
        ),
        (
            "pgvector 0.8.0 can break an HNSW index when it is vacuumed (before 0.8.4); update the"
            " extension"
        ),
    )
    assert len(pgvector_warnings("0.8.3")) == 1
    assert pgvector_warnings("0.8.4") == pgvector_warnings("0.10") == ()


@pytest.mark.parametrize(
    ("server", "pgvector", "sentence"),
    [
        (140022, "0.8.5", "the server is PostgreSQL 14, and ragpg needs 15 or later"),
        (150018, "0.7.4", "the database has pgvector 0.7.4, and ragpg needs 0.8 or later"),
    ],
)
def test_a_server_that_is_too_old_is_refused_with_what_is_needed(server, pgvector, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        judge_server(server, pgvector)


@pytest.mark.parametrize("server", [150000, 160014, 170009, 180004])
@pytest.mark.parametrize("pgvector", ["0.8.0", "0.10.0"])
def test_a_server_that_will_do_is_not_refused(server, pgvector):
    judge_server(server, pgvector)
