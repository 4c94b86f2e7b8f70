"""Whether vectors can be stored: the one check that all of them pass, whoever made them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Largest finite value of IEEE 754 half precision, in which vectors are stored.
HALF_MAX = 65_504.0
# Smallest number above zero in it; a vector that stays below would be stored as zero.
HALF_MIN = 6e-8
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float32]]


def storable(vectors: Sequence[Sequence[float]], *, count: int, dimensions: int) -> Matrix | str:
    """The vectors as a float32 matrix of (count, dimensions), or what is wrong with the first.

    Wrong are another count, another length, NaN, infinity, zero, and numbers that half precision
    cannot hold. Places are counted from 0.
    """
    if len(vectors) != count:
        return f"returned {len(vectors)} vectors for {count} texts"
    for place, vector in enumerate(vectors):
        if len(vector) != dimensions:
            return (
                f"returned a vector of length {len(vector)} instead of {dimensions}"
                f" for text {place} of {count}"
            )
    matrix: Matrix = np.asarray(vectors, dtype=np.float32).reshape(count, dimensions)
    for place, row in enumerate(matrix):
        if not np.isfinite(row).all():
            return f"returned a vector of NaN or infinity for text {place} of {count}"
        largest = float(np.abs(row).max())
        if not HALF_MIN <= largest <= HALF_MAX:
            kind = "only zeros" if largest == 0 else f"a largest value of {largest:g}"
            return f"returned a vector of {kind} for text {place} of {count}"
    return matrix
