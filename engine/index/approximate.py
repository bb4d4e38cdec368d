"""Approximate kinds: FAISS proposes, the rows decide the order, and recall is measured.

Only a search without a filter is ever approximate: what a filter leaves is compared exactly. Rows
that were published after the approximate index was made are compared exactly too.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np

from engine.errors import CorruptionError, InvalidInputError
from engine.index.contract import Candidates, Positions, VectorIndex, compare, exact_top, merge
from engine.index.flat import mapped
from engine.settings import Metric
from engine.types import BoolArray, Float32Array, IdArray, Trial
from engine.vectors import row_norms

LINKS = 32
"""Links of a row in a graph (FAISS's M)."""
_PIECE = 4
_CELLS = 4.0
_ROWS_A_CELL = 39
"""Fewer rows a cell than FAISS wants to see for its training."""
_FEWEST_LIVING = 0.05
_SMALL = 1e-9
_MEASURED = 10
"""Widths and candidates are measured for so many answers; for more they grow in proportion."""
_SEED = 1234
_GRAPH_SEARCH: Any = getattr(faiss, "SearchParametersHNSW")  # noqa: B009
_CELL_SEARCH: Any = getattr(faiss, "SearchParametersIVF")  # noqa: B009
"""FAISS adds their keyword arguments at run time, of which its stubs know nothing."""
_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


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


def graph() -> str:
    """HNSW over the vectors themselves."""
    return f"HNSW{LINKS}"


def cells(rows: int, dimension: int) -> str:
    """IVF with product quantisation scanned in registers: about 4 sqrt(n) cells, four numbers to
    four bits. Of rows too few to train that, the vectors themselves, in fewer cells."""
    count = max(1, min(int(_CELLS * rows**0.5), rows // _ROWS_A_CELL))
    if dimension % _PIECE or rows < 16 * _ROWS_A_CELL:
        return f"IVF{count},Flat"
    return f"IVF{count},PQ{dimension // _PIECE}x4fs"


def build(factory: str, rows: Float32Array) -> Any:
    """A FAISS inner-product index of (n, d) rows, the same for the same rows on one thread.

    Rows whose squares float32 cannot hold are made shorter, all alike: the order of inner products
    stays, and FAISS would end the process where its training meets infinity. Raises
    `InvalidInputError` where FAISS makes none of that string, or not of so few rows.
    """
    try:
        made: Any = faiss.index_factory(rows.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
        _check(made, factory)
        if _is_cells(made):
            made.cp.seed = _SEED
        longest = float(row_norms(rows).max(initial=0.0))
        if longest and not _SMALL < longest < 1 / _SMALL:
            rows = (rows.astype(np.float64) / longest).astype(np.float32)
        made.train(rows)
        made.add(rows)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].removeprefix("Error: ")
        raise InvalidInputError(f"FAISS makes no index '{factory}': {reason}") from None
    return made


def save(native: Any, path: Path) -> None:
    """Write FAISS's file. Raises `OSError`."""
    try:
        faiss.write_index(native, str(path))
    except RuntimeError as error:
        raise OSError("FAISS could not write it, the disk may be full") from error


def _check(native: Any, factory: str) -> None:
    if not _is_graph(native) and not _is_cells(native):
        raise InvalidInputError(
            f"'{factory}' is neither a graph (HNSW…) nor cells (IVF…), whose width can be measured"
        )


def _is_graph(native: Any) -> bool:
    return isinstance(native, faiss.IndexHNSW)


def _is_cells(native: Any) -> bool:
    return isinstance(native, faiss.IndexIVF)


class ApproximateIndex:
    """Finds most of the nearest rows of `exact`, by an index made of those with `ids`.

    Some of these may be gone from `exact`, and rows of greater ids may have come. Work memory: a
    number a row.
    """

    def __init__(self, exact: VectorIndex, native: Any, ids: IdArray, plan: Plan) -> None:
        if native.ntotal != len(ids) or native.d != exact.vectors.shape[1]:
            raise CorruptionError("the approximate index is not that of its rows")
        self.plan = plan
        self._exact = exact
        self._native = native
        self._places: Positions = np.searchsorted(exact.ids, ids)
        self._places[self._places == len(exact.ids)] = -1
        if len(exact.ids):
            self._places[exact.ids[self._places] != ids] = -1
        self._living = float((self._places >= 0).mean()) if len(ids) else 0.0
        self._tail = int(np.searchsorted(exact.ids, ids[-1], side="right")) if len(ids) else 0

    @classmethod
    def load(cls, path: Path, exact: VectorIndex, ids: IdArray, plan: Plan) -> Self:
        """The index in a file, memory-mapped where FAISS can. Raises `CorruptionError`."""
        native = mapped(path)
        try:
            _check(native, plan.factory)
        except InvalidInputError as error:
            raise CorruptionError(f"the index {path} cannot be read") from error
        return cls(exact, native, ids, plan)

    @property
    def is_coarse(self) -> bool:
        """Its own scores are rough, so that more candidates find more."""
        return not _is_graph(self._native)

    def widths(self) -> Sequence[int]:
        """The widths worth trying, narrow to wide."""
        if _is_graph(self._native):
            return _WIDTHS[4:]
        most = int(self._native.nlist)
        return (*(width for width in _WIDTHS if width < most), most)

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
        rows = int(self._native.ntotal)
        living = self._living if keep is None or not rows else self._living * float(keep.mean())
        k = min(k, len(self._exact.ids))
        more = max(1.0, k / _MEASURED)
        wanted = int(max(k, self.plan.candidates * more) / max(living, _FEWEST_LIVING))
        wanted = min(wanted, rows)
        width = int(self.plan.width * more)
        if _is_graph(self._native):
            parameters = _GRAPH_SEARCH(efSearch=max(width, wanted))
        else:
            parameters = _CELL_SEARCH(nprobe=min(width, int(self._native.nlist)))
        found = self._native.search(queries, wanted, params=parameters)[1]
        return [
            self._answer(query, self._places[row[row >= 0]], k, metric, keep)
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
            return exact_top(self._exact, query, k, metric, keep=keep)
        found = compare(self._exact, proposed, query, k, metric)
        if self._tail == rows:
            return found
        later = np.arange(rows) >= self._tail
        if keep is not None:
            later &= keep
        return merge([found, exact_top(self._exact, query, k, metric, keep=later)], k)
