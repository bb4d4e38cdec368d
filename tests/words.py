"""Embedders whose cosines can be computed by hand: word counts, made unit vectors."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import cast

import numpy as np

from engine.arrays import Float32Array
from engine.types import Words

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


class TokenEmbedder(WordEmbedder):
    """Word counts, and for every word a pseudo-random unit vector of its own, the same anywhere.

    `reply` may replace what it gives for texts, as another program's model would.
    """

    def __init__(
        self, dimension: int = 64, max_tokens: int | None = None, width: int | None = 16
    ) -> None:
        super().__init__(dimension, max_tokens)
        self.fingerprint = f"tokens-{dimension}-{max_tokens}"
        self.word_dimension = width
        self.worded: list[str] = []
        self.reply: Callable[[Float32Array, list[Words]], object] | None = None

    def embed_with_words(
        self, texts: Sequence[str], *, query: bool
    ) -> tuple[Float32Array, list[Words]]:
        if not query:
            self.worded += texts
        rows = self.embed_queries(texts) if query else self.embed_documents(texts)
        words = [self.words_of(text) for text in texts]
        if self.reply is None:
            return rows, words
        return cast(tuple[Float32Array, list[Words]], self.reply(rows, words))

    def words_of(self, text: str) -> Words:
        """The words with a letter or a digit, up to the window."""
        found = [m for m in _WORD.finditer(text) if any(map(str.isalnum, m.group()))]
        found = found[: self.max_tokens]
        width = self.word_dimension or 0
        rows = np.array([word_vector(m.group(), width) for m in found], np.float32)
        spans = np.array([m.span() for m in found], np.int64)
        return Words(spans.reshape(-1, 2), rows.reshape(-1, width))


@cache
def word_vector(word: str, width: int) -> Float32Array:
    """The unit vector of a word, in whatever case."""
    row = np.random.default_rng(zlib.crc32(word.lower().encode())).standard_normal(width)
    return (row / np.linalg.norm(row)).astype(np.float32)
