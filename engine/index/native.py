"""FAISS's own indexes: made of a factory string, kept in a file, searched as wide as asked.

FAISS ends the process over some strings; those known are refused here, before it sees them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from engine.arrays import Float32Array
from engine.errors import CorruptionError, InvalidInputError
from engine.index.contract import Positions
from engine.index.flat import mapped, read
from engine.vectors import row_norms

LINKS = 16
"""Links of a row in a graph (FAISS's M)."""
_BUILT_BY = 100
"""The width of the search for a row's links (efConstruction): at FAISS's own 40 a graph needs
twice the links for the same recall, and is searched a tenth longer."""
FEW = 16
"""Rows proposed where FAISS's own scores are those of the vectors, or were refined."""
_PIECE = 4
_CELLS = 4.0
_TRAINING = 1 << 18
_TRAINING_A_CELL = 64
"""More rows than so many, and than so many a cell, teach FAISS no more."""
_ROWS_A_BLOCK = 1 << 16
_EQUAL = 64
_ROWS_A_CELL = 39
"""Fewer rows a cell than FAISS wants to see for its training."""
_SMALL = 1e-9
_SEED = 1234
_LONGEST = 100
"""FAISS's parser recurses with the length of the string, past the end of the stack."""
_FEWEST_LINKS = {"HNSW": 2, "NSG": 8}
_GRAPH_SEARCH: Any = getattr(faiss, "SearchParametersHNSW")  # noqa: B009
_CELL_SEARCH: Any = getattr(faiss, "SearchParametersIVF")  # noqa: B009
_MOVED_SEARCH: Any = getattr(faiss, "SearchParametersPreTransform")  # noqa: B009
_REFINED_SEARCH: Any = getattr(faiss, "IndexRefineSearchParameters")  # noqa: B009
"""FAISS adds their keyword arguments at run time, of which its stubs know nothing."""
_CANDIDATES = (50, 200, 800)
"""Proposed where FAISS's own scores are rough."""
_GRAPH_WIDTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
Take = Callable[[Positions], Float32Array]
"""Gives the rows at ascending places."""


class NativeIndex:
    """A FAISS index by inner product whose row numbers are those of its rows, under whatever
    transforms and refinements."""

    def __init__(self, whole: Any) -> None:
        """Raises `InvalidInputError` for one that answers other ids or by another measure."""
        self.whole = whole
        self._wrappers: list[Any] = []
        part = whole
        while isinstance(part, faiss.IndexPreTransform | faiss.IndexRefine):
            self._wrappers.append(part)
            inner = part.base_index if isinstance(part, faiss.IndexRefine) else part.index
            part = faiss.downcast_index(inner)
        self._core: Any = part
        if isinstance(part, faiss.IndexIDMap | faiss.IndexIDMap2):
            raise InvalidInputError("it gives rows ids of its own (IDMap), and they have theirs")
        if part.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise InvalidInputError("it does not rank by inner products")

    @classmethod
    def load(cls, path: Path) -> NativeIndex:
        """The index in a file, memory-mapped where FAISS can. Raises `CorruptionError`."""
        try:
            return cls(mapped(path))
        except InvalidInputError as error:
            raise CorruptionError(f"the index {path} cannot be read: {error}") from error

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and dimension."""
        return int(self.whole.ntotal), int(self.whole.d)

    @property
    def is_rough(self) -> bool:
        """The scores it ranks by are not those of the vectors, so that more candidates find
        more."""
        own = faiss.IndexHNSWFlat | faiss.IndexFlat
        return bool(self._wrappers) or not isinstance(self._core, own)

    @property
    def candidates(self) -> Sequence[int]:
        """How many rows it is worth letting it propose: the rougher its scores, the more."""
        if not self.is_rough:
            return (FEW,)
        bytewise = isinstance(self._core, faiss.IndexHNSWSQ) and not self._wrappers
        return (FEW, 2 * FEW) if bytewise else _CANDIDATES

    def widths(self, candidates: int) -> Sequence[int]:
        """The widths worth trying for so many candidates, narrow to wide; 0 where it has none."""
        if isinstance(self._core, faiss.IndexHNSW):
            return [width for width in _GRAPH_WIDTHS if width >= min(candidates, _WIDTHS[-1])]
        if isinstance(self._core, faiss.IndexIVF):
            most = int(self._core.nlist)
            return (*(width for width in _WIDTHS if width < most), most)
        return (0,)

    def propose(
        self, queries: Float32Array, width: int, candidates: int, refined: int
    ) -> NDArray[np.int64]:
        """Row numbers (m, candidates) for (m, d) queries, -1 where there are none; where the index
        refines its candidates, the best `refined` of them."""
        count = candidates
        parameters = self._parameters(width, candidates)
        for wrapper in reversed(self._wrappers):
            if isinstance(wrapper, faiss.IndexRefine):
                count = min(refined, candidates)
                parameters = _REFINED_SEARCH(
                    k_factor=candidates / count, base_index_params=parameters
                )
            elif parameters is not None:
                parameters = _MOVED_SEARCH(index_params=parameters)
        found: NDArray[np.int64] = self.whole.search(queries, count, params=parameters)[1]
        if not self.grows:  # FAISS's NSG may answer a row twice
            for row in found:
                again = np.ones(len(row), np.bool_)
                again[np.unique(row, return_index=True)[1]] = False
                row[again] = -1
        return found

    def _parameters(self, width: int, candidates: int) -> Any:
        if isinstance(self._core, faiss.IndexHNSW):
            return _graph_search(max(width, candidates))
        if isinstance(self._core, faiss.IndexIVF):
            return _cell_search(min(width, int(self._core.nlist)))
        return None

    @property
    def grows(self) -> bool:
        """Rows can be added to those it has."""
        return not isinstance(self._core, faiss.IndexNSG | faiss.IndexNNDescent)

    def train(self, take: Take, places: Positions) -> None:
        """Train on the rows at some places, or on enough of them. Raises `RuntimeError`."""
        most = _TRAINING
        if isinstance(self._core, faiss.IndexHNSW):
            self._core.hnsw.efConstruction = _BUILT_BY
        if isinstance(self._core, faiss.IndexIVF):
            self._core.cp.seed = _SEED
            most = max(most, _TRAINING_A_CELL * int(self._core.nlist))
        for wrapper in self._wrappers:
            if isinstance(wrapper, faiss.IndexRefine):
                wrapper.refine_index.get_distance_computer()
        if len(places) > most:
            places = np.sort(np.random.default_rng(_SEED).choice(places, most, replace=False))
        if not self.whole.is_trained:
            self.whole.train(take(places))

    def add(self, take: Take, places: Positions) -> None:
        """Add the rows at some places, and try a search. Raises `RuntimeError`."""
        step = _ROWS_A_BLOCK if self.grows else max(1, len(places))
        for start in range(0, len(places), step):
            self.whole.add(take(places[start : start + step]))
        self.propose(take(places[:1]), 1, 1, 1)


@lru_cache(maxsize=64)
def _graph_search(width: int) -> Any:
    return _GRAPH_SEARCH(efSearch=width)


@lru_cache(maxsize=64)
def _cell_search(width: int) -> Any:
    return _CELL_SEARCH(nprobe=width)


def graphs() -> tuple[str, ...]:
    """HNSW over bytes, which are read in a quarter of the time, and over the vectors themselves,
    where bytes are too rough."""
    return f"HNSW{LINKS}_SQ8", f"HNSW{LINKS}"


def cells(rows: int, dimension: int) -> str:
    """IVF with product quantisation scanned in registers: about 4 sqrt(n) cells, four numbers to
    four bits. Of rows too few to train that, the vectors themselves, in fewer cells."""
    count = max(1, min(int(_CELLS * rows**0.5), rows // _ROWS_A_CELL))
    if dimension % _PIECE or rows < 16 * _ROWS_A_CELL:
        return f"IVF{count},Flat"
    return f"IVF{count},PQ{dimension // _PIECE}x4fs"


def made(factory: str, dimension: int) -> NativeIndex:
    """The empty index of a factory string.

    Raises `InvalidInputError` where FAISS makes none of it, or none that can be used.
    """
    try:
        _check(factory)
        return NativeIndex(faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT))
    except (RuntimeError, InvalidInputError) as error:
        raise _refusal(factory, error) from None


def build(factory: str, rows: Float32Array, places: Positions | None = None) -> NativeIndex:
    """An inner-product index of those of (n, d) rows at `places` (ascending; None: of all), the
    same for the same rows on one thread.

    Rows whose squares float32 cannot hold are made shorter, all alike: the order of inner products
    stays, and FAISS would end the process where its training meets infinity. Raises
    `InvalidInputError` where FAISS makes none of that string, or not of so few rows.
    """
    index, take = made(factory, rows.shape[1]), _taking(rows)
    places = np.arange(len(rows)) if places is None else places
    if not index.grows:
        _check_equal(factory, rows[places])
    try:
        index.train(take, places)
        index.add(take, places)
    except RuntimeError as error:
        raise _refusal(factory, error) from None
    return index


def extended(factory: str, path: Path, rows: Float32Array, places: Positions) -> NativeIndex | None:
    """The index in a file, which was built of others of the (n, d) rows, with those at `places`
    added; None for one that takes no more.

    Raises `InvalidInputError`, `CorruptionError`.
    """
    index = NativeIndex(read(path))
    if not index.grows:
        return None
    try:
        index.add(_taking(rows), places)
    except RuntimeError as error:
        raise _refusal(factory, error) from None
    return index


def as_they_are(longest: float) -> bool:
    """Rows of which that is the longest are given to FAISS as they are (see `build`)."""
    return longest == 0 or _SMALL < longest < 1 / _SMALL


def _taking(rows: Float32Array) -> Take:
    """What gives the rows at some places, short enough for FAISS (see `build`)."""
    longest = float(row_norms(rows).max(initial=0.0))
    scale = None if as_they_are(longest) else longest

    def take(places: Positions) -> Float32Array:
        taken = rows if len(places) == len(rows) else rows[places]
        return taken if scale is None else (taken.astype(np.float64) / scale).astype(np.float32)

    return take


def save(index: NativeIndex, path: Path) -> None:
    """Write FAISS's file. Raises `OSError`."""
    try:
        faiss.write_index(index.whole, str(path))
    except RuntimeError as error:
        raise OSError("FAISS could not write it, the disk may be full") from error


def _check(factory: str) -> None:
    if not (factory.isascii() and factory.isprintable() and 0 < len(factory) <= _LONGEST):
        raise InvalidInputError(f"it must be of 1 to {_LONGEST} characters of ASCII")
    if re.search(r"(?<!\d)0+(?!\d)", factory):
        raise InvalidInputError("no number in it may be 0")
    if re.search(r"\d{10}", factory):
        raise InvalidInputError("a number in it is too large")
    for kind, links in re.findall(r"(HNSW|NSG)(\d+)", factory):
        if int(links) < _FEWEST_LINKS[kind]:
            raise InvalidInputError(f"{kind} needs at least {_FEWEST_LINKS[kind]} links a row")


def _check_equal(factory: str, rows: Float32Array) -> None:
    """Raises `InvalidInputError` where FAISS's NSG would join equal rows for ever."""
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.itemsize * rows.shape[1])))
    most = int(np.unique(whole, return_counts=True)[1].max(initial=0))
    if most > _EQUAL:
        raise _refusal(factory, InvalidInputError(f"of {most} equal rows it never makes an end"))


def _refusal(factory: str, error: Exception) -> InvalidInputError:
    lines = str(error).splitlines() or [""]
    reason = re.sub(r"^(Error in .* at \S+:\d+: )?(Error: )?", "", lines[-1])
    reason = re.sub(r"^'.*?' failed:? *(?=.)", "", reason)
    return InvalidInputError(f"FAISS makes no index '{factory[:_LONGEST]}': {reason}")
