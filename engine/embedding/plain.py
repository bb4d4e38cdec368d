"""What an embedder without a tokenizer of its own measures texts by: words, marks, ideographs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from engine.arrays import Float32Array
from engine.errors import InvalidInputError
from engine.vectors import from_model

PASSAGE: Final = 256
"""Tokens of a passage, where nothing else is asked for."""
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff"
_TOKEN = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+|[^\w\s]")


class PlainEmbedder:
    """An `Embedder` of any function from texts to vectors; safe where the function is.

    `encode` is given a list of texts and gives (n, dimension) numbers, `encode_query` the same for
    queries (None: the same function). `fingerprint` names all that shapes a vector: choose another
    whenever the vectors become others. Texts of more than `max_tokens` words, marks and ideographs
    are split into passages (None: never).
    """

    def __init__(
        self,
        name: str,
        dimension: int,
        encode: Callable[[list[str]], Any],
        *,
        fingerprint: str,
        encode_query: Callable[[list[str]], Any] | None = None,
        max_tokens: int | None = PASSAGE,
    ) -> None:
        if not name or not fingerprint or dimension < 1:
            raise InvalidInputError("an embedder needs a name, a fingerprint and a dimension")
        self.name = name
        self.dimension = dimension
        self.fingerprint = fingerprint
        self.max_tokens = max_tokens
        self._encode = encode
        self.symmetric = encode_query is None
        self._encode_query = encode if encode_query is None else encode_query

    def embed_documents(self, texts: Sequence[str]) -> Float32Array:
        return from_model(self._encode(list(texts)), len(texts), self.dimension, self.name)

    def embed_queries(self, texts: Sequence[str]) -> Float32Array:
        return from_model(self._encode_query(list(texts)), len(texts), self.dimension, self.name)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [sum(1 for _ in _TOKEN.finditer(text)) for text in texts]

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        return [found.span() for found in _TOKEN.finditer(text)]
