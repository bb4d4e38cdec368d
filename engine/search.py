"""The read route: query -> vector -> candidates -> rows -> rerank -> hits.

One search reads one snapshot of the database from end to end, so an answer never mixes two
generations. Query texts are embedded together, candidates of several queries scored together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from engine import vectors
from engine.embedding.base import Embedder
from engine.errors import InvalidInputError
from engine.index.contract import Candidates
from engine.index.snapshot import Snapshot
from engine.ranking.contract import Reranked, Reranker, RerankInput
from engine.storage.records import PassageRow, StoreSettings
from engine.storage.view import View
from engine.text import unicode
from engine.types import Float32Array, Hit, IdArray, SearchResult

CANDIDATES = 50
"""How many documents the first stage finds for the rerank stage, where k is not more."""
_RERANK_BATCH = 32


@dataclass(frozen=True, slots=True)
class Query:
    """One query ready to be searched: its unit (or raw, for ip) vector and what to say of it."""

    vector: Float32Array
    text: str | None = None
    notes: tuple[str, ...] = ()


def check_k(k: int) -> int:
    """`k` as an int of at least 1."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InvalidInputError(f"k must be a whole number of at least 1, not {k!r}")
    return int(k)


def text_fault(text: object) -> str | None:
    """Why a text cannot be searched for, or None."""
    if not isinstance(text, str):
        return f"a query must be a text, not {type(text).__name__}"
    if unicode.is_blank(text):
        return "the query is empty; write the words to search for"
    if fault := unicode.fault(text):
        return f"the query cannot be used: {fault}"
    return None


@dataclass(frozen=True, slots=True)
class Unanswerable:
    """One query of several that cannot be searched for, and why."""

    text: str | None
    fault: str


def text_queries(
    texts: Sequence[object], embedder: Callable[[], Embedder], settings: StoreSettings
) -> list[Query | Unanswerable]:
    """A query of each text; those that can be are embedded together. Raises `ModelError`."""
    faults = {n: fault for n, text in enumerate(texts) if (fault := text_fault(text))}
    usable = [text for n, text in enumerate(texts) if n not in faults and isinstance(text, str)]
    embedded = iter(_embed(embedder(), usable, settings) if usable else ())
    return [
        Unanswerable(text if isinstance(text, str) else None, faults[n])
        if n in faults
        else next(embedded)
        for n, text in enumerate(texts)
    ]


def vector_queries(matrix: object, settings: StoreSettings) -> list[Query | Unanswerable]:
    """A query of each row of a matrix. Raises `InvalidInputError` where it is none."""
    given = vectors.as_matrix(matrix, settings.dimension, where="the query matrix")
    rows = given.copy()
    faults = vectors.prepare_usable(rows, settings.metric)
    return [
        Unanswerable(None, f"query vector {n} {faults[n]}") if n in faults else Query(row)
        for n, row in enumerate(rows)
    ]


def _embed(
    embedder: Embedder, texts: Sequence[str], settings: StoreSettings
) -> list[Query | Unanswerable]:
    plain = [unicode.composed(text) for text in texts]
    raw = embedder.embed_queries(plain)
    matrix = vectors.from_model(raw, len(plain), settings.dimension, embedder.name)
    unusable = vectors.prepare_usable(matrix, settings.metric)
    limit = embedder.max_tokens
    counts = [0] * len(plain) if limit is None else embedder.count_tokens(plain)
    queries: list[Query | Unanswerable] = []
    for n, (text, count) in enumerate(zip(texts, counts, strict=True)):
        if n in unusable:
            fault = f"the query cannot be compared: its vector {unusable[n]}"
            queries.append(Unanswerable(text, fault))
            continue
        note = f"the query has {count} tokens and the model reads {limit}: the rest was left out"
        cut = limit is not None and count > limit
        queries.append(Query(matrix[n], text, (note,) if cut else ()))
    return queries


def answers(
    queries: Sequence[Query | Unanswerable], answer: Callable[[list[Query]], list[SearchResult]]
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


def run(
    view: View,
    snapshot: Snapshot,
    queries: Sequence[Query],
    k: int,
    allowed: IdArray | None,
    reranker: Reranker | None,
    *,
    passages: bool = False,
    exact: bool = False,
) -> list[SearchResult]:
    """Answer queries on one snapshot; `allowed` are the passage ids a filter leaves, ascending.

    A document is answered once, by its best passage, or with `passages` by each that is near.
    With `exact` no approximate index is used.
    """
    if reranker is None:
        found = _find(view, snapshot, queries, k, allowed, passages, exact)
        return [_plain_result(query, rows) for query, rows in zip(queries, found, strict=True)]
    found = _find(view, snapshot, queries, max(k, CANDIDATES), allowed, passages, exact)
    results: list[SearchResult] = []
    for start in range(0, len(queries), _RERANK_BATCH):
        asked = queries[start : start + _RERANK_BATCH]
        chosen = found[start : start + _RERANK_BATCH]
        inputs = [_rerank_input(snapshot, *pair) for pair in zip(asked, chosen, strict=True)]
        results += [
            _reranked_result(*triple)
            for triple in zip(asked, chosen, reranker.rerank(inputs, k), strict=True)
        ]
    return results


Found = list[tuple[PassageRow, float]]
"""The best passage of each document with its similarity, best first."""


def _find(
    view: View,
    snapshot: Snapshot,
    queries: Sequence[Query],
    k: int,
    allowed: IdArray | None,
    passages: bool,
    exact: bool,
) -> list[Found]:
    """For each query the k best documents, each by its best passage, or the k best passages.

    A document's further passages take places among the candidates, so more are asked for until
    there are k documents or no passages left.
    """
    found: list[Found] = [[] for _ in queries]
    open_numbers = list(range(len(queries)))
    wanted = k
    while open_numbers:
        candidates = _candidates(
            snapshot, [queries[n] for n in open_numbers], wanted, allowed, exact
        )
        ids = np.unique(np.concatenate([one.ids for one in candidates]))
        rows = view.passages(ids.tolist())
        unfinished = []
        for number, one in zip(open_numbers, candidates, strict=True):
            found[number] = _rows_of(one, rows, passages)[:k]
            if len(found[number]) < k and len(one.ids) == wanted:
                unfinished.append(number)
        open_numbers = unfinished
        wanted *= 2
    return found


def _candidates(
    snapshot: Snapshot, queries: Sequence[Query], k: int, allowed: IdArray | None, exact: bool
) -> list[Candidates]:
    if len(queries) == 1:
        return [snapshot.search(queries[0].vector, k, allowed, exact=exact)]
    matrix = np.stack([query.vector for query in queries])
    return snapshot.search_many(matrix, k, allowed, exact=exact)


def _rows_of(candidates: Candidates, rows: dict[int, PassageRow], passages: bool) -> Found:
    seen: set[int] = set()
    best: Found = []
    for id_, similarity in zip(
        candidates.ids.tolist(), candidates.similarities.tolist(), strict=True
    ):
        row = rows[id_]
        if passages or row.document_id not in seen:
            seen.add(row.document_id)
            best.append((row, similarity))
    return best


def _rerank_input(snapshot: Snapshot, query: Query, found: Found) -> RerankInput:
    return RerankInput(
        query=query.vector,
        vectors=snapshot.vectors([row.id for row, _ in found]),
        similarities=np.array([similarity for _, similarity in found], dtype=np.float64),
    )


def _plain_result(query: Query, found: Found) -> SearchResult:
    hits = [_hit(rank, row, sim, sim, None) for rank, (row, sim) in enumerate(found, start=1)]
    return SearchResult(query.text, tuple(hits), notes=query.notes)


def _reranked_result(query: Query, found: Found, reranked: Reranked) -> SearchResult:
    hits = []
    ranked = zip(reranked.order, reranked.scores, reranked.weights, strict=True)
    for rank, (at, score, weight) in enumerate(ranked, start=1):
        row, similarity = found[at]
        hits.append(_hit(rank, row, float(score), similarity, float(weight)))
    return SearchResult(
        query=query.text,
        hits=tuple(hits),
        temperature=reranked.temperature,
        context=reranked.context,
        notes=query.notes,
    )


def _hit(rank: int, row: PassageRow, score: float, similarity: float, weight: float | None) -> Hit:
    return Hit(
        rank=rank,
        id=row.key,
        score=score,
        similarity=similarity,
        text=row.text,
        metadata=json.loads(row.written),
        weight=weight,
        start=row.start,
        end=row.end,
    )
