"""What every runtime of a transformer model shares: measuring, batching, and words from tokens.

A runtime gives the pooled vectors of some texts, or these and the states of their tokens; the rest
is here, so that the same model gives the same words whichever runtime it runs in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from tokenizers import Encoding, Tokenizer

from engine.arrays import Float32Array, IdArray
from engine.embedding.exports import Shape
from engine.errors import ModelError
from engine.files import Mutex
from engine.types import Words
from engine.vectors import unit_rows

Row = TypeVar("Row")
_SPECIAL = 2
_NO_WORDS = Words(np.empty((0, 2), np.int64), np.empty((0, 0), np.float32))


def length_batches(counts: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Positions in batches of like count, longest first: size x longest count <= budget."""
    order = sorted(range(len(counts)), key=counts.__getitem__, reverse=True)
    start = 0
    while start < len(order):
        size = max(1, budget // (counts[order[start]] + _SPECIAL))
        yield order[start : start + size]
        start += size


def closing_tokens(tokenizer: Tokenizer) -> int:
    """How many special tokens end every text."""
    ends = tokenizer.encode("a").special_tokens_mask
    return len(ends) - len("".join(map(str, ends)).rstrip("1"))


class TokenizedEmbedder(ABC):
    """An `Embedder` and `WordEmbedder` over a runtime; safe to share between threads.

    `tokenizer` neither cuts nor pads. `budget` is how many tokens, padding included, go through
    the model at once.
    """

    def __init__(
        self, name: str, fingerprint: str, tokenizer: Tokenizer, shape: Shape, budget: int
    ) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self.tokenizer = tokenizer
        self.shape = shape
        self.dimension = shape.dimension
        self.max_tokens = shape.max_tokens
        self.symmetric = shape.query_prompt == shape.document_prompt
        self._budget = budget
        self._lock = Mutex()

    @property
    @abstractmethod
    def runtime(self) -> str:
        """What runs the model, for a person."""

    @abstractmethod
    def _pooled(self, texts: list[str], *, query: bool) -> list[Float32Array]:
        """The vector (d,) of each text, in one pass."""

    @abstractmethod
    def _states(self, texts: list[str], *, query: bool) -> list[tuple[Float32Array, Float32Array]]:
        """The vector of each text and the states of its tokens (length, D), padding included."""

    @abstractmethod
    def _table(self, ids: IdArray) -> Float32Array | None:
        """The model's input embeddings (n, w) of pieces (n,); None where it has no table."""

    @property
    def word_dimension(self) -> int | None:
        """See `WordEmbedder`; None for models without states of their tokens, as static ones."""
        return self.shape.word_dimension

    def embed_documents(self, texts: Sequence[str]) -> Float32Array:
        return self._embed(texts, query=False)

    def embed_queries(self, texts: Sequence[str]) -> Float32Array:
        return self._embed(texts, query=True)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        encoded = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(one) for one in encoded]

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).offsets)

    def table_rows(self, words: Sequence[str]) -> Float32Array | None:
        """See `WordTable`."""
        encoded = self.tokenizer.encode_batch_fast(list(words), add_special_tokens=False)
        counts = np.array([len(one) for one in encoded], np.int64)
        ids = np.array([piece for one in encoded for piece in one.ids], np.int64)
        rows = self._table(ids) if len(ids) else None
        if rows is None:
            return None
        summed = np.zeros((len(words), rows.shape[1]), np.float32)
        np.add.at(summed, np.repeat(np.arange(len(words)), counts), rows)
        return (summed / np.maximum(counts, 1)[:, None]).astype(np.float32)

    def embed_with_words(
        self, texts: Sequence[str], *, query: bool
    ) -> tuple[Float32Array, list[Words]]:
        """See `WordEmbedder`."""
        prompt = self.shape.query_prompt if query else self.shape.document_prompt
        encodings = self.tokenizer.encode_batch([prompt + text for text in texts])
        counts = [len(one) for one in encodings]
        matrix = np.empty((len(texts), self.dimension), np.float32)
        words: list[Words] = [_NO_WORDS] * len(texts)
        for batch in length_batches(counts, self._budget):
            found = self._guarded(
                lambda some: self._states(some, query=query), [texts[n] for n in batch]
            )
            for number, (vector, states) in zip(batch, found, strict=True):
                matrix[number] = vector
                count = counts[number]
                own = states[-count:] if self.shape.pads_left else states[:count]
                words[number] = self._words(texts[number], len(prompt), encodings[number], own)
        return matrix, words

    def _words(self, text: str, skipped: int, encoding: Encoding, states: Float32Array) -> Words:
        """The words of a text behind a prompt of `skipped` characters, from its tokens' states."""
        spans: list[tuple[int, int]] = []
        pieces: list[int] = []
        offsets, numbers = encoding.offsets, encoding.word_ids
        last = len(states) - self.shape.closing
        at = 0
        while at < last:
            word, first = numbers[at], at
            at += 1
            while at < last and numbers[at] == word:
                at += 1
            start, end = offsets[first][0] - skipped, offsets[at - 1][1] - skipped
            shown = text[max(0, start) : end]
            if word is None or start < 0 or not any(map(str.isalnum, shown)):
                continue
            start += len(shown) - len(shown.lstrip())
            spans.append((start, start + len(shown.strip())))
            pieces += (first, at)
        if not spans:
            return Words(np.empty((0, 2), np.int64), states[:0])
        padded = np.concatenate([states, states[:1]])
        summed = np.add.reduceat(padded, pieces)[::2]
        return Words(np.array(spans, dtype=np.int64), unit_rows(summed))

    def _embed(self, texts: Sequence[str], *, query: bool) -> Float32Array:
        """Texts of like length together, so that little is spent on padding."""
        if not texts:
            return np.empty((0, self.dimension), np.float32)
        vectors: list[Float32Array | None] = [None] * len(texts)
        for batch in length_batches(self.count_tokens(texts), self._budget):
            rows = self._guarded(
                lambda some: self._pooled(some, query=query), [texts[n] for n in batch]
            )
            for number, row in zip(batch, rows, strict=True):
                vectors[number] = row
        return np.array(vectors, dtype=np.float32)

    def _guarded(self, run: Callable[[list[str]], list[Row]], texts: list[str]) -> list[Row]:
        """One pass of the model; a batch that does not fit into memory is halved."""
        try:
            with self._lock:
                return run(texts)
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise ModelError(f"the model {self.name} failed: {error}") from error
            if len(texts) == 1:
                raise ModelError(f"not enough memory to embed one text: {error}") from error
        half = len(texts) // 2
        return self._guarded(run, texts[:half]) + self._guarded(run, texts[half:])


def _is_out_of_memory(error: BaseException) -> bool:
    said = str(error).lower()
    known = ("out of memory", "can't allocate", "failed to allocate", "bad_alloc")
    return isinstance(error, MemoryError) or any(part in said for part in known)
