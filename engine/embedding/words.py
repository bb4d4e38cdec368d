"""Texts to vectors and word vectors, checked; packed in slices: full states of a batch would fill
memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.arrays import Float32Array
from engine.embedding.base import Embedder, WordEmbedder, gives_words
from engine.errors import InvalidInputError, ModelError
from engine.text.stopwords import content
from engine.types import Words
from engine.vectors import as_table, from_model, row_norms, unit_rows
from engine.words import Packed, pack

_CHARACTERS_A_SLICE = 1 << 17


def embed(
    embedder: Embedder, texts: Sequence[str], directions: Float32Array | None, *, words: bool
) -> tuple[object, list[Packed | None]]:
    """What the model gives for documents, and their packed words, where wanted and it gives them.

    One pass of the model gives both. Words without content are left out where there are others.
    Raises `ModelError`.
    """
    able = gives_words(embedder) if words else None
    if able is None:
        return embedder.embed_documents(texts), [None] * len(texts)
    matrix = np.empty((len(texts), embedder.dimension), np.float32)
    packed: list[Packed | None] = [None] * len(texts)
    for numbers in _slices(texts):
        given = [texts[n] for n in numbers]
        matrix[numbers], found = with_words(embedder, able, given, query=False)
        for number, one in zip(numbers, found, strict=True):
            packed[number] = pack(content(texts[number], one), directions)
    return matrix, packed


def with_words(
    embedder: Embedder, able: WordEmbedder, texts: Sequence[str], *, query: bool
) -> tuple[Float32Array, list[Words]]:
    """What `embedder`, `able` to, gives for texts: a new matrix (n, d), and each text's words.

    Words whose vector has no direction (zeros, NaN) are left out; the others are unit rows. Raises
    `ModelError` where the model gives anything but what `WordEmbedder` says.
    """
    rows, found = able.embed_with_words(texts, query=query)
    matrix = from_model(rows, len(texts), embedder.dimension, embedder.name)
    if len(found) != len(texts):
        raise ModelError(f"{embedder.name} gave the words of {len(found)} of {len(texts)} texts")
    return matrix, [
        _checked(one, text, able.word_dimension or 0, f"the words that {embedder.name} gave")
        for one, text in zip(found, texts, strict=True)
    ]


def _checked(words: Words, text: str, width: int, where: str) -> Words:
    if not len(words.spans) and not len(words.vectors):
        return Words(np.empty((0, 2), np.int64), np.empty((0, width), np.float32))
    try:
        spans = as_table(words.spans, where=where)
        table = as_table(words.vectors, where=where)
    except InvalidInputError as error:
        raise ModelError(str(error)) from error
    n = len(spans)
    if table.shape != (n, width) or spans.shape != (n, 2) or spans.dtype.kind == "f":
        raise ModelError(
            f"{where} are vectors of shape {table.shape} and spans of shape {spans.shape} "
            f"({spans.dtype}), and must be of ({n}, {width}) and ({n}, 2) whole numbers"
        )
    starts, ends = spans.T
    if (starts < 0).any() or (starts >= ends).any() or (ends > len(text)).any():
        raise ModelError(f"{where} are not all within the text {text[:40]!r}")
    with np.errstate(over="ignore"):
        rows: Float32Array = np.ascontiguousarray(table, dtype=np.float32)
    lengths = row_norms(rows)
    kept = np.isfinite(lengths) & (lengths > 0)
    return Words(spans[kept].astype(np.int64), unit_rows(rows[kept]))


def _slices(texts: Sequence[str]) -> list[list[int]]:
    """Positions of texts of like length together, some hundred thousand characters a slice."""
    slices: list[list[int]] = [[]]
    characters = 0
    for number in sorted(range(len(texts)), key=lambda n: len(texts[n]), reverse=True):
        characters += len(texts[number])
        if slices[-1] and characters > _CHARACTERS_A_SLICE:
            slices.append([])
            characters = len(texts[number])
        slices[-1].append(number)
    return slices
