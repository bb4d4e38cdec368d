"""The read route: query -> candidates -> words -> rerank -> hits.

One search reads one snapshot of the database from end to end, so an answer never mixes two
generations. Query texts are embedded together, candidates of several queries scored together.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from engine import candidates
from engine.candidates import Candidate, Clock, Options
from engine.embedding.bare import is_word
from engine.errors import InvalidInputError
from engine.queries import Query
from engine.ranking.confidence import effective_number, holding
from engine.ranking.contract import Reranked, Reranker, RerankInput
from engine.settings import Metric, Mode
from engine.storage.records import StoreSettings
from engine.storage.view import View
from engine.types import Explanation, Float64Array, Hit, IdArray, SearchResult
from engine.wording import Wording

if TYPE_CHECKING:
    from engine.index.snapshot import Snapshot


WORDS = 200
"""How many words are ranked for a query of one word, where k is not more."""


def check_k(k: int) -> int:
    """`k` as an int of at least 1, and not above what SQLite can count."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InvalidInputError(f"k must be a whole number of at least 1, not {k!r}")
    return min(int(k), sys.maxsize)


def as_mode(mode: object, metric: Metric) -> Mode:
    """A mode by value or name; None is hybrid, and dense where lengths count (ip)."""
    if mode is None:
        return Mode.HYBRID if metric is Metric.COSINE else Mode.DENSE
    try:
        return Mode(mode)
    except ValueError:
        known = ", ".join(member.value for member in Mode)
        raise InvalidInputError(f"unknown mode {mode!r}; choose one of: {known}") from None


def check_mass(mass: object) -> float | None:
    """A share in (0, 1], or None."""
    if mass is None:
        return None
    if isinstance(mass, bool) or not isinstance(mass, int | float) or not 0 < mass <= 1:
        raise InvalidInputError(f"mass must be a share above 0 and up to 1, not {mass!r}")
    return float(mass)


def run(
    view: View,
    snapshot: Snapshot | None,
    queries: Sequence[Query],
    options: Options,
    allowed: IdArray | None,
    settings: StoreSettings,
    reranker: Reranker | None,
    clock: Clock,
) -> list[SearchResult]:
    """Answer queries on one snapshot; `allowed` are the passage ids a filter leaves, ascending.

    A document is answered once, by its best passage, or with `passages` by each that is near.
    Without a reranker the order is that of the first stage.
    """
    found = candidates.find(view, snapshot, queries, options, allowed, settings.metric, clock)
    if reranker is not None:
        for number, (query, near) in enumerate(zip(queries, found, strict=True)):
            if query.bare is not None and len(near) >= candidates.CANDIDATES and _of_words(near):
                deeper = replace(options, depth=WORDS)
                (found[number],) = candidates.find(
                    view, snapshot, [query], deeper, allowed, settings.metric, clock
                )
    answered = zip(queries, found, strict=True)
    if reranker is None or snapshot is None:
        return [_plain_result(query, near[: options.k], options, clock) for query, near in answered]
    wording = Wording(view, settings)
    results: list[SearchResult] = []
    for query, near in answered:
        asked = _rerank_input(snapshot, query, near, options, wording, clock)
        with clock.stage("rerank"):
            (ranked,) = reranker.rerank([asked], options.k)
        count = len(ranked.order)
        if options.mass is not None:
            count = holding(ranked.weights, options.mass)
        explanations: Sequence[Explanation | None] = [None] * count
        if options.explain:
            with clock.stage("explain"):
                explanations = wording.explanations(query, near, ranked, count)
        result = _result(query, near, ranked, explanations, options, clock)
        if options.explain and count and not any(explanations):
            why = _UNEXPLAINED if query.words is not None else _WORDLESS
            result = replace(result, notes=(*result.notes, why))
        results.append(result)
    return results


def _rerank_input(
    snapshot: Snapshot,
    query: Query,
    near: Sequence[Candidate],
    options: Options,
    wording: Wording,
    clock: Clock,
) -> RerankInput:
    with clock.stage("fetch"):
        texts = [one.row.text for one in near]
        return RerankInput(
            query=query.vector,
            vectors=snapshot.vectors([one.row.id for one in near]),
            similarities=np.array([one.similarity for one in near], dtype=np.float64),
            text=query.text,
            texts=texts,
            lexical=None
            if options.mode is Mode.DENSE
            else np.array([one.lexical for one in near], dtype=np.float64),
            words=wording.input(query, near),
            bare=None if query.bare is None else query.bare.cosines(texts),
            bare_share=0.0 if query.bare is None else query.bare.share,
        )


def _of_words(near: Sequence[Candidate]) -> bool:
    """Most candidates are one word each."""
    return 2 * sum(is_word(one.row.text) for one in near) >= len(near)


def _plain_result(
    query: Query, near: Sequence[Candidate], options: Options, clock: Clock
) -> SearchResult:
    hits = []
    for rank, one in enumerate(near, start=1):
        score = {Mode.DENSE: one.similarity, Mode.LEXICAL: one.lexical}.get(options.mode, one.fused)
        hits.append(_hit(rank, one, 0.0 if score is None else score, None, None))
    return SearchResult(
        query.text,
        tuple(hits),
        notes=query.notes,
        legs=_legs(options.mode, near),
        seconds_by_stage=clock.seconds,
    )


def _result(
    query: Query,
    near: Sequence[Candidate],
    ranked: Reranked,
    explanations: Sequence[Explanation | None],
    options: Options,
    clock: Clock,
) -> SearchResult:
    count = len(explanations)
    weights: Float64Array = ranked.weights[:count]
    hits = [
        _hit(rank, near[at], float(score), float(weight), explanation)
        for rank, (at, score, weight, explanation) in enumerate(
            zip(ranked.order, ranked.scores, weights, explanations, strict=False), start=1
        )
    ]
    return SearchResult(
        query=query.text,
        hits=tuple(hits),
        temperature=ranked.temperature,
        context=ranked.context,
        notes=query.notes,
        legs=tuple(_LEGS.get(name, name) for name in ranked.parts) or _legs(options.mode, near),
        effective=effective_number(ranked.weights),
        seconds_by_stage=clock.seconds,
    )


_LEGS = {"cosine": "dense"}
_UNEXPLAINED = "there are no word vectors to explain these hits by"
_WORDLESS = "the query has no words, or the model gives none, to explain these hits by"


def _legs(mode: Mode, near: Sequence[Candidate]) -> tuple[str, ...]:
    by_words = any(one.lexical for one in near)
    return {
        Mode.DENSE: ("dense",),
        Mode.LEXICAL: ("lexical",),
        Mode.HYBRID: ("dense", "lexical") if by_words else ("dense",),
    }[mode]


def _hit(
    rank: int,
    one: Candidate,
    score: float,
    weight: float | None,
    explanation: Explanation | None,
) -> Hit:
    return Hit(
        rank=rank,
        id=one.row.key,
        score=score,
        similarity=one.similarity,
        text=one.row.text,
        metadata=json.loads(one.row.written),
        weight=weight,
        start=one.row.start,
        end=one.row.end,
        explanation=explanation,
        lexical=one.lexical,
    )
