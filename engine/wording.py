"""The words of candidates: read for the rerank stage, and shown in explanations.

What a text's words are given does not depend on the other candidates. Of a long document the
passages nearest to the one that matched are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine import words
from engine.arrays import Float32Array, Float64Array
from engine.candidates import Candidate
from engine.queries import Query
from engine.ranking.contract import Reranked, WordInput
from engine.settings import Metric
from engine.storage.records import StoreSettings
from engine.storage.view import View
from engine.text import unicode
from engine.types import Explanation, Word, Words
from engine.words import Packed

MOST_ATTENDED = 2000
"""Candidates whose words are read, the first ones; the others keep their cosine."""
MOST_PARTS = 16
"""Passages of one document whose words are read."""
_UNIFORM_BELOW = 100
"""In fewer passages a word's rarity says nothing yet."""


class Wording:
    """The words of the queries and candidates of one call, on one snapshot of the database."""

    def __init__(self, view: View, settings: StoreSettings) -> None:
        self._view = view
        state = view.state()
        self._passages = state.passages
        self._usable = settings.tokens and settings.metric is Metric.COSINE and state.worded > 0
        self._directions: Float32Array | None = None
        self._read = False
        self._counted: dict[str, int] = {}

    def input(self, query: Query, near: Sequence[Candidate]) -> WordInput | None:
        """The words of a query and its candidates; None where there are none to compare."""
        if not self._usable or query.words is None:
            return None
        attended = [_attended(one) for one in near[:MOST_ATTENDED]]
        attended += [[] for _ in near[MOST_ATTENDED:]]
        packed = self._view.words([id_ for ids in attended for id_ in ids])
        own = [[packed[id_] for id_ in ids if id_ in packed] for ids in attended]
        flat = [one for parts in own for one in parts]
        if not flat:
            return None
        sizes = [sum(part.size for part in parts) for parts in own]
        return WordInput(
            query=self._projected(query.words.vectors, flat[0]),
            weights=self._weights(query),
            texts=words.unpack(*flat).vectors,
            cuts=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        )

    def explanations(
        self, query: Query, near: Sequence[Candidate], ranked: Reranked, count: int
    ) -> list[Explanation | None]:
        """Of each of the first hits, why it scores what it does; None where words are missing."""
        from engine.ranking import explain

        if not self._usable or query.words is None:
            return [None] * count
        chosen = ranked.order[:count].tolist()
        weights = self._weights(query)
        shown: list[Explanation | None] = []
        attended = [_attended(near[at]) if at < MOST_ATTENDED else [] for at in chosen]
        every = [id_ for ids in attended for id_ in ids]
        packed, rows = self._view.words(every), self._view.passages(every)
        for number, (at, ids) in enumerate(zip(chosen, attended, strict=True)):
            one = near[at]
            held = [id_ for id_ in ids if id_ in packed and packed[id_].size]
            found = [(rows[id_], words.unpack(packed[id_])) for id_ in held]
            if not found:
                shown.append(None)
                continue
            there = [word for row, own in found for word in words_at(row.text, row.start, own)]
            texts = np.concatenate([own.vectors for _, own in found])
            own_words = Words(query.words.spans, self._projected(query.words.vectors, texts))
            shown.append(
                explain.explain(
                    (query.text or "", rows[one.id].text),
                    (words_at(query.text or "", 0, own_words), there),
                    (own_words.vectors, texts),
                    one.similarity or 0.0,
                    weights=weights,
                    parts={name: float(part[number]) for name, part in ranked.parts.items()},
                    temperature=ranked.attention_temperature,
                )
            )
        return shown

    def _projected(self, rows: Float32Array, like: Packed | Float32Array) -> Float32Array:
        """Full-width rows in the space of packed words."""
        width = like.width if isinstance(like, Packed) else like.shape[1]
        if rows.shape[1] == width:
            return rows
        if not self._read:
            self._directions = self._view.directions()
            self._read = True
        if self._directions is None:
            words.check_width(rows.shape[1], width)
            return rows
        return words.project(rows, self._directions)

    def _weights(self, query: Query) -> Float64Array:
        """w_i = idf_i / sum idf with idf = ln(1 + (N - df + .5) / (df + .5)), of passages.

        (Robertson and Sparck Jones's weight as BM25 uses it, kept positive.) Uniform while there
        are few passages.
        """
        if query.words is None:
            return np.empty(0)
        text = query.composed
        found = [text[start:end] for start, end in query.words.spans.tolist()]
        if self._passages < _UNIFORM_BELOW:
            return np.full(len(found), 1 / len(found))
        new = [word for word in dict.fromkeys(found) if word not in self._counted]
        self._counted |= dict(zip(new, self._view.document_frequencies(new), strict=True))
        df = np.array([self._counted[word] for word in found], dtype=np.float64)
        idf = np.log(1 + (self._passages - df + 0.5) / (df + 0.5))
        return np.asarray(idf / idf.sum())


def _attended(one: Candidate) -> list[int]:
    """The passages of a candidate whose words are read: those nearest to the one that matched."""
    if len(one.parts) <= MOST_PARTS:
        return list(one.parts)
    at = one.parts.index(one.id)
    first = min(max(0, at - MOST_PARTS // 2), len(one.parts) - MOST_PARTS)
    return list(one.parts[first : first + MOST_PARTS])


def words_at(text: str, offset: int, found: Words) -> list[Word]:
    """The words of a text that begins at `offset`, at their places in the text as it is stored.

    A text is embedded in composed form (NFC); a word's characters there are found again here.
    """
    places = unicode.original_places(text)
    shown = []
    for start, end in found.spans.tolist():
        first, last = int(places[start]), int(places[end])
        shown.append(Word(text[first:last], offset + first, offset + last))
    return shown
