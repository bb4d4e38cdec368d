"""A text's word vectors in few bytes: projected, int8 with a scale a word, and where each word is.

A word's vector x (unit) is kept as whole numbers a = round(127 x / max|x|) in [-127, 127] and the
scale 1 / |a|, so that a row read back has length 1. Once enough words are known they are first
projected on the principal directions P (D, WIDTH) of a sample, uncentred: the eigenvectors of
X'X with the greatest eigenvalues, which of all WIDTH directions keep the most of the words' inner
products (Eckart and Young, 1936). A row is laid out for the whole passage as
int8 (n, width), float16 (n,), uint32 (n,) starts, uint16 (n,) lengths, little-endian. A word of
more than 65,535 characters is kept as that many; one that lies in none of the directions is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.arrays import Float32Array, IdArray
from engine.errors import ModelError
from engine.types import Words
from engine.vectors import row_norms, unit_rows

Codes = NDArray[np.int8]
WIDTH: Final = 128
FIT_AT: Final = 20_000
"""So many words are known before the directions are fitted."""
FIT_ON: Final = 60_000
"""At most so many words they are fitted on."""
_LEVELS = 127.0
_EXTRA = 2 + 4 + 2
_LONGEST = (1 << 16) - 1
_BLOCK = 4096


class Packed(NamedTuple):
    """The word vectors of a passage as bytes, `width` whole numbers a word."""

    width: int
    data: bytes

    @property
    def size(self) -> int:
        """How many words they are."""
        return words_in(len(self.data), self.width)

    @property
    def is_sound(self) -> bool:
        """The bytes are a whole number of words."""
        return self.width > 0 and len(self.data) % (self.width + _EXTRA) == 0


def words_in(size: int, width: int) -> int:
    """How many words of a width so many bytes hold."""
    return size // (width + _EXTRA)


def pack(words: Words, directions: Float32Array | None) -> Packed:
    """Words as bytes, projected where there are directions (D, WIDTH)."""
    rows = words.vectors if directions is None else project(words.vectors, directions)
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    codes = np.rint(rows * (_LEVELS / np.where(largest > 0, largest, 1.0))).astype(np.int8)
    starts = words.spans[:, 0].astype("<u4")
    lengths = np.minimum(words.spans[:, 1] - words.spans[:, 0], _LONGEST).astype("<u2")
    parts = (codes, _scales(codes), starts, lengths)
    return Packed(rows.shape[1], b"".join(part.tobytes() for part in parts))


def unpack(*many: Packed) -> Words:
    """The words of passages of one width, end to end: spans (n, 2) and unit vectors (n, width)."""
    codes, scales, spans = _parts(many)
    rows = codes.astype(np.float32)
    rows *= scales[:, None]
    return Words(spans, rows)


def repack(packed: Packed, directions: Float32Array) -> Packed:
    """Words packed at full width, projected; those that are already stay as they are."""
    if packed.width == directions.shape[1]:
        return packed
    return pack(unpack(packed), directions)


def check_width(width: int, kept: int) -> None:
    """Raises `ModelError` where new word vectors cannot be compared with those that are kept."""
    if width != kept:
        raise ModelError(
            f"the model now gives word vectors of width {width}, and those of the store are of "
            f"width {kept}; make them anew (attendex tokens drop, tokens build)"
        )


def is_intact(packed: Packed, length: int) -> bool:
    """Whole words, each with the scale of its codes and within a text of `length` characters."""
    if not packed.is_sound:
        return False
    codes, scales, spans = _parts((packed,))
    starts, ends = spans.T
    within = (starts < ends) & (ends <= length)
    return bool(np.array_equal(scales, _scales(codes).astype(np.float32)) and within.all())


def project(rows: Float32Array, directions: Float32Array) -> Float32Array:
    """Unit rows (n, D) on directions (D, w), unit again or, orthogonal to all, zero: (n, w).

    Raises `ModelError` for rows of another width than D.
    """
    check_width(rows.shape[1], len(directions))
    projected = rows @ directions
    some = row_norms(projected) > 0
    projected[some] = unit_rows(projected[some])
    return projected


def fit(rows: Float32Array, width: int = WIDTH) -> Float32Array:
    """The `width` principal directions of unit rows (n, D), uncentred: (D, width), float32.

    A direction's sign is such that its greatest component is positive, so the same rows give the
    same directions everywhere.
    """
    products = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK].astype(np.float64)
        products += block.T @ block
    _, vectors = np.linalg.eigh(products)
    chosen = vectors[:, ::-1][:, :width]
    peaks = chosen[np.abs(chosen).argmax(axis=0), np.arange(chosen.shape[1])]
    return np.ascontiguousarray(chosen * np.where(peaks < 0, -1.0, 1.0), dtype=np.float32)


def _scales(codes: Codes) -> NDArray[np.float16]:
    lengths = np.sqrt(np.square(codes, dtype=np.int32).sum(axis=1, dtype=np.int64))
    return (1.0 / np.where(lengths > 0, lengths, 1.0)).astype("<f2")


def _parts(many: Sequence[Packed]) -> tuple[Codes, Float32Array, IdArray]:
    """Codes, scales and spans of all, end to end."""
    width = many[0].width
    codes, scales, spans = [], [], []
    for packed in many:
        n, data = packed.size, packed.data
        codes.append(np.frombuffer(data, np.int8, n * width).reshape(n, width))
        scales.append(np.frombuffer(data, "<f2", n, n * width))
        starts = np.frombuffer(data, "<u4", n, n * (width + 2)).astype(np.int64)
        lengths = np.frombuffer(data, "<u2", n, n * (width + 6))
        spans.append(np.stack([starts, starts + lengths], axis=1))
    return np.concatenate(codes), np.concatenate(scales).astype(np.float32), np.concatenate(spans)
