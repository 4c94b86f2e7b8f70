"""Whether a server will do: its version, that of pgvector, and the locale of the database."""

from __future__ import annotations

import re

from ragpg.errors import ConfigurationError

# False where the locale is C: lower() and the text search parser then know A to Z alone.
KNOWS_LETTERS = "select lower('É') = 'é'"
OLDEST_SERVER = 150000
PGVECTOR_FAULTS = (
    ((0, 8, 2), "can overflow a buffer when it builds HNSW indexes in parallel (before 0.8.2)"),
    ((0, 8, 4), "can break an HNSW index when it is vacuumed (before 0.8.4)"),
)


def judge_server(version_number: int, pgvector: str) -> None:
    """Raise ConfigurationError if this server (`server_version_num`) or its pgvector is too old."""
    if version_number < OLDEST_SERVER:
        raise ConfigurationError(
            f"the server is PostgreSQL {version_number // 10000}, and ragpg needs 15 or later"
            " (tested with 15 to 18); use a newer server"
        )
    # Iterative scans came with 0.8.
    if _numbers(pgvector) < (0, 8):
        raise ConfigurationError(
            f"the database has pgvector {pgvector}, and ragpg needs 0.8 or later; install a newer"
            " one on the server, then `alter extension vector update`"
        )


def pgvector_warnings(version: str) -> tuple[str, ...]:
    """Why this version of pgvector should be replaced, a sentence each; from its changelog."""
    return tuple(
        f"pgvector {version} {fault}; update the extension"
        for mended_in, fault in PGVECTOR_FAULTS
        if _numbers(version) < mended_in
    )


def locale_warnings(*, knows_letters: bool | None) -> tuple[str, ...]:
    """Why the database's locale does harm, if KNOWS_LETTERS answered that it does."""
    if knows_letters:
        return ()
    return (
        (
            "the locale of this database knows no letters but A to Z, so École is not found by"
            " ÉCOLE, and such words are cut at these letters; make the database anew with a UTF-8"
            " locale such as C.UTF-8"
        ),
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
