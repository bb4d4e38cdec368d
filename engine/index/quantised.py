"""An int8 copy of the rows, a quarter of their size: FAISS scans it, the rows themselves decide.

A row x is kept as whole numbers a_i = round(s x_i) in [-127, 127], one s for all rows; a query q
is rounded likewise to b, with a scale t of its own. No row lies further than `residual` from its
copy (measured when that is made), and how far the query lies from its own is measured too, so by
Cauchy-Schwarz

    |q.x - a.b / (s t)| <= |q| |x - a/s| + |q - b/t| |a/s| <= |q| residual + |q - b/t| longest / s,

and `exact_top` needs no more than that to prove its answer. The products of whole numbers are
exact in float32 up to 1,040 dimensions, whichever way FAISS takes; past that its rounding is added.
The file is FAISS's own `IndexScalarQuantizer` (`QT_8bit_direct_signed`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np

from engine import vectors
from engine.arrays import BoolArray, Float32Array, Float64Array, IdArray
from engine.errors import CorruptionError
from engine.index.contract import Positions
from engine.index.flat import FlatIndex, header, mapped, only

SMALLEST = 8192
"""Of fewer rows no copy is made: the rows themselves are scanned as soon."""
_ROWS_A_THREAD = 1 << 17
_LEVELS = 127.0
_EXACT = 2.0**24
_ROUNDING = 2.0**-22
"""More than what the steps in float64, and the score's way to float32, can add."""
_LEAST = 2.0**-149
"""What float32 loses of the smallest numbers."""
_QUANTISER = struct.Struct("<iifQQQQ")
_DIRECT_SIGNED = 8
_ROWS_A_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Bounds:
    """What proves an answer: the scale s, the greatest |x - a/s| and the greatest |a|."""

    scale: float
    residual: float
    longest: float


class QuantisedIndex:
    """A `VectorIndex` over the rows of another, found by their int8 copy."""

    def __init__(self, rows: FlatIndex, native: Any, bounds: Bounds) -> None:
        self.precise = rows
        self.ids: IdArray = rows.ids
        self.vectors: Float32Array = rows.vectors
        self.longest = rows.longest
        self._native = native
        self._bounds = bounds
        threads = max(1, min(os.cpu_count() or 1, len(self.ids) // _ROWS_A_THREAD))
        self._cuts = np.linspace(0, len(self.ids), threads + 1, dtype=np.int64).tolist()

    @classmethod
    def load(cls, path: Path, rows: FlatIndex, bounds: Bounds) -> Self:
        """The copy of `rows` in a file, memory-mapped. Raises `CorruptionError` for another."""
        native = mapped(path)
        shape = (getattr(native, "ntotal", None), getattr(native, "d", None))
        if not isinstance(native, faiss.IndexScalarQuantizer) or shape != rows.vectors.shape:
            raise CorruptionError(f"the index {path} is of another kind")
        return cls(rows, native, bounds)

    def error(self, query: Float32Array) -> float:
        """See `VectorIndex.error`."""
        bounds, (whole, t) = self._bounds, _rounded(query)
        wide = query.astype(np.float64)
        length, lost = float(np.linalg.norm(wide)), float(np.linalg.norm(wide - whole / t))
        summed = 0.0
        if len(query) * _LEVELS**2 >= _EXACT:
            summed = vectors.float32_error(len(query), float(np.linalg.norm(whole)), bounds.longest)
        own = length * bounds.residual + (lost + summed / t) * bounds.longest / bounds.scale
        return own * (1 + _ROUNDING) + length * self.longest * _ROUNDING + _LEAST

    def nearest(
        self, query: Float32Array, k: int, keep: BoolArray | None
    ) -> tuple[Float32Array, Positions]:
        """See `VectorIndex.nearest`. Large copies are scanned by several threads."""
        k = min(k, len(self.ids))
        whole, t = _rounded(query)
        rounded = whole.astype(np.float32)
        parts = list(pairwise(self._cuts))
        if len(parts) == 1:
            scores, positions = self._scan(rounded, k, None if keep is None else only(keep))
        else:
            with ThreadPoolExecutor(len(parts)) as pool:
                jobs = [pool.submit(self._scan, rounded, k, _within(*part, keep)) for part in parts]
                found = [job.result() for job in jobs]
            scores = np.concatenate([part[0] for part in found])
            positions = np.concatenate([part[1] for part in found])
            best = np.argsort(-scores, kind="stable")[:k]
            scores, positions = scores[best], positions[best]
        with np.errstate(over="ignore"):
            true = scores.astype(np.float64) / (self._bounds.scale * t)
            return true.astype(np.float32), positions

    def _scan(self, query: Float32Array, k: int, parameters: Any) -> tuple[Float32Array, Positions]:
        scores, positions = self._native.search(query[None, :], k, params=parameters)
        found = positions[0] >= 0
        return scores[0][found], positions[0][found]


def _rounded(query: Float32Array) -> tuple[Float64Array, float]:
    """The whole numbers b nearest to t times the query, and t."""
    largest = float(np.abs(query).max(initial=0.0))
    t = _LEVELS / largest if largest > 0 else 1.0
    return np.rint(query.astype(np.float64) * t), t


def write(path: Path, rows: Float32Array) -> Bounds:
    """Write the file of the copy of (n, d) rows, block by block. Raises `OSError`."""
    n, d = rows.shape
    largest = max((float(np.abs(block).max()) for block in _blocks(rows)), default=0.0)
    scale = _LEVELS / largest if largest > 0 else 1.0
    residual = longest = 0.0
    with path.open("wb") as file:
        file.write(header(b"IxSQ", d, n))
        file.write(_QUANTISER.pack(_DIRECT_SIGNED, 0, 0.0, d, d, 0, n * d))
        for block in _blocks(rows):
            wide = block.astype(np.float64)
            whole = np.rint(wide * scale)
            lost = wide - whole / scale
            residual = max(residual, _longest(lost))
            longest = max(longest, _longest(whole))
            file.write((whole + 128).astype(np.uint8).data)
    return Bounds(scale, residual, longest)


def _blocks(rows: Float32Array) -> Iterator[Float32Array]:
    for start in range(0, len(rows), _ROWS_A_BLOCK):
        yield rows[start : start + _ROWS_A_BLOCK]


def _longest(rows: Float64Array) -> float:
    return float(np.sqrt(np.einsum("ij,ij->i", rows, rows).max()))


def _within(start: int, stop: int, keep: BoolArray | None) -> Any:
    """Search parameters that answer positions [start, stop) alone, and of those the marked."""
    if keep is not None:
        part = np.zeros_like(keep)
        part[start:stop] = keep[start:stop]
        return only(part)
    selector: Any = faiss.IDSelectorRange
    parameters: Any = faiss.SearchParameters
    return parameters(sel=selector(start, stop))
