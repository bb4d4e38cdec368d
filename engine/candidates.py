"""The first stage: which documents are near a query, by meaning, by words, or by both.

A document is found by the best of its passages. What only one leg found is scored for the other
too, so a candidate's similarity is that of its nearest passage whichever leg found it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from engine import vectors
from engine.arrays import IdArray
from engine.queries import Query
from engine.ranking.fusion import reciprocal_ranks
from engine.settings import DEFAULT_K, Metric, Mode
from engine.storage.view import View
from engine.text.terms import match_expression
from engine.text.unicode import folded

if TYPE_CHECKING:
    from engine.index.contract import Candidates
    from engine.index.snapshot import Snapshot

CANDIDATES = 50
"""How many documents the first stage finds for the rerank stage, where k is not more."""
_FUSED = 100
"""How many documents of each leg are fused, where k is not more."""
_PASSAGES = 1000
"""How many passages the lexical leg scores, where k is not more."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to answer. `explain` wants each hit's explanation; `mass` as many hits as hold that
    share of the weight, at most `k`; `depth` is how many documents are ranked at least. A dense
    search passes over the documents `exclude`, and over those it finds by a passage whose `folded`
    text is in `exclude_texts`."""

    k: int = DEFAULT_K
    mode: Mode = Mode.HYBRID
    rerank: bool = True
    passages: bool = False
    exact: bool = False
    explain: bool = False
    mass: float | None = None
    exclude: frozenset[int] = frozenset()
    exclude_texts: frozenset[str] = frozenset()
    depth: int = 0

    @property
    def needs_vector(self) -> bool:
        """The query's vector has a part in the answer."""
        return self.rerank or self.mode is not Mode.LEXICAL


@dataclass(frozen=True, slots=True)
class Candidate:
    """The id of a document's nearest passage and its scores; `similarity` is None where no vectors
    were compared. `parts` are the ids of the document's passages whose words are attended to."""

    id: int
    similarity: float | None
    lexical: float
    fused: float
    parts: tuple[int, ...]


@dataclass(slots=True)
class Clock:
    """Seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the time of its block to a stage."""
        started = perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - started


Found = dict[int, tuple[int, float]]
"""Documents (or passages) best first, each with its nearest passage and how near that is."""


@dataclass(frozen=True, slots=True)
class _Lexical:
    """Units (documents, or passages) best first with their best passage, and the scores of the
    best passages: of all that have one, but where the expression is left to score the others by.
    """

    best: dict[int, int] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    unscored_by: str | None = None


def find(
    view: View,
    snapshot: Snapshot | None,
    queries: Sequence[Query],
    options: Options,
    allowed: IdArray | None,
    metric: Metric,
    clock: Clock,
) -> list[list[Candidate]]:
    """For each query its candidates, best first; as many as the rerank stage wants, or k.

    `allowed` are the passage ids a filter leaves, ascending. Without a snapshot no vectors are
    compared.
    """
    wanted = max(options.k, options.depth, CANDIDATES) if options.rerank else options.k
    depth = wanted if options.mode is not Mode.HYBRID else max(wanted, _FUSED)
    dense: list[Found] = [{} for _ in queries]
    lexical = [_Lexical() for _ in queries]
    if options.mode is not Mode.LEXICAL and snapshot is not None:
        with clock.stage("dense"):
            dense = _dense(view, snapshot, queries, depth, allowed, options)
    if options.mode is not Mode.DENSE:
        with clock.stage("lexical"):
            lexical = [
                _words(view, query.text, depth, allowed, options.passages) for query in queries
            ]
    with clock.stage("fuse"):
        return [
            _fused(view, snapshot, query, near, by_words, wanted, options, metric)
            for query, near, by_words in zip(queries, dense, lexical, strict=True)
        ]


def _dense(
    view: View,
    snapshot: Snapshot,
    queries: Sequence[Query],
    k: int,
    allowed: IdArray | None,
    options: Options,
) -> list[Found]:
    """For each query the k best documents, each by its best passage, or the k best passages.

    A document's further passages take places among the candidates, so more are asked for until
    there are k documents or no passages left.
    """
    found: list[Found] = [{} for _ in queries]
    open_numbers = list(range(len(queries)))
    wanted = k + len(options.exclude) + len(options.exclude_texts)
    while open_numbers:
        asked = [queries[n] for n in open_numbers]
        candidates = _nearest(snapshot, asked, wanted, allowed, options.exact)
        ids = np.unique(np.concatenate([one.ids for one in candidates]))
        owners = view.owners(ids.tolist())
        unwanted = _unwanted(view, owners, options)
        unfinished = []
        for number, one in zip(open_numbers, candidates, strict=True):
            found[number] = _best_of(one, owners, unwanted, k, options.passages)
            if len(found[number]) < k and len(one.ids) == wanted:
                unfinished.append(number)
        open_numbers = unfinished
        wanted *= 2
    return found


def _nearest(
    snapshot: Snapshot, queries: Sequence[Query], k: int, allowed: IdArray | None, exact: bool
) -> list[Candidates]:
    if len(queries) == 1:
        return [snapshot.search(queries[0].vector, k, allowed, exact=exact)]
    matrix = np.stack([query.vector for query in queries])
    return snapshot.search_many(matrix, k, allowed, exact=exact)


def _unwanted(view: View, owners: dict[int, int], options: Options) -> frozenset[int]:
    """The documents that are passed over."""
    if not options.exclude_texts:
        return options.exclude
    spoken = (id_ for id_, text in view.texts(owners) if folded(text) in options.exclude_texts)
    return options.exclude.union(owners[id_] for id_ in spoken)


def _best_of(
    candidates: Candidates, owners: dict[int, int], unwanted: frozenset[int], k: int, passages: bool
) -> Found:
    """The first k documents that are wanted, each by its nearest passage, or the passages."""
    best: Found = {}
    for id_, similarity in zip(
        candidates.ids.tolist(), candidates.similarities.tolist(), strict=True
    ):
        if len(best) == k:
            break
        if owners[id_] not in unwanted:
            best.setdefault(id_ if passages else owners[id_], (id_, similarity))
    return best


def _words(
    view: View, text: str | None, k: int, allowed: IdArray | None, passages: bool
) -> _Lexical:
    """The k best documents (or passages) by BM25, each by its best passage."""
    expression = None if text is None else match_expression(text)
    if expression is None:
        return _Lexical()
    wanted = max(k, _PASSAGES)
    while True:
        ids, scores = view.lexical(expression, wanted, allowed)
        owners = {} if passages else view.owners(ids.tolist())
        best: dict[int, int] = {}
        for id_ in ids.tolist():
            best.setdefault(id_ if passages else owners[id_], id_)
        if len(best) >= k or len(ids) < wanted:
            chosen = dict(list(best.items())[:k])
            held = dict(zip(ids.tolist(), scores.tolist(), strict=True))
            return _Lexical(chosen, held, expression if len(ids) == wanted else None)
        wanted *= 2


def _fused(
    view: View,
    snapshot: Snapshot | None,
    query: Query,
    near: Found,
    by_words: _Lexical,
    wanted: int,
    options: Options,
    metric: Metric,
) -> list[Candidate]:
    """The candidates of the legs in one order."""
    rankings = [one for one in (list(near), list(by_words.best)) if one]
    ranks = reciprocal_ranks(rankings)
    order = list(ranks)[:wanted]
    attended = options.rerank and query.words is not None
    if options.passages:
        parts = {one: [one] for one in order}
    elif by_words.best or attended:
        parts = view.passage_ids(order)
    else:
        parts = {one: [near[one][0]] for one in order}
    unseen = [one for one in order if one not in near]
    best: dict[int, tuple[int, float | None]] = {**near}
    if snapshot is None:
        best |= {one: (by_words.best[one], None) for one in unseen}
    else:
        best |= _by_vectors(snapshot, query, {one: parts[one] for one in unseen}, metric)
    scores = by_words.scores
    if by_words.unscored_by is not None:
        others = [id_ for one in order for id_ in parts[one] if id_ not in scores]
        scores = scores | view.lexical_scores(by_words.unscored_by, others)
    candidates = []
    for one in order:
        id_, similarity = best[one]
        lexical = max((scores.get(part, 0.0) for part in parts[one]), default=0.0)
        candidates.append(Candidate(id_, similarity, lexical, ranks[one], tuple(parts[one])))
    return candidates


def _by_vectors(
    snapshot: Snapshot, query: Query, parts: dict[int, list[int]], metric: Metric
) -> dict[int, tuple[int, float | None]]:
    """For each unit the nearest of its passages and how near it is."""
    if not parts:
        return {}
    ids = [id_ for own in parts.values() for id_ in own]
    found = vectors.similarities(snapshot.vectors(ids), query.vector, metric)
    similarities = dict(zip(ids, found.tolist(), strict=True))
    best: dict[int, tuple[int, float | None]] = {}
    for one, own in parts.items():
        nearest = max(own, key=lambda id_: (similarities[id_], -id_))
        best[one] = nearest, similarities[nearest]
    return best
