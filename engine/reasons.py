"""Why a document is, or is not, among the first answers: where each leg puts it, what it lacks.

Its ranks are counted among all documents a filter leaves, so the legs are asked for as many as it
takes; the dense leg exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from engine import candidates, search
from engine.arrays import IdArray
from engine.candidates import CANDIDATES, Candidate, Clock, Options
from engine.errors import DocumentNotFoundError
from engine.index.snapshot import Snapshot
from engine.queries import Query
from engine.ranking.contract import Reranker
from engine.settings import Mode
from engine.storage.records import StoreSettings
from engine.storage.view import View
from engine.text.stopwords import is_content
from engine.text.terms import is_unspaced, phrase
from engine.types import Why

_FIRST = 1000


def why(
    view: View,
    snapshot: Snapshot,
    key: str,
    query: Query,
    options: Options,
    allowed: IdArray | None,
    settings: StoreSettings,
    reranker: Reranker,
) -> Why:
    """The ranks and scores of one document, and sentences on what keeps it from the first k.

    Raises `DocumentNotFoundError`.
    """
    known = view.known([key])
    if key not in known:
        raise DocumentNotFoundError([key])
    (parts,) = view.passage_ids([known[key].row_id]).values()
    left_out = allowed is not None and not np.isin(parts, allowed).any()
    legs = {}
    for mode in (Mode.DENSE, Mode.LEXICAL):
        if not left_out and options.mode in (mode, Mode.HYBRID):
            legs[mode] = _leg(view, snapshot, query, parts, mode, allowed, settings)
    wide = replace(options, k=max(options.k, CANDIDATES))
    chosen = reranker if options.rerank else None
    (result,) = search.run(view, snapshot, [query], wide, allowed, settings, chosen, Clock())
    place = next((hit for hit in result.hits if hit.id == key), None)
    last = result.hits[min(options.k, len(result.hits)) - 1] if result.hits else None
    dense, lexical = legs.get(Mode.DENSE), legs.get(Mode.LEXICAL)
    found = Why(
        id=key,
        query=query.text or "",
        k=options.k,
        rank=None if place is None else place.rank,
        score=None if place is None else place.score,
        last_score=None if last is None else last.score,
        dense_rank=None if dense is None else dense[0],
        similarity=None if dense is None else dense[1].similarity,
        lexical_rank=None if lexical is None else lexical[0],
        lexical=None if lexical is None else lexical[1].lexical,
        filtered=left_out,
        missing=tuple(_missing(view, query, parts)),
        truncated=view.count_truncated_of(parts),
    )
    return replace(found, reasons=tuple(_reasons(found, options, wide.k)))


def _leg(
    view: View,
    snapshot: Snapshot,
    query: Query,
    parts: list[int],
    mode: Mode,
    allowed: IdArray | None,
    settings: StoreSettings,
) -> tuple[int, Candidate] | None:
    """The document's rank in one leg, from 1, with its scores; None where it is not found by it."""
    k = _FIRST
    while True:
        options = Options(k=k, mode=mode, rerank=False, exact=True)
        (found,) = candidates.find(
            view, snapshot, [query], options, allowed, settings.metric, Clock()
        )
        for rank, one in enumerate(found, start=1):
            if one.id in parts:
                return rank, one
        if len(found) < k:
            return None
        k *= 8


def _missing(view: View, query: Query, parts: list[int]) -> Iterator[str]:
    """The words of the query that count and that none of the passages holds."""
    within = np.array(parts, dtype=np.int64)
    for word in dict.fromkeys(_sought(query)):
        sought = phrase(word) if is_content(word.strip(".,;:!?\"'()")) else None
        if sought is not None and not len(view.lexical(sought, 1, within)[0]):
            yield word


def _sought(query: Query) -> list[str]:
    """The words of a query as they stand between spaces, or, where words of its script stand side
    by side, as the model takes them."""
    text = query.composed
    if query.words is None or not is_unspaced(text):
        return text.split()
    return [text[start:end] for start, end in query.words.spans.tolist()]


def _reasons(found: Why, options: Options, asked: int) -> Iterator[str]:
    if found.filtered:
        yield "the filter leaves it out"
        return
    if found.rank is not None and found.rank <= found.k:
        yield f"it is among the first {found.k}, at rank {found.rank}"
    elif found.rank is not None and found.last_score is not None and found.score is not None:
        yield (
            f"it is ranked {found.rank}, {found.last_score - found.score:.4f} below the last of "
            f"the first {found.k}"
        )
    else:
        yield f"it is not among the {asked} candidates that are ranked"
    if found.dense_rank is not None:
        yield f"by meaning it is number {found.dense_rank} (similarity {found.similarity:.4f})"
    if found.lexical_rank is not None:
        yield f"by words it is number {found.lexical_rank} (BM25 {found.lexical:.2f})"
    elif options.mode is not Mode.DENSE:
        yield "by words it is not found: it holds none of the query's"
    if found.missing:
        yield f"it does not hold: {', '.join(found.missing)}"
    if found.truncated:
        yield f"of {found.truncated} of its passages the model saw only the beginning"
