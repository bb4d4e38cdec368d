"""What one generation of the store holds, ready to be searched: base + deltas - dead.

A snapshot never changes; the next generation is another snapshot that shares what stayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from engine import vectors
from engine.arrays import BoolArray, Float32Array, IdArray
from engine.index.approximate import ApproximateIndex
from engine.index.contract import Candidates, VectorIndex, exact_top, merge
from engine.index.flat import FlatIndex
from engine.settings import Metric

_SINGLY = 4
"""So few queries are as soon answered one by one, without loading torch."""


@dataclass(frozen=True)
class Snapshot:
    """The published index `base`, rows committed since (`deltas`), and ids deleted since.

    The deltas' ids ascend from one to the next; each is more than twice as large as the next, so
    that many small commits are copied a few times each, not every time. `dead` (ascending) are
    ids of the base or of the deltas that must not be answered. `origin` is the record of the files
    that the base was read from: where that changes, so must the snapshot.
    """

    metric: Metric
    dimension: int
    generation: int
    base: VectorIndex
    deltas: tuple[VectorIndex, ...]
    dead: IdArray
    origin: object = None
    approximate: ApproximateIndex | None = None

    @classmethod
    def of(
        cls,
        base: VectorIndex,
        metric: Metric,
        generation: int,
        origin: object,
        approximate: ApproximateIndex | None = None,
    ) -> Snapshot:
        """The snapshot of an index just published or loaded, nothing changed since."""
        dimension = base.vectors.shape[1]
        nothing = np.empty(0, np.int64)
        return cls(metric, dimension, generation, base, (), nothing, origin, approximate)

    @property
    def parts(self) -> tuple[VectorIndex, ...]:
        """All that is searched."""
        return (self.base, *self.deltas)

    @property
    def last_id(self) -> int:
        """The greatest id held, dead or alive; 0 where there is none."""
        ids = self.parts[-1].ids
        return int(ids[-1]) if len(ids) else 0

    def advanced(
        self, generation: int, ids: IdArray, rows: Float32Array, dead: IdArray
    ) -> Snapshot:
        """The snapshot after more rows (ids above `last_id`) and more deletions."""
        deltas = self.deltas
        if len(ids):
            blocks, count = [(ids, rows)], len(ids)
            while deltas and len(deltas[-1].ids) <= 2 * count:
                *others, last = deltas
                deltas = tuple(others)
                blocks.insert(0, (last.ids, last.vectors))
                count += len(last.ids)
            deltas = (*deltas, FlatIndex.build(blocks, self.dimension))
        dead = np.union1d(self.dead, dead)
        return replace(self, generation=generation, deltas=deltas, dead=dead)

    def search(
        self,
        query: Float32Array,
        k: int,
        allowed: IdArray | None = None,
        *,
        exact: bool = False,
    ) -> Candidates:
        """The k nearest living rows; only those in `allowed` (ascending) if given.

        Of the base's rows it may miss some where there is an approximate index, unless `exact` or
        `allowed` is given.
        """
        found = []
        for number, index in enumerate(self.parts):
            keep = self._keep(number, index, allowed)
            approximate = self._approximate(index, allowed, exact)
            if approximate is not None:
                found += approximate.search(query[None], k, self.metric, keep)
            else:
                found.append(exact_top(index, query, k, self.metric, keep=keep))
        return found[0] if len(found) == 1 else merge(found, k)

    def search_many(
        self,
        queries: Float32Array,
        k: int,
        allowed: IdArray | None = None,
        *,
        exact: bool = False,
    ) -> list[Candidates]:
        """`search` for each row of `queries`; many are scored together by torch."""
        if len(queries) <= _SINGLY:
            return [self.search(query, k, allowed, exact=exact) for query in queries]
        from engine.index import batch

        parts: list[list[Candidates]] = []
        for number, index in enumerate(self.parts):
            keep = self._keep(number, index, allowed)
            approximate = self._approximate(index, allowed, exact)
            if approximate is not None:
                parts.append(approximate.search(queries, k, self.metric, keep))
                continue
            parts.append(batch.exact_many(index, queries, k, self.metric, keep=keep))
        return [merge(list(found), k) for found in zip(*parts, strict=True)]

    def vectors(self, ids: Sequence[int]) -> Float32Array:
        """The vectors of ids the snapshot holds, (len(ids), d), in that order."""
        wanted = np.asarray(ids, dtype=np.int64)
        rows = np.empty((len(wanted), self.dimension), np.float32)
        for index in self.parts:
            if len(index.ids):
                at = np.searchsorted(index.ids, wanted).clip(max=len(index.ids) - 1)
                mine = index.ids[at] == wanted
                rows[mine] = index.vectors[at[mine]]
        return rows

    def _approximate(
        self, index: VectorIndex, allowed: IdArray | None, exact: bool
    ) -> ApproximateIndex | None:
        return self.approximate if index is self.base and allowed is None and not exact else None

    @cached_property
    def _alive(self) -> list[BoolArray]:
        """Which rows of each part are not dead."""
        return [~vectors.mask_of(index.ids, self.dead) for index in self.parts]

    def _keep(self, number: int, index: VectorIndex, allowed: IdArray | None) -> BoolArray | None:
        """Which rows of a part may be answered; None for all."""
        if allowed is None:
            return self._alive[number] if len(self.dead) else None
        return vectors.mask_of(index.ids, np.setdiff1d(allowed, self.dead, assume_unique=True))
