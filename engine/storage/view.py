"""Reads on one snapshot of the database, vectors and all."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from engine import vectors
from engine.arrays import Float32Array, Float64Array, IdArray
from engine.errors import CorruptionError
from engine.storage import lexical, words
from engine.storage.connection import Connection, Row
from engine.storage.reading import Reading
from engine.storage.records import Changes
from engine.storage.where import Filter, check_fields
from engine.types import Exported, Passage
from engine.words import Packed

_ROWS_A_FETCH = 1024
MOST_COUNTED = 1 << 18

_VECTORS = "SELECT id, vector FROM passages WHERE id > ? ORDER BY id"
_DEAD = "SELECT passage_id FROM tombstones WHERE generation > ? ORDER BY passage_id"
_EMBEDDED = "SELECT content_hash, id, vector FROM passages WHERE"
_ALLOWED = """
    SELECT id FROM passages
    WHERE document_id IN (SELECT documents.id FROM documents WHERE {condition}) ORDER BY id
"""
_EXPORTED = """
    SELECT documents.id, p.id, p.vector, documents."key", documents.text, documents.metadata,
        s.uri, p.text, p.start, p."end", p.token_count, p.truncated, p.content_hash IS NULL
    FROM documents JOIN passages AS p ON p.document_id = documents.id
    LEFT JOIN sources AS s ON s.id = documents.source_id
    WHERE {condition} ORDER BY documents.id, p.ordinal
"""


class View(Reading):
    """Reads on one snapshot of the database."""

    def __init__(self, connection: Connection, dimension: int) -> None:
        super().__init__(connection)
        self._dimension = dimension

    def changes(self, *, after_passage: int, after_generation: int) -> Changes:
        """Passages appended after an id, and ids deleted after a generation."""
        rows = self.connection.rows(_VECTORS, (after_passage,))
        dead = self.connection.column(_DEAD, (after_generation,))
        return Changes(*self._ids_and_vectors(rows), np.array(dead, dtype=np.int64))

    def all_vectors(self) -> Iterator[tuple[IdArray, Float32Array]]:
        """Every passage's id and vector, ids ascending, in blocks."""
        for rows in self.connection.blocks(_VECTORS, (-1,), size=_ROWS_A_FETCH):
            yield self._ids_and_vectors(rows)

    def _ids_and_vectors(self, rows: Sequence[Row]) -> tuple[IdArray, Float32Array]:
        """Rows of (id, vector) as two arrays. Raises `CorruptionError` for a wrong width."""
        ids, blobs = zip(*rows, strict=True) if rows else ((), ())
        if not {len(blob) for blob in blobs} <= {4 * self._dimension}:
            wrong = [i for i, b in zip(ids, blobs, strict=True) if len(b) != 4 * self._dimension]
            raise CorruptionError(
                f"the database is damaged: the vectors of passages {wrong[:5]} have a wrong width; "
                "restore it from a backup, or save what can still be read (attendex recover)"
            )
        return np.array(ids, dtype=np.int64), vectors.from_blobs(blobs, self._dimension)

    def embedded(
        self, hashes: Collection[bytes], *, whole: bool = False
    ) -> dict[bytes, tuple[Float32Array, Packed | None]]:
        """Vectors of texts that were embedded before, and of their words, by content hash; only of
        those the model saw whole, if wanted."""
        statement = f"{_EMBEDDED} NOT truncated AND" if whole else _EMBEDDED
        rows = list(self.connection.rows_in(f"{statement} content_hash", hashes))
        ids, matrix = self._ids_and_vectors([row[1:] for row in rows])
        packed = self.words(ids.tolist())
        found: dict[bytes, tuple[Float32Array, Packed | None]] = {}
        for row, vector in zip(rows, matrix, strict=True):
            content_hash, id_ = row[0], row[1]
            if content_hash not in found or id_ in packed:
                found[content_hash] = vector, packed.get(id_)
        return found

    def words(self, ids: Sequence[int]) -> dict[int, Packed]:
        """The word vectors of passages, of those that have them, by passage id."""
        return words.read(self.connection, ids)

    def directions(self) -> Float32Array | None:
        """What word vectors are projected on (D, width); None while they have their full width."""
        return words.read_directions(self.connection)

    def allowed(self, where: Filter) -> IdArray:
        """Ids of the passages whose document meets the filter, ascending.

        Raises `FilterError` for a field that no document has, unless there is no document at all.
        """
        if not self.state().documents:
            return np.empty(0, np.int64)
        check_fields(where, self.field_names())
        condition, values = _condition(where)
        rows = self.connection.column(_ALLOWED.format(condition=condition), values)
        return np.array(rows, dtype=np.int64)

    def lexical(
        self, expression: str, k: int, allowed: IdArray | None = None
    ) -> tuple[IdArray, Float64Array]:
        """The `k` best passages by BM25, as `lexical.best` gives them."""
        return lexical.best(self.connection, expression, k, allowed)

    def lexical_scores(self, expression: str, ids: Sequence[int]) -> dict[int, float]:
        """The BM25 scores of passages, of those that hold a word of the expression."""
        return lexical.scores(self.connection, expression, np.array(sorted(ids), dtype=np.int64))

    def document_frequencies(self, words: Sequence[str]) -> list[int]:
        """How many passages hold each word, counted up to `MOST_COUNTED`."""
        return lexical.document_frequencies(self.connection, words, MOST_COUNTED)

    def exported(self, where: Filter | None) -> Iterator[Exported]:
        """Every document, or those of a filter, with its passages; in order of insertion."""
        condition, values = "true", ()
        if where is not None:
            if self.state().documents:
                check_fields(where, self.field_names())
            condition, values = _condition(where)
        statement = _EXPORTED.format(condition=condition)
        blocks = self.connection.blocks(statement, values, size=_ROWS_A_FETCH)
        for _, group in itertools.groupby(itertools.chain.from_iterable(blocks), key=itemgetter(0)):
            rows = list(group)
            _, matrix = self._ids_and_vectors([row[1:3] for row in rows])
            parts = tuple(
                Passage(start, end, tokens, bool(truncated), bool(own), vector)
                for (*_, start, end, tokens, truncated, own), vector in zip(
                    rows, matrix, strict=True
                )
            )
            key, text, written, uri, only = rows[0][3:8]
            yield Exported(key, only if text is None else text, written, uri, parts)


def _condition(where: Filter) -> tuple[str, tuple[Any, ...]]:
    from engine.storage.filters import to_statement  # which loads SQLAlchemy

    return to_statement(where)
