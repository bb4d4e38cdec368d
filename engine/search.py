"""The read route: query -> candidates -> words -> rerank -> hits.

One search reads one snapshot of the database from end to end, so an answer never mixes two
generations. Query texts are embedded together, candidates of several queries scored together.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from engine import candidates
from engine.arrays import IdArray
from engine.candidates import Candidate, Clock, Options
from engine.embedding.bare import are_words
from engine.errors import InvalidInputError
from engine.queries import Query
from engine.ranking.confidence import effective_number, holding
from engine.ranking.contract import Reranked, Reranker, RerankInput
from engine.settings import Metric, Mode
from engine.storage.records import PassageRow, StoreSettings
from engine.storage.view import View
from engine.types import Explanation, Hit, SearchResult
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
    if reranker is not None and snapshot is not None:
        for number, query in enumerate(queries):
            if len(found[number]) >= candidates.CANDIDATES and _is_among_words(
                view, query, found[number]
            ):
                deeper = replace(options, depth=WORDS)
                (found[number],) = candidates.find(
                    view, snapshot, [query], deeper, allowed, settings.metric, clock
                )
    if reranker is None or snapshot is None:
        shown = [_as_found(near[: options.k], options.mode) for near in found]
    else:
        shown = _reranked(view, snapshot, queries, found, options, settings, reranker, clock)
    with clock.stage("fetch"):
        rows = view.passages([one.id for few in shown for one in few.near])
    return [_result(query, few, rows, clock) for query, few in zip(queries, shown, strict=True)]


@dataclass(frozen=True, slots=True)
class _Shown:
    """The hits of one query, best first, before their texts are read."""

    near: Sequence[Candidate]
    scores: Sequence[float]
    legs: tuple[str, ...]
    ranked: Reranked | None = None
    explanations: Sequence[Explanation | None] = ()
    notes: tuple[str, ...] = ()


def _as_found(near: Sequence[Candidate], mode: Mode) -> _Shown:
    scores = [
        {Mode.DENSE: one.similarity, Mode.LEXICAL: one.lexical}.get(mode, one.fused) or 0.0
        for one in near
    ]
    return _Shown(near, scores, _legs(mode, near))


def _reranked(
    view: View,
    snapshot: Snapshot,
    queries: Sequence[Query],
    found: Sequence[Sequence[Candidate]],
    options: Options,
    settings: StoreSettings,
    reranker: Reranker,
    clock: Clock,
) -> list[_Shown]:
    wording = Wording(view, settings)
    shown: list[_Shown] = []
    for query, near in zip(queries, found, strict=True):
        with clock.stage("fetch"):
            reads = query.bare is not None or getattr(reranker, "reads_texts", True)
            texts = _texts(view, near) if reads else []
            bare = None if query.bare is None else query.bare.cosines(texts)
            asked = RerankInput(
                query=query.vector,
                vectors=snapshot.vectors([one.id for one in near]),
                similarities=np.array([one.similarity for one in near], dtype=np.float64),
                text=query.text,
                texts=texts,
                lexical=None
                if options.mode is Mode.DENSE
                else np.array([one.lexical for one in near], dtype=np.float64),
                words=wording.input(query, near),
                bare=None if bare is None else bare[0],
                bare_share=0.0 if bare is None else bare[1],
            )
        with clock.stage("rerank"):
            (ranked,) = reranker.rerank([asked], options.k)
        count = len(ranked.order)
        if options.mass is not None:
            count = holding(ranked.weights, options.mass)
        explanations: Sequence[Explanation | None] = [None] * count
        notes: tuple[str, ...] = ()
        if options.explain:
            with clock.stage("explain"):
                explanations = wording.explanations(query, near, ranked, count)
            if count and not any(explanations):
                unexplained = _UNEXPLAINED if query.words is not None else _WORDLESS
                notes = (unexplained if settings.tokens else _UNKEPT,)
        legs = tuple(_LEGS.get(name, name) for name in ranked.parts) or _legs(options.mode, near)
        hits = [near[at] for at in ranked.order[:count]]
        shown.append(_Shown(hits, ranked.scores.tolist(), legs, ranked, explanations, notes))
    return shown


def _is_among_words(view: View, query: Query, near: Sequence[Candidate]) -> bool:
    """One word is asked for, and most candidates are one word too."""
    return query.bare is not None and are_words(_texts(view, near))


def _texts(view: View, near: Sequence[Candidate]) -> list[str]:
    found = dict(view.texts([one.id for one in near]))
    return [found[one.id] for one in near]


def _result(query: Query, shown: _Shown, rows: dict[int, PassageRow], clock: Clock) -> SearchResult:
    ranked = shown.ranked
    weights = [None] * len(shown.near) if ranked is None else ranked.weights.tolist()
    explanations = shown.explanations or [None] * len(shown.near)
    hits = [
        _hit(rank, one, rows[one.id], score, weight, explanation)
        for rank, (one, score, weight, explanation) in enumerate(
            zip(shown.near, shown.scores, weights, explanations, strict=False), start=1
        )
    ]
    found = SearchResult(
        query=query.text,
        hits=tuple(hits),
        notes=(*query.notes, *shown.notes),
        legs=shown.legs,
        seconds_by_stage=clock.seconds,
    )
    if ranked is None:
        return found
    return replace(
        found,
        temperature=ranked.temperature,
        context=ranked.context,
        effective=effective_number(ranked.weights),
    )


_LEGS = {"cosine": "dense"}
_UNEXPLAINED = (
    "there are no word vectors to explain these hits by: `attendex tokens build` makes them"
)
_UNKEPT = "the store keeps no word vectors to explain these hits by: `attendex tokens build`"
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
    row: PassageRow,
    score: float,
    weight: float | None,
    explanation: Explanation | None,
) -> Hit:
    return Hit(
        rank=rank,
        id=row.key,
        score=score,
        similarity=one.similarity,
        text=row.text,
        metadata=json.loads(row.written),
        weight=weight,
        start=row.start,
        end=row.end,
        explanation=explanation,
        lexical=one.lexical,
    )
