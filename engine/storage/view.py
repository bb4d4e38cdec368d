"""Reads on one snapshot of the database, as value types."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from engine import vectors
from engine.arrays import Float32Array, Float64Array, IdArray
from engine.errors import CorruptionError
from engine.storage import lexical, words
from engine.storage.connection import Connection, Row
from engine.storage.records import Changes, KnownDocument, PassageRow, Published, State
from engine.storage.where import Filter, check_fields
from engine.types import Exported, Passage, StoredDocument
from engine.words import Packed

_ROWS_A_FETCH = 1024
MOST_COUNTED = 1 << 18

_STATE = "SELECT number, documents, passages, published, worded, word_bytes FROM generation"
_VECTORS = "SELECT id, vector FROM passages WHERE id > ? ORDER BY id"
_DEAD = "SELECT passage_id FROM tombstones WHERE generation > ? ORDER BY passage_id"
_PASSAGES = """
    SELECT p.id, p.document_id, d."key", p.text, p.start, p."end", d.metadata
    FROM passages AS p JOIN documents AS d ON d.id = p.document_id
    WHERE p.id IN (SELECT value FROM json_each(?))
"""
_OWNERS = """
    SELECT id, document_id FROM passages WHERE id IN (SELECT value FROM json_each(?))
"""
_TEXTS = "SELECT id, text FROM passages WHERE id IN (SELECT value FROM json_each(?))"
_PARTS = """
    SELECT document_id, id FROM passages
    WHERE document_id IN (SELECT value FROM json_each(?)) ORDER BY id
"""
_KNOWN = """
    SELECT d."key", d.id, d.content_hash, d.metadata, s.uri
    FROM documents AS d LEFT JOIN sources AS s ON s.id = d.source_id WHERE d."key"
"""
_EMBEDDED = "SELECT content_hash, id, vector FROM passages WHERE"
_WORDLESS = """
    SELECT p.id, p.text FROM passages AS p LEFT JOIN passage_words AS w ON w.passage_id = p.id
    WHERE p.id > ? AND p.content_hash IS NOT NULL AND w.passage_id IS NULL ORDER BY p.id LIMIT ?
"""
_ALLOWED = """
    SELECT id FROM passages
    WHERE document_id IN (SELECT documents.id FROM documents WHERE {condition}) ORDER BY id
"""
_DOCUMENTS = """
    SELECT d."key",
        coalesce(d.text, (SELECT text FROM passages WHERE document_id = d.id AND ordinal = 0)),
        d.metadata, s.uri, (SELECT count(*) FROM passages WHERE document_id = d.id)
    FROM documents AS d LEFT JOIN sources AS s ON s.id = d.source_id WHERE d."key"
"""
_EXPORTED = """
    SELECT documents.id, p.id, p.vector, documents."key", documents.text, documents.metadata,
        s.uri, p.text, p.start, p."end", p.token_count, p.truncated, p.content_hash IS NULL
    FROM documents JOIN passages AS p ON p.document_id = documents.id
    LEFT JOIN sources AS s ON s.id = documents.source_id
    WHERE {condition} ORDER BY documents.id, p.ordinal
"""
_UNDER = "SELECT uri FROM sources WHERE uri = ? OR substr(uri, 1, ?) = ? ORDER BY uri"
_OF_SOURCE = """
    SELECT count(*) FROM documents AS d JOIN sources AS s ON s.id = d.source_id WHERE s.uri = ?
"""
_TRUNCATED_OF = """
    SELECT count(*) FROM passages WHERE id IN (SELECT value FROM json_each(?)) AND truncated
"""


class View:
    """Reads on one snapshot of the database."""

    def __init__(self, connection: Connection, dimension: int) -> None:
        self.connection = connection
        self._dimension = dimension

    def state(self) -> State:
        row = self.connection.row(_STATE)
        if row is None:
            raise CorruptionError(
                "the database is damaged: it has lost its counters; restore it from a backup"
            )
        number, held, parts, published, worded, word_bytes = row
        found = None if published is None else Published.from_json(published)
        return State(number, held, parts, found, worded, word_bytes)

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

    def known(self, keys: Collection[str]) -> dict[str, KnownDocument]:
        """The documents that exist among `keys`."""
        return {
            row[0]: KnownDocument._make(row[1:]) for row in self.connection.rows_in(_KNOWN, keys)
        }

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

    def wordless(self, after: int, limit: int) -> list[tuple[int, str]]:
        """Id and text of embedded passages without word vectors, the first past an id."""
        return [(id_, text) for id_, text in self.connection.rows(_WORDLESS, (after, limit))]

    def count_wordless(self) -> int:
        """Embedded passages without word vectors."""
        own = self._count("SELECT count(*) FROM passages WHERE content_hash IS NULL")
        state = self.state()
        return state.passages - own - state.worded

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

    def field_names(self) -> set[str]:
        return set(self.connection.column("SELECT name FROM fields"))

    def passages(self, ids: Sequence[int]) -> dict[int, PassageRow]:
        """Candidate passages with their documents, by passage id."""
        return {row[0]: PassageRow(*row) for row in self.connection.rows_of_ids(_PASSAGES, ids)}

    def owners(self, ids: Sequence[int]) -> dict[int, int]:
        """The documents of passages, by passage id."""
        return {row[0]: row[1] for row in self.connection.rows_of_ids(_OWNERS, ids)}

    def texts(self, ids: Collection[int]) -> list[tuple[int, str]]:
        """Ids and texts of passages."""
        return [(id_, text) for id_, text in self.connection.rows_of_ids(_TEXTS, ids)]

    def passage_ids(self, document_ids: Sequence[int]) -> dict[int, list[int]]:
        """The passages of documents, in order, by document."""
        found: dict[int, list[int]] = {}
        for document, id_ in self.connection.rows_of_ids(_PARTS, document_ids):
            found.setdefault(document, []).append(id_)
        return found

    def documents(self, keys: Sequence[str]) -> dict[str, StoredDocument]:
        """Whole documents by key."""
        return {
            key: StoredDocument(key, text, json.loads(written), uri, count)
            for key, text, written, uri, count in self.connection.rows_in(_DOCUMENTS, keys)
        }

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

    def count_chunked(self) -> int:
        """Documents that were split into several passages."""
        return self._count("SELECT count(*) FROM passages WHERE ordinal = 1")

    def count_truncated(self) -> int:
        """Passages of which the model saw only the beginning."""
        return self._count("SELECT count(*) FROM passages WHERE truncated")

    def count_truncated_of(self, ids: Sequence[int]) -> int:
        """Passages among `ids` of which the model saw only the beginning."""
        return int(self.connection.rows_of_ids(_TRUNCATED_OF, ids)[0][0])

    def sources_under(self, root: str) -> list[str]:
        """The sources that are `root` itself or lie below it."""
        prefix = root.rstrip("/") + "/"
        return self.connection.column(_UNDER, (root, len(prefix), prefix))

    def count_documents_of(self, uri: str) -> int:
        """Documents that came from a source."""
        return self._count(_OF_SOURCE, uri)

    def unfinished_sources(self) -> list[str]:
        """Sources that an interrupted `index` left half read."""
        return self.connection.column("SELECT uri FROM sources WHERE finished = 0 ORDER BY uri")

    def count_sources(self) -> int:
        return self._count("SELECT count(*) FROM sources")

    def count_dead(self) -> int:
        """Passages that the published index holds and that were deleted since."""
        return self._count("SELECT count(*) FROM tombstones")

    def _count(self, statement: str, *values: str) -> int:
        return int(self.connection.value(statement, values))


def _condition(where: Filter) -> tuple[str, tuple[Any, ...]]:
    from engine.storage.filters import to_statement  # which loads SQLAlchemy

    return to_statement(where)
