"""What is sent of vectors, read back by the server that takes them."""

from __future__ import annotations

import numpy as np
import pytest
from pgvector import HalfVector

from ragpg.database import Database
from ragpg.vectors import HalfVectors, storable
from tests.conftest import TestDatabase


@pytest.mark.anyio
@pytest.mark.parametrize("count", [0, 1, 3])
async def test_a_matrix_arrives_as_the_vectors_that_are_its_rows(
    database: TestDatabase, count: int
) -> None:
    rows = [[1.0, -0.5, 65504.0, 6e-8], [0.1, 0.2, 0.3, 2049.0], [-0.0, 0.0, 1e-3, 7.0]][:count]
    matrix = np.asarray(rows, dtype=np.float32).reshape(count, 4)
    door = Database(url=database.service_url)
    try:
        async with door.transaction(None) as conn:
            cursor = await conn.execute(
                "select %(matrix)b::halfvec[] = %(vectors)b::halfvec[],"
                " coalesce(cardinality(%(matrix)b::halfvec[]), 0)",
                {"matrix": HalfVectors(matrix), "vectors": [HalfVector(row) for row in rows]},
            )
            assert await cursor.fetchone() == (True, count)
    finally:
        await door.aclose()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ([float("nan"), 1.0], "returned a vector of NaN or infinity for text 1 of 3"),
        ([float("-inf"), 1.0], "returned a vector of NaN or infinity for text 1 of 3"),
        ([0.0, 0.0], "returned a vector of only zeros for text 1 of 3"),
        ([5e-8, 0.0], "returned a vector of a largest value of 5e-08 for text 1 of 3"),
        ([-65_505.0, 0.0], "returned a vector of a largest value of 65505 for text 1 of 3"),
        ([1.0], "returned a vector of length 1 instead of 2 for text 1 of 3"),
    ],
)
def test_the_first_vector_that_cannot_be_stored_is_named(wrong: list[float], why: str) -> None:
    assert storable([[1.0, 2.0], wrong, [0.0, 0.0]], count=3, dimensions=2) == why


def test_vectors_at_both_ends_of_half_precision_can_be_stored() -> None:
    matrix = storable([[6.1e-8, 0.0], [-65_504.0, 0.0]], count=2, dimensions=2)
    assert not isinstance(matrix, str)
    assert matrix.shape == (2, 2)
