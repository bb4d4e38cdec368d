"""The one numpy boundary: every vector that enters is checked and coerced here, once.

Past this room a matrix is float32, C-contiguous, finite, of the store's width and, for cosine,
of unit rows. Similarities that leave the engine are float64 inner products of those float32
rows: each product of two float32 numbers is exact in float64, so the only error is that of
summation, below 1e-13 for unit vectors of any width met here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.arrays import BoolArray, Float32Array, Float64Array, IdArray
from engine.errors import DimensionError, InvalidInputError, ModelError
from engine.settings import Metric

_BLOCK = 256
"""Rows at a time in float64: so many stay in the processor's cache."""
_NPY = b"\x93NUMPY"
_COLUMNS = 8192
_LITTLE = sys.byteorder == "little"


def _as_numbers(values: object, where: str) -> Float32Array:
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"they are of type {array.dtype}")
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, dtype=np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _no_numbers(where, error) from None


def _no_numbers(where: str, error: Exception) -> InvalidInputError:
    return InvalidInputError(f"{where} cannot be read as numbers: {error}")


def as_matrix(values: object, dimension: int, *, where: str) -> Float32Array:
    """`values` as a new or shared (n, dimension) float32 matrix; the caller's array is not changed.

    Raises `DimensionError` for another width, `InvalidInputError` for what is no numeric matrix.
    Values past float32's range become inf, to be refused by `unusable`.
    """
    array = _as_numbers(values, where)
    if array.ndim != 2:
        raise InvalidInputError(f"{where} must have two axes (rows, width), not {array.ndim}")
    check_width(array, dimension, where=where)
    return array


def as_table(values: object, *, where: str) -> NDArray[Any]:
    """`values` as a numeric array of two axes (rows, width), neither copied nor converted.

    Raises `InvalidInputError` for what is none.
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _no_numbers(where, error) from None
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise InvalidInputError(
            f"{where} must be numbers on two axes (rows, width), "
            f"not {array.dtype} of shape {array.shape}"
        )
    return array


def load_table(path: str) -> NDArray[Any]:
    """The matrix in a .npy file, memory-mapped. Raises `InvalidInputError`."""

    def refused(reason: str) -> InvalidInputError:
        return InvalidInputError(f"the vectors {path} cannot be read: {reason}")

    try:
        with open(path, "rb") as file:
            magic = file.read(len(_NPY))
    except OSError as error:
        raise refused(error.strerror or str(error)) from error
    if magic.startswith(b"PK"):
        raise refused("it is an archive of arrays; save them as one .npy")
    if magic != _NPY:
        raise refused("it is no .npy file")
    try:
        loaded = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # numpy evaluates the file's header, which may fail in any way
        told = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise refused(f"it is no whole .npy file of numbers ({told})") from None
    return as_table(loaded, where=f"the vectors {path}")


def check_width(table: NDArray[Any], dimension: int, *, where: str) -> None:
    """Raises `DimensionError` where the rows of (n, width) have another width."""
    if table.shape[1] != dimension:
        raise DimensionError(expected=dimension, actual=table.shape[1], where=where)


def as_vector(values: object, dimension: int, *, where: str) -> Float32Array:
    """`values` as a (dimension,) float32 vector; errors as `as_matrix`."""
    if type(values) is np.ndarray and values.dtype == np.float32 and values.shape == (dimension,):
        return values
    array = _as_numbers(values, where)
    if array.ndim != 1:
        raise InvalidInputError(f"{where} must have one axis, not {array.ndim}")
    if array.shape[0] != dimension:
        raise DimensionError(expected=dimension, actual=array.shape[0], where=where)
    return array


def from_model(values: object, rows: int, dimension: int, name: str) -> Float32Array:
    """A model's output as a new (rows, dimension) matrix; `ModelError` where it is none."""
    try:
        matrix = as_matrix(values, dimension, where=f"the output of {name}")
    except InvalidInputError as error:
        raise ModelError(str(error)) from error
    if len(matrix) != rows:
        raise ModelError(f"{name} gave {len(matrix)} vectors for {rows} texts")
    return matrix.copy()


def unusable(lengths: Float64Array, metric: Metric) -> dict[int, str]:
    """Row number -> why a row of that length (`row_norms`) cannot be compared: not finite or, for
    cosine, all zero. No float32 row is so long that its length overflows."""
    reasons = {int(i): "holds NaN or infinity" for i in np.flatnonzero(~np.isfinite(lengths))}
    if metric is Metric.COSINE:
        zero = np.flatnonzero(lengths == 0)
        reasons |= {int(i): "is all zeros and has no direction" for i in zero}
    return reasons


def prepare(matrix: Float32Array, metric: Metric) -> Float32Array:
    """The rows as the store keeps and compares them: unit rows for cosine, as given for ip."""
    return unit_rows(matrix) if metric is Metric.COSINE else matrix


def unit_rows(matrix: Float32Array) -> Float32Array:
    """Each row divided by its Euclidean length (taken in float64, so tiny rows survive); a row of
    zeros stays one."""
    units = matrix.copy()
    lengths = row_norms(matrix)
    lengths[lengths == 0] = 1.0
    _divide(units, lengths)
    return units


def prepare_usable(matrix: Float32Array, metric: Metric) -> dict[int, str]:
    """`prepare` the rows that can be compared, in place; returns why the others cannot be."""
    lengths = row_norms(matrix)
    faults = unusable(lengths, metric)
    if metric is Metric.COSINE:
        lengths[list(faults)] = 1.0
        _divide(matrix, lengths)
    return faults


def _divide(matrix: Float32Array, lengths: Float64Array) -> None:
    """Divide each row by its length, in place and in float64, block by block."""
    for start in range(0, len(matrix), _BLOCK):
        block = matrix[start : start + _BLOCK]
        block[...] = block / lengths[start : start + _BLOCK, None]


def similarities(rows: Float32Array, query: Float32Array, metric: Metric) -> Float64Array:
    """Float64 inner products of (n, d) rows with a (d,) query -> (n,); cosine in [-1, 1].

    Equal rows get bitwise equal values wherever they stand, so that ties are ties (`_products`).
    """
    wide = query.astype(np.float64)
    if len(rows) <= _BLOCK:
        out = _products(rows.astype(np.float64), wide)
    else:
        out = np.empty(len(rows), dtype=np.float64)
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK].astype(np.float64)
            out[start : start + _BLOCK] = _products(block, wide)
    if metric is Metric.COSINE:
        np.minimum(np.maximum(out, -1.0, out=out), 1.0, out=out)
    return out


def _products(block: Float64Array, other: Float64Array) -> Float64Array:
    """Inner product of each row with `other` (d,), or with its row of `other` (n, d).

    einsum sums every row by the same loop, which a BLAS product does not promise; but past 8,192
    columns it cuts them otherwise for one row than for several, so they are cut here.
    """
    form = "ij,j->i" if other.ndim == 1 else "ij,ij->i"
    if block.shape[1] <= _COLUMNS:
        whole: Float64Array = np.einsum(form, block, other)
        return whole
    total = np.zeros(len(block), np.float64)
    for start in range(0, block.shape[1], _COLUMNS):
        part = slice(start, start + _COLUMNS)
        total += np.einsum(form, block[:, part], other[..., part])
    return total


def best_first(scores: Float64Array, ids: IdArray) -> NDArray[np.intp]:
    """The order that sorts by score, highest first, and ties by id, lowest first."""
    return np.lexsort((ids, -scores))


def float32_error(dimension: int, query_norm: float, row_norm: float) -> float:
    """How far a float32 inner product, summed in any order, can lie from the true value.

    The standard bound gamma_n |x|.|y| with gamma_n = n u / (1 - n u), u = 2**-24 (Higham,
    Accuracy and Stability of Numerical Algorithms, 3.1), Cauchy-Schwarz, two roundings more, and
    for each product what it loses where it is too small for float32 (at most 2**-126).
    """
    n_u = (dimension + 2) * 2.0**-24
    return n_u / (1.0 - n_u) * query_norm * row_norm + dimension * 2.0**-126


def row_norms(matrix: Float32Array) -> Float64Array:
    """Euclidean length of each row, in float64, without a float64 copy of the matrix."""
    out = np.empty(len(matrix), dtype=np.float64)
    for start in range(0, len(matrix), _BLOCK):
        block = matrix[start : start + _BLOCK].astype(np.float64)
        out[start : start + _BLOCK] = np.sqrt(_products(block, block))
    return out


def to_blob(row: Float32Array) -> bytes:
    """A float32 row as little-endian bytes, four a number."""
    return row.tobytes() if _LITTLE else row.astype("<f4").tobytes()


def from_blobs(blobs: Sequence[bytes], dimension: int) -> Float32Array:
    """The rows of `to_blob`, shape (len(blobs), dimension); owns its memory."""
    joined: NDArray[Any] = np.frombuffer(bytearray().join(blobs), dtype="<f4")
    return joined.astype(np.float32, copy=False).reshape(len(blobs), dimension)


def mask_of(ids: IdArray, wanted: IdArray) -> BoolArray:
    """Which of the ascending `ids` are in `wanted`: a bool array of the shape of `ids`."""
    mask = np.zeros(len(ids), dtype=np.bool_)
    if len(ids) and len(wanted):
        at = np.searchsorted(ids, wanted)
        at[at == len(ids)] = 0
        mask[at[ids[at] == wanted]] = True
    return mask
