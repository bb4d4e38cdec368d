"""FAISS's flat index: every vector compared, memory-mapped from one file.

The file is FAISS's own `IndexIDMap` over `IndexFlatIP`, so any FAISS program can read it; its
ids are the passages' row ids. FAISS's padding of -1 stays in this file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self, cast

import faiss
import numpy as np

from engine import vectors
from engine.arrays import BoolArray, Float32Array, IdArray
from engine.errors import CorruptionError
from engine.index.contract import Positions

_HEADER = struct.Struct("<4siqqq?i")
_LENGTH = struct.Struct("<Q")
_UNUSED = 1 << 20


class FlatIndex:
    """A `VectorIndex` that compares the query with every vector."""

    def __init__(self, native: Any, longest: float) -> None:
        self._native = native
        self.longest = longest
        self.precise: FlatIndex | None = None
        self._flat = cast(Any, faiss.downcast_index(native.index))
        self.ids: IdArray = faiss.vector_to_array(native.id_map)
        n, d = int(native.ntotal), int(native.d)
        rows = faiss.rev_swig_ptr(self._flat.get_xb(), n * d) if n else np.empty(0, np.float32)
        self.vectors: Float32Array = rows.reshape(n, d)
        self.vectors.flags.writeable = False

    @classmethod
    def build(cls, blocks: Iterable[tuple[IdArray, Float32Array]], dimension: int) -> Self:
        """An index of the blocks' rows; ids must ascend through all of them."""
        native = faiss.IndexIDMap(faiss.IndexFlatIP(dimension))
        longest = 0.0
        for ids, rows in blocks:
            if len(ids):
                native.add_with_ids(np.ascontiguousarray(rows), ids)
                longest = max(longest, float(vectors.row_norms(rows).max()))
        return cls(native, longest)

    @classmethod
    def load(cls, path: Path, longest: float) -> Self:
        """The index in a file, memory-mapped. Check the file's checksum first.

        `longest` is the greatest length of a row, known since it was built.

        Raises `CorruptionError` where the file is no such index.
        """
        native = mapped(path)
        if not isinstance(native, faiss.IndexIDMap):
            raise CorruptionError(f"the index {path} is of another kind")
        loaded = cls(native, longest)
        if (loaded.ids[1:] <= loaded.ids[:-1]).any():
            raise CorruptionError(f"the index {path} is damaged: its ids do not ascend")
        return loaded

    def error(self, query: Float32Array) -> float:
        """See `VectorIndex.error`."""
        length = float(np.linalg.norm(query.astype(np.float64)))
        return vectors.float32_error(self.vectors.shape[1], length, self.longest)

    def nearest(
        self, query: Float32Array, k: int, keep: BoolArray | None
    ) -> tuple[Float32Array, Positions]:
        """See `VectorIndex.nearest`."""
        k = min(k, len(self.ids))
        parameters = None
        if keep is not None:
            parameters = only(keep)
        scores, positions = self._flat.search(query[None, :], k, params=parameters)
        found = positions[0] >= 0
        return scores[0][found], positions[0][found]


def write(
    path: Path, blocks: Iterable[tuple[IdArray, Float32Array]], count: int, dimension: int
) -> float:
    """Write the file of an index of `count` rows, block by block; returns its `longest`.

    Never more than a block in memory, which FAISS's own writer cannot: the bytes are its own
    (`IxMp` over `IxFI`, inner product). Raises `OSError`, and `CorruptionError` where there are
    not as many rows as the database counts.
    """
    longest, found = 0.0, []
    with path.open("wb") as file:
        file.write(header(b"IxMp", dimension, count) + header(b"IxFI", dimension, count))
        file.write(_LENGTH.pack(count * dimension))
        for ids, rows in blocks:
            if len(ids):
                file.write(rows.astype("<f4", copy=False).data)
                longest = max(longest, float(vectors.row_norms(rows).max()))
                found.append(ids)
        ids = np.concatenate(found) if found else np.empty(0, np.int64)
        file.write(_LENGTH.pack(count))
        file.write(ids.astype("<i8", copy=False).data)
    if len(ids) != count:
        raise CorruptionError(
            f"the database is damaged: it counts {count} passages and holds {len(ids)}; "
            "restore it from a backup, or save what can still be read (attendex recover)"
        )
    return longest


def mapped(path: Path) -> Any:
    """FAISS's index in a file, memory-mapped where FAISS can. Raises `CorruptionError`."""
    return read(path, faiss.IO_FLAG_MMAP_IFC)


def read(path: Path, flags: int = 0) -> Any:
    """FAISS's index in a file, in memory unless the flags say otherwise. Raises
    `CorruptionError`."""
    try:
        return faiss.read_index(str(path), flags)
    except RuntimeError as error:
        raise CorruptionError(f"the index {path} cannot be read") from error


def header(kind: bytes, dimension: int, count: int) -> bytes:
    """How FAISS's file of a trained inner-product index of that kind begins."""
    return _HEADER.pack(kind, dimension, count, _UNUSED, _UNUSED, True, faiss.METRIC_INNER_PRODUCT)


def only(keep: BoolArray) -> Any:
    """Search parameters that answer the marked positions alone.

    FAISS adds keyword arguments and array overloads at run time, of which its stubs know nothing.
    """
    selector: Any = faiss.IDSelectorBitmap
    parameters: Any = faiss.SearchParameters
    return parameters(sel=selector(np.packbits(keep, bitorder="little")))
