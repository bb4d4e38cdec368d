"""An embedder whose word vectors, too, can be computed by hand."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np

from engine.arrays import Float32Array
from engine.types import Words
from engine.vectors import unit_rows
from tests.words import WordEmbedder

_WORD = re.compile(r"\w+")


class HandEmbedder(WordEmbedder):
    """Texts as `WordEmbedder`; a word is one direction of its own, and half of its first letter's.

    Two words that begin alike have the cosine 0.2, the same word 1, others 0.
    """

    @property
    def word_dimension(self) -> int | None:
        return self.dimension

    def embed_with_words(
        self, texts: Sequence[str], *, query: bool
    ) -> tuple[Float32Array, list[Words]]:
        rows = self.embed_queries(texts) if query else self.embed_documents(texts)
        return rows, [self._words(text) for text in texts]

    def _words(self, text: str) -> Words:
        found = list(_WORD.finditer(text))[: self.max_tokens]
        spans = np.array([match.span() for match in found], np.int64).reshape(-1, 2)
        rows = np.zeros((len(found), self.dimension), np.float32)
        for row, match in zip(rows, found, strict=True):
            word = match[0].lower()
            row[self._place(word)] += 1.0
            row[self._place(f"{word[0]} ")] += 0.5
        return Words(spans, unit_rows(rows))

    def _place(self, name: str) -> int:
        return zlib.crc32(name.encode()) % self.dimension
