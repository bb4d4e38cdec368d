"""What every index kind promises, and the one way its answers become exact.

An index is immutable: a set of (id, vector) pairs, ids ascending. `nearest` may be off by `error`;
`exact_top` turns it into the answer of a float64 scan, with proof: it takes more candidates until
that bound shows that no other row can belong to the top k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine import vectors
from engine.arrays import BoolArray, Float32Array, Float64Array, IdArray
from engine.settings import Metric

Positions = NDArray[np.int64]
SLACK = 16
"""How many candidates more than k are taken at first."""
_GROWTH = 4
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_SPREAD = 8
_SCAN_SHARE = 4
_PRECISE_SHARE = 16
"""Where more than one in so many rows would be candidates, the scan is not worth it."""
DIRECT_SHARE = 64
"""Where a filter leaves no more than one in so many rows, those are compared without a scan."""


class VectorIndex(Protocol):
    """An immutable set of vectors that finds the nearest to a query."""

    @property
    def ids(self) -> IdArray:
        """(n,) int64, ascending, each once; not to be changed."""

    @property
    def vectors(self) -> Float32Array:
        """(n, d) float32, row i belonging to `ids[i]`; a read-only view."""

    @property
    def longest(self) -> float:
        """The greatest Euclidean length of a row; 0 where there is none."""

    @property
    def precise(self) -> VectorIndex | None:
        """The same rows with a smaller `error`, slower; None where this is the smallest."""

    def error(self, query: Float32Array) -> float:
        """How far a score that `nearest` gives to the query can be from the true one."""

    def nearest(
        self, query: Float32Array, k: int, keep: BoolArray | None
    ) -> tuple[Float32Array, Positions]:
        """The k rows of greatest inner product with a (d,) query, best first.

        `keep` (n,) says which rows may be answered. Returns float32 scores and row positions,
        both of the same length: min(k, rows kept), never padded.
        """


@dataclass(frozen=True, slots=True)
class Candidates:
    """The exact answer to one query: best first, ties by id. Both arrays have the same length."""

    ids: IdArray
    similarities: Float64Array


def exact_top(
    index: VectorIndex,
    query: Float32Array,
    k: int,
    metric: Metric,
    *,
    keep: BoolArray | None = None,
    first: tuple[Float32Array, Positions] | None = None,
) -> Candidates:
    """The k nearest rows by float64 inner product, ties by id: what a full scan would answer.

    `first` is what a float32 product finds for k + SLACK rows, where that is known.

    With E the error bound of the scores, a row outside the candidates has a score of at most the
    last candidate's, so a true one of at most that + E; k candidates have true scores of at least
    the k-th score - E. Once last < k-th - 2E, nothing was missed. Where too many rows lie within
    that bound, the more precise index is asked, and in the end every row is compared.
    """
    kept = len(index.ids) if keep is None else int(np.count_nonzero(keep))
    k = min(k, kept)
    if k == 0:
        return Candidates(np.empty(0, np.int64), np.empty(0, np.float64))
    length = float(np.linalg.norm(query.astype(np.float64)))
    few = kept * DIRECT_SHARE <= len(index.ids) or length * index.longest >= _FLOAT32_MAX
    start = index if first is None else index.precise or index
    wanted = k + SLACK if start.precise is None else _SPREAD * k + 2 * SLACK
    current: VectorIndex | None = None if few else start
    while current is not None:
        if wanted * (_SCAN_SHARE if current.precise is None else _PRECISE_SHARE) > kept:
            current = current.precise
            continue
        scores, positions = first or current.nearest(query, wanted, keep)
        first = None
        if not np.isfinite(scores).all():
            break
        found = proven(scores, positions, k, current.error(query))
        if found is not None:
            return compare(index, found, query, k, metric)
        wanted *= _GROWTH
    every = np.arange(len(index.ids)) if keep is None else np.flatnonzero(keep)
    return compare(index, every, query, k, metric)


def proven(scores: Float32Array, positions: Positions, k: int, error: float) -> Positions | None:
    """Of rows with scores, best first and off by `error` at most, those that hold the k nearest
    of all rows for certain (see `exact_top`); None where more rows are needed to tell."""
    needed = float(scores[k - 1]) - 2 * error
    return positions[scores >= needed] if float(scores[-1]) < needed else None


def compare(
    index: VectorIndex, positions: Positions, query: Float32Array, k: int, metric: Metric
) -> Candidates:
    """The best k of the rows at some positions, by float64 inner product, ties by id."""
    positions = np.sort(positions)
    whole = len(positions) == len(index.ids)
    rows = index.vectors if whole else index.vectors[positions]
    scores = vectors.similarities(rows, query, metric)
    ids = index.ids[positions]
    order = vectors.best_first(scores, ids)[:k]
    return Candidates(ids[order], scores[order])


def merge(parts: list[Candidates], k: int) -> Candidates:
    """The best k of several answers over disjoint rows."""
    ids = np.concatenate([part.ids for part in parts])
    scores = np.concatenate([part.similarities for part in parts])
    order = vectors.best_first(scores, ids)[:k]
    return Candidates(ids[order], scores[order])
