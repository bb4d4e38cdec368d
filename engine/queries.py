"""Texts and vectors made queries: checked, embedded together, each with its own fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from engine import senses, vectors
from engine.embedding.bare import BareWord, bare_word
from engine.embedding.base import Embedder, gives_words
from engine.embedding.words import with_words
from engine.errors import InvalidInputError
from engine.settings import Metric
from engine.storage.records import StoreSettings
from engine.text import unicode
from engine.text.stopwords import content
from engine.types import Float32Array, SearchResult, Words


@dataclass(frozen=True, slots=True)
class Query:
    """One query ready to be searched: its unit (or raw, for ip) vector and what to say of it.

    `words` are those of the text that count, where the model gives them; `composed` is the text
    they are in; `bare` is the text as a word without context, where it is one. A query for a
    lexical search alone has a vector of no width.
    """

    vector: Float32Array
    text: str | None = None
    notes: tuple[str, ...] = ()
    words: Words | None = None
    bare: BareWord | None = None

    @property
    def composed(self) -> str:
        """The text as it was embedded."""
        return unicode.composed(self.text or "")


@dataclass(frozen=True, slots=True)
class Unanswerable:
    """One query of several that cannot be searched for, and why."""

    text: str | None
    fault: str


Asked = list[Query | Unanswerable]


def text_fault(text: object) -> str | None:
    """Why a text cannot be searched for, or None."""
    if not isinstance(text, str):
        return f"a query must be a text, not {type(text).__name__}"
    if unicode.is_blank(text):
        return "the query is empty; write the words to search for"
    if fault := unicode.fault(text):
        return f"the query cannot be used: {fault}"
    return None


def text_queries(
    texts: Sequence[object],
    embedder: Callable[[], Embedder] | None,
    settings: StoreSettings,
    context: str | None = None,
) -> Asked:
    """A query of each text, in a context if one is given; those that can be are embedded together,
    or not at all without an embedder. Raises `ModelError`, `InvalidInputError` for a context that
    cannot be embedded."""
    if context is not None and (fault := text_fault(context)):
        raise InvalidInputError(fault.replace("query", "context"))
    faults = {n: fault for n, text in enumerate(texts) if (fault := text_fault(text))}
    usable = [text for n, text in enumerate(texts) if n not in faults and isinstance(text, str)]
    if embedder is None:
        prepared: Asked = [Query(np.empty(0, np.float32), text) for text in usable]
    else:
        prepared = _embed(embedder(), usable, settings, context) if usable else []
    embedded = iter(prepared)
    return [
        Unanswerable(text if isinstance(text, str) else None, faults[n])
        if n in faults
        else next(embedded)
        for n, text in enumerate(texts)
    ]


def vector_queries(matrix: object, settings: StoreSettings) -> Asked:
    """A query of each row of a matrix. Raises `InvalidInputError` where it is none."""
    given = vectors.as_matrix(matrix, settings.dimension, where="the query matrix")
    rows = given.copy()
    faults = vectors.prepare_usable(rows, settings.metric)
    return [
        Unanswerable(None, f"query vector {n} {faults[n]}") if n in faults else Query(row)
        for n, row in enumerate(rows)
    ]


def _embed(
    embedder: Embedder, texts: Sequence[str], settings: StoreSettings, context: str | None
) -> Asked:
    plain = [unicode.composed(text) for text in texts]
    raw, words = _vectors(embedder, plain, settings, context)
    matrix = vectors.from_model(raw, len(plain), settings.dimension, embedder.name)
    unusable = vectors.prepare_usable(matrix, settings.metric)
    limit = embedder.max_tokens
    seen = plain if context is None else [f"{text}: {context}" for text in plain]
    counts = [0] * len(plain) if limit is None else embedder.count_tokens(seen)
    queries: Asked = []
    for n, (text, count, own) in enumerate(zip(texts, counts, words, strict=True)):
        if n in unusable:
            fault = f"the query cannot be compared: its vector {unusable[n]}"
            queries.append(Unanswerable(text, fault))
            continue
        note = f"the query has {count} tokens and the model reads {limit}: the rest was left out"
        notes = (note,) if limit is not None and count > limit else ()
        if context is not None and senses.occurrence(plain[n], unicode.composed(context)) is None:
            notes = (*notes, "the context does not hold the text: it is read before it")
        kept = content(plain[n], own) if own is not None and len(own.spans) else None
        bare = None
        if context is None and settings.metric is Metric.COSINE:
            bare = bare_word(embedder, text)
        queries.append(Query(matrix[n], text, notes, kept, bare))
    return queries


def _vectors(
    embedder: Embedder, plain: Sequence[str], settings: StoreSettings, context: str | None
) -> tuple[object, Sequence[Words | None]]:
    """The vectors (n, d) of composed texts and the words of each, where they are wanted."""
    if context is not None:
        around = unicode.composed(context)
        found = [senses.embed(embedder, text, around) for text in plain]
        own = [words if settings.tokens else None for _, words in found]
        return np.concatenate([vector for vector, _ in found]), own
    able = gives_words(embedder) if settings.tokens else None
    if able is None:
        return embedder.embed_queries(plain), [None] * len(plain)
    return with_words(embedder, able, plain, query=True)


def answers(
    queries: Asked, answer: Callable[[list[Query]], list[SearchResult]]
) -> list[SearchResult]:
    """A result for each query, in order; one that cannot be answered has its `error` set."""
    asked = [query for query in queries if isinstance(query, Query)]
    results = iter(answer(asked) if asked else ())
    return [
        SearchResult(query.text, (), error=InvalidInputError(query.fault))
        if isinstance(query, Unanswerable)
        else next(results)
        for query in queries
    ]
