"""Whether vectors can be stored, whoever made them, and how they are sent to be."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from psycopg import postgres
from psycopg.adapt import Dumper
from psycopg.pq import Format

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
    largest = np.abs(matrix).max(axis=1)
    fits = (largest >= HALF_MIN) & (largest <= HALF_MAX)
    if fits.all():
        return matrix
    place = int(fits.argmin())
    if not np.isfinite(largest[place]):
        return f"returned a vector of NaN or infinity for text {place} of {count}"
    kind = "only zeros" if largest[place] == 0 else f"a largest value of {largest[place]:g}"
    return f"returned a vector of {kind} for text {place} of {count}"


@dataclass(frozen=True, slots=True, eq=False)
class HalfVectors:
    """The rows of a matrix as the parameter `%b` of a statement that reads them as halfvec[].

    Written at once: one object and one dump a vector took 20 microseconds each.
    """

    matrix: Matrix


class HalfVectorsDumper(Dumper):
    """Writes an array of halfvec in the binary form of its `array_recv` and `halfvec_recv`."""

    format = Format.BINARY

    def dump(self, obj: HalfVectors) -> bytes:
        """Header, then length, dimensions, zero and big-endian halves of each vector."""
        types = postgres.types if self.connection is None else self.connection.adapters.types
        count, dimensions = obj.matrix.shape
        rows = np.zeros(
            count,
            dtype=[("bytes", ">i4"), ("dimensions", ">i2"), ("unused", ">i2"),
                   ("values", ">f2", (dimensions,))],
        )  # fmt: skip
        rows["bytes"], rows["dimensions"], rows["values"] = (
            4 + 2 * dimensions, dimensions, obj.matrix,
        )  # fmt: skip
        header = struct.pack("!iiIii", 1, 0, types["halfvec"].oid, count, 1)
        return header + rows.tobytes()
