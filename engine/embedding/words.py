"""Texts to vectors and packed word vectors, in slices: full states of a batch would fill memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.embedding.base import Embedder, gives_words
from engine.errors import ModelError
from engine.text.stopwords import content
from engine.types import Float32Array
from engine.words import Packed, pack

_CHARACTERS_A_SLICE = 1 << 17


def embed(
    embedder: Embedder, texts: Sequence[str], directions: Float32Array | None, *, words: bool
) -> tuple[object, list[Packed | None]]:
    """What the model gives for documents, and their packed words, where wanted and it gives them.

    One pass of the model gives both. Words without content are left out where there are others;
    a text without words has None. Raises `ModelError`.
    """
    able = gives_words(embedder) if words else None
    if able is None:
        return embedder.embed_documents(texts), [None] * len(texts)
    matrix: Float32Array | None = None
    packed: list[Packed | None] = [None] * len(texts)
    for numbers in _slices(texts):
        rows, found = able.embed_with_words([texts[n] for n in numbers], query=False)
        if np.ndim(rows) != 2 or len(rows) != len(numbers) or len(found) != len(numbers):
            raise ModelError(
                f"the model {embedder.name} gave {len(rows)} vectors and the words of "
                f"{len(found)} texts for {len(numbers)} texts"
            )
        if matrix is None:
            matrix = np.empty((len(texts), np.shape(rows)[1]), np.float32)
        matrix[numbers] = rows
        for number, one in zip(numbers, found, strict=True):
            if len(one.spans):
                packed[number] = pack(content(texts[number], one), directions)
    return (embedder.embed_documents(texts) if matrix is None else matrix), packed


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
