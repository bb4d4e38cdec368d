"""Texts and vectors made queries: checked, embedded together, each with its own fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from engine import senses, vectors
from engine.arrays import Float32Array
from engine.embedding.bare import BareWord, bare_word
from engine.embedding.remembered import Embedded
from engine.errors import InvalidInputError
from engine.lookup import TextVectors
from engine.settings import Metric
from engine.storage.records import StoreSettings
from engine.text import unicode
from engine.text.stopwords import content
from engine.types import SearchResult, Words


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
    vectors_of: TextVectors | None,
    settings: StoreSettings,
    context: str | None = None,
) -> Asked:
    """A query of each text, in a context if one is given; those that can be are embedded together,
    or not at all without `vectors_of`. Raises `ModelError`, `InvalidInputError` for a context that
    cannot be embedded."""
    if context is not None and (fault := text_fault(context)):
        raise InvalidInputError(fault.replace("query", "context"))
    faults = {n: fault for n, text in enumerate(texts) if (fault := text_fault(text))}
    usable = [text for n, text in enumerate(texts) if n not in faults and isinstance(text, str)]
    if vectors_of is None:
        prepared: Asked = [Query(np.empty(0, np.float32), text) for text in usable]
    else:
        prepared = _embed(vectors_of, usable, settings, context) if usable else []
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
    vectors_of: TextVectors, texts: Sequence[str], settings: StoreSettings, context: str | None
) -> Asked:
    plain = [unicode.composed(text) for text in texts]
    found = vectors_of.of(plain, context)
    matrix = np.stack([one.vector for one in found])
    unusable = vectors.prepare_usable(matrix, settings.metric)
    queries: Asked = []
    for n, (text, one) in enumerate(zip(texts, found, strict=True)):
        if n in unusable:
            fault = f"the query cannot be compared: its vector {unusable[n]}"
            queries.append(Unanswerable(text, fault))
            continue
        own, notes = one.words, _left_out(one)
        if context is not None and senses.occurrence(plain[n], unicode.composed(context)) is None:
            notes = (*notes, "the context does not hold the text: it is read before it")
        kept = content(plain[n], own) if own is not None and len(own.spans) else None
        plain_word = context is None and settings.metric is Metric.COSINE
        bare = bare_word(text, vectors_of.load) if plain_word else None
        queries.append(Query(matrix[n], text, notes, kept, bare))
    return queries


def _left_out(one: Embedded) -> tuple[str, ...]:
    if one.limit is None or one.tokens <= one.limit:
        return ()
    return (
        f"the query has {one.tokens} tokens and the model reads {one.limit}: the rest was left out",
    )


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
