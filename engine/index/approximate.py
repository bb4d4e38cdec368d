"""Approximate kinds: FAISS proposes, the rows decide the order, and recall is measured.

Only a search without a filter is ever approximate: what a filter leaves is compared exactly. Rows
that were published after the approximate index was made are compared exactly too.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from engine.arrays import BoolArray, Float32Array, IdArray
from engine.errors import CorruptionError
from engine.index.contract import Candidates, Positions, VectorIndex, compare, exact_top, merge
from engine.index.native import FEW, NativeIndex
from engine.settings import Metric
from engine.types import Trial

_FEWEST_LIVING = 0.05
_MEASURED = 10
"""Widths and candidates are measured for so many answers; for more they grow in proportion."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A FAISS factory string, the width of its search (`efSearch` of a graph, `nprobe` of cells),
    and how many rows at least are proposed, to be compared by their vectors."""

    factory: str
    width: int
    candidates: int

    @classmethod
    def of(cls, trial: Trial) -> Self:
        """The plan that a trial measured."""
        return cls(trial.factory, trial.width, trial.candidates)


class ApproximateIndex:
    """Finds most of the nearest rows of `exact`, by an index made of those with `ids`.

    Some of these may be gone from `exact`, and rows of greater ids than all of them may have come.
    Where `held_out` marks the rows that it is not of, none of them is answered to a search without
    `keep`. Work memory: a number a row.
    """

    def __init__(
        self,
        exact: VectorIndex,
        native: NativeIndex,
        ids: IdArray,
        plan: Plan,
        held_out: BoolArray | None = None,
    ) -> None:
        if native.shape != (len(ids), exact.vectors.shape[1]):
            raise CorruptionError("the approximate index is not that of its rows")
        self.plan = plan
        self._exact = exact
        self._native = native
        self._rows = len(ids)
        self._places: Positions = np.full(self._rows + 1, -1)
        places = np.searchsorted(exact.ids, ids)
        places[places == len(exact.ids)] = -1
        if len(exact.ids):
            places[exact.ids[places] != ids] = -1
        self._places[:-1] = places  # FAISS's own -1, for no row, comes to -1 too
        self._living = float((places >= 0).mean()) if len(ids) else 0.0
        self._tail = len(exact.ids)
        if held_out is None:
            self._tail = int(np.searchsorted(exact.ids, ids.max(initial=0), side="right"))
        self._others = None if held_out is None else ~held_out

    @classmethod
    def load(
        cls,
        path: Path,
        exact: VectorIndex,
        ids: IdArray,
        plan: Plan,
        held_out: BoolArray | None = None,
    ) -> Self:
        """The index in a file, memory-mapped where FAISS can. Raises `CorruptionError`."""
        return cls(exact, NativeIndex.load(path), ids, plan, held_out)

    @property
    def candidates(self) -> Sequence[int]:
        """See `NativeIndex.candidates`."""
        return self._native.candidates

    def widths(self, candidates: int) -> Sequence[int]:
        """See `NativeIndex.widths`."""
        return self._native.widths(candidates)

    def with_plan(self, plan: Plan) -> ApproximateIndex:
        """The same index, searched otherwise."""
        other = copy(self)
        other.plan = plan
        return other

    def search(
        self, queries: Float32Array, k: int, metric: Metric, keep: BoolArray | None
    ) -> list[Candidates]:
        """About the k nearest rows to each of (m, d) queries, of those that `keep` marks.

        As many more are asked for as will turn out to be gone; where too few are left, every row
        is compared.
        """
        living = self._living
        if keep is not None and len(keep):
            living *= np.count_nonzero(keep) / len(keep)
        k = min(k, len(self._exact.ids))
        more = max(1.0, k / _MEASURED)
        wanted = int(max(k, self.plan.candidates * more) / max(living, _FEWEST_LIVING))
        wanted = min(wanted, self._rows)
        width = int(self.plan.width * more)
        refined = int(max(k, FEW * more) / max(living, _FEWEST_LIVING))
        found = self._native.propose(queries, width, wanted, refined)
        return [
            self._answer(query, self._places[row], k, metric, keep)
            for query, row in zip(queries, found, strict=True)
        ]

    def _answer(
        self,
        query: Float32Array,
        proposed: Positions,
        k: int,
        metric: Metric,
        keep: BoolArray | None,
    ) -> Candidates:
        rows = len(self._exact.ids)
        proposed = proposed[proposed >= 0]
        if keep is not None:
            proposed = proposed[keep[proposed]]
        if len(proposed) < min(k, self._tail):
            kept = self._others if keep is None else keep
            return exact_top(self._exact, query, k, metric, keep=kept)
        found = compare(self._exact, proposed, query, k, metric)
        if self._tail == rows:
            return found
        later = np.arange(rows) >= self._tail
        if keep is not None:
            later &= keep
        return merge([found, exact_top(self._exact, query, k, metric, keep=later)], k)
