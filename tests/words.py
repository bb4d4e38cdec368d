"""An embedder whose cosines can be computed by hand: word counts, made unit vectors."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np

from engine.types import Float32Array

_WORD = re.compile(r"\w+")


class WordEmbedder:
    """A text is the vector of its word counts; two texts' cosine is that of their counts.

    `embedded` keeps every text ever given to `embed_documents`, in order.
    """

    name = "words"

    def __init__(self, dimension: int = 512, max_tokens: int | None = None) -> None:
        self.dimension = dimension
        self.max_tokens = max_tokens
        self.fingerprint = f"words-{dimension}-{max_tokens}"
        self.embedded: list[str] = []

    def embed_documents(self, texts: Sequence[str]) -> Float32Array:
        self.embedded += texts
        return self._counts(texts)

    def embed_queries(self, texts: Sequence[str]) -> Float32Array:
        return self._counts(texts)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(self.token_spans(text)) for text in texts]

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        return [match.span() for match in _WORD.finditer(text)]

    def _counts(self, texts: Sequence[str]) -> Float32Array:
        rows = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in zip(rows, texts, strict=True):
            words = _WORD.findall(text.lower())[: self.max_tokens]
            for word in words:
                row[zlib.crc32(word.encode()) % self.dimension] += 1
        return rows
