"""What the engine asks of an embedding model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from engine.arrays import Float32Array
    from engine.types import Words


@runtime_checkable
class Embedder(Protocol):
    """Anything that turns texts into vectors of one width.

    Two embedders with the same `fingerprint` give the same vectors; a store refuses any other.
    Methods are called by one thread at a time or must be safe to share.
    """

    @property
    def name(self) -> str:
        """How messages call the model, and how it is found again: a hub name or a path."""

    @property
    def fingerprint(self) -> str:
        """Identity of all that shapes a vector: weights, tokenizer, pooling, prompts, length."""

    @property
    def dimension(self) -> int:
        """Width of every vector."""

    @property
    def max_tokens(self) -> int | None:
        """How many of a text's own tokens the model sees; None for no limit."""

    def embed_documents(self, texts: Sequence[str]) -> Float32Array:
        """Vectors of texts to be found, shape (len(texts), dimension), float32; a new array."""

    def embed_queries(self, texts: Sequence[str]) -> Float32Array:
        """Vectors of texts to search with; shape and dtype as `embed_documents`."""

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has, special tokens and prompts not counted."""

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        """The character span [start, end) of each of the text's tokens, in order."""


@runtime_checkable
class WordEmbedder(Protocol):
    """An embedder that also gives the vectors of a text's words, in their context."""

    @property
    def word_dimension(self) -> int | None:
        """Width of a word's vector; None where the model turns out to give none."""

    def embed_with_words(
        self, texts: Sequence[str], *, query: bool
    ) -> tuple[Float32Array, list[Words]]:
        """What `embed_queries` (or `embed_documents`) gives, and the words of each text.

        One pass of the model gives both. A word's vector is the mean of its pieces' last hidden
        states, made a unit vector; its span is not empty and lies within the text. Words without
        a letter or a digit are left out, and so is what lies past the model's window. `query`
        chooses the prompt.
        """


@runtime_checkable
class WordTable(Protocol):
    """An embedder that also knows words without any context, by a table of its own."""

    def table_rows(self, words: Sequence[str]) -> Float32Array | None:
        """A new row (n, w) for each word: the mean of its pieces' input embeddings, of any length,
        zero for a word without pieces; None where the model has no such table."""


def is_symmetric(embedder: Embedder) -> bool:
    """The embedder says, by an attribute `symmetric`, that it makes the same vector and words of
    a text whether it is a query or a document."""
    return getattr(embedder, "symmetric", False) is True


def gives_words(embedder: Embedder) -> WordEmbedder | None:
    """The embedder as one that gives word vectors; None where it does not."""
    if not isinstance(embedder, WordEmbedder):
        return None
    width = embedder.word_dimension
    return None if width is None or width < 1 else embedder
