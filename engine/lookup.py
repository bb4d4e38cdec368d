"""The texts of queries made vectors: by the model only where nothing is known of them.

A text that a passage holds has that passage's vector and words, where the model treats queries and
documents alike. What is embedded before the model is warm is kept for the next process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from engine import senses, words
from engine.embedding import remembered
from engine.embedding.base import Embedder, gives_words
from engine.embedding.remembered import Embedded
from engine.embedding.words import with_words
from engine.storage.store import Store
from engine.text import unicode
from engine.types import Words
from engine.vectors import from_model

_MOST_REMEMBERED = 4
"""Texts of one call that are kept for the next process: a person asks few."""


class Model(Protocol):
    """A model that is loaded when it is first needed."""

    @property
    def given(self) -> str:
        """Its name, as it was given."""

    @property
    def is_loaded(self) -> bool:
        """The model is there already."""

    def load(self) -> Embedder:
        """The model, ready to embed. Raises `ModelError`s."""


class TextVectors:
    """What is known of the texts of queries to a store, its model being the last to be asked."""

    def __init__(self, store: Store, model: Model) -> None:
        self._store = store
        self._model = model

    @property
    def load(self) -> Callable[[], Embedder]:
        """Gives the model, which is loaded when this is first called."""
        return self._model.load

    def of(self, texts: Sequence[str], context: str | None) -> list[Embedded]:
        """What the model makes of composed texts, in a context if one is given.

        Raises `ModelError`.
        """
        found = self._stored(texts) if context is None else {}
        missing = [text for text in dict.fromkeys(texts) if text not in found]
        cold = not self._model.is_loaded and len(missing) <= _MOST_REMEMBERED
        paths = {text: self._path(text, context) for text in missing} if cold else {}
        for text, path in paths.items():
            if (one := remembered.read(path, self._store.settings.dimension)) is not None:
                found[text] = one
        missing = [text for text in missing if text not in found]
        made = self._embedded(missing, context) if missing else []
        for text, one in zip(missing, made, strict=True):
            found[text] = one
            if cold:
                remembered.write(paths[text], one)
        return [found[text] for text in texts]

    def _path(self, text: str, context: str | None) -> Path:
        settings = self._store.settings
        return remembered.path_of(
            self._model.given, settings.fingerprint, text, context, words=settings.tokens
        )

    def _stored(self, texts: Sequence[str]) -> dict[str, Embedded]:
        """What the passages have whose texts these are."""
        settings = self._store.settings
        if not settings.symmetric:
            return {}
        hashes = {unicode.digest(text.encode()): text for text in texts}
        with self._store.reading() as view:
            held = view.embedded(hashes, whole=True)
        found = {}
        for content_hash, (vector, packed) in held.items():
            if packed is not None or not settings.tokens:
                own = None if packed is None else words.unpack(packed)
                found[hashes[content_hash]] = Embedded(vector, own, tokens=0, limit=None)
        return found

    def _embedded(self, texts: Sequence[str], context: str | None) -> list[Embedded]:
        embedder, settings = self._model.load(), self._store.settings
        own: Sequence[Words | None] = [None] * len(texts)
        able = gives_words(embedder) if settings.tokens else None
        if context is not None:
            around = unicode.composed(context)
            found = [senses.embed(embedder, text, around) for text in texts]
            rows: object = [vector[0] for vector, _ in found]
            own = [words for _, words in found] if settings.tokens else own
        elif able is None:
            rows = embedder.embed_queries(texts)
        else:
            rows, own = with_words(embedder, able, texts, query=True)
        matrix = from_model(rows, len(texts), settings.dimension, embedder.name)
        limit = embedder.max_tokens
        seen = texts if context is None else [f"{text}: {context}" for text in texts]
        counts = [0] * len(texts) if limit is None else embedder.count_tokens(seen)
        return [
            Embedded(row, words, count, limit)
            for row, words, count in zip(matrix, own, counts, strict=True)
        ]
