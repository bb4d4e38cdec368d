"""Words of a text that a model without states of its tokens is asked about one by one.

Words are those of Unicode's text segmentation (UAX 29) as ICU does it: with dictionaries where
words stand side by side (Chinese, Japanese, Thai, Lao, Khmer, Burmese), by spaces elsewhere,
Korean among them. A word's vector is the one the model gives it as a text of its own, in lower
case: it has no context, and lies in the same space as sentences do, in whatever language.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
from icu4py.breakers import WordBreaker

from engine.arrays import Float32Array
from engine.embedding.plain import PASSAGE, PlainEmbedder
from engine.files import Mutex
from engine.types import Words
from engine.vectors import from_model, unit_rows

KEPT: Final = 1 << 15
"""Vectors of words that are kept, the last ones: 64 MiB of 512 numbers each."""


def word_spans(text: str) -> list[tuple[int, int]]:
    """The characters [start, end) of each word that has a letter or a digit, in order."""
    found: list[tuple[int, int]] = []
    start = 0
    for segment in WordBreaker(text, "root"):  # whose own spans count UTF-16
        end = start + len(segment)
        if any(map(str.isalnum, segment)):
            found.append((start, end))
        start = end
    return found


class SegmentedEmbedder(PlainEmbedder):
    """A `PlainEmbedder` that is a `WordEmbedder` too. `encode` makes texts' and words' vectors."""

    def __init__(
        self,
        name: str,
        dimension: int,
        encode: Callable[[list[str]], Any],
        *,
        fingerprint: str,
        max_tokens: int | None = PASSAGE,
    ) -> None:
        super().__init__(name, dimension, encode, fingerprint=fingerprint, max_tokens=max_tokens)
        self._known: dict[str, Float32Array] = {}
        self._lock = Mutex()

    @property
    def word_dimension(self) -> int | None:
        """See `WordEmbedder`."""
        return self.dimension

    def embed_with_words(
        self, texts: Sequence[str], *, query: bool
    ) -> tuple[Float32Array, list[Words]]:
        """See `WordEmbedder`."""
        matrix = self.embed_queries(texts) if query else self.embed_documents(texts)
        spans = [word_spans(text) for text in texts]
        words = [
            [text[start:end].lower() for start, end in own]
            for text, own in zip(texts, spans, strict=True)
        ]
        vectors = self._vectors(list(dict.fromkeys(word for own in words for word in own)))
        return matrix, [
            Words(
                np.array(places, np.int64).reshape(-1, 2),
                np.array([vectors[word] for word in own], np.float32).reshape(-1, self.dimension),
            )
            for places, own in zip(spans, words, strict=True)
        ]

    def _vectors(self, words: Sequence[str]) -> dict[str, Float32Array]:
        """The unit vectors of distinct words; those that were asked for lately are not embedded."""
        with self._lock:
            found = {word: self._known[word] for word in words if word in self._known}
        if new := [word for word in words if word not in found]:
            rows = from_model(self._encode(new), len(new), self.dimension, self.name)
            found |= zip(new, unit_rows(rows), strict=True)
        with self._lock:
            for word in words:
                self._known.pop(word, None)
                self._known[word] = found[word]
            for word in list(islice(self._known, max(0, len(self._known) - KEPT))):
                del self._known[word]
        return found
