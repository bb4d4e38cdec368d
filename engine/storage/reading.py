"""Reads on one snapshot of the database that need no arrays: counters, documents, rows by id."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from engine.errors import CorruptionError
from engine.storage.connection import Connection
from engine.storage.records import KnownDocument, PassageRow, Published, State
from engine.types import StoredDocument

_STATE = "SELECT number, documents, passages, published, worded, word_bytes FROM generation"
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
_WORDLESS = """
    SELECT p.id, p.text FROM passages AS p LEFT JOIN passage_words AS w ON w.passage_id = p.id
    WHERE p.id > ? AND p.content_hash IS NOT NULL AND w.passage_id IS NULL ORDER BY p.id LIMIT ?
"""
_DOCUMENTS = """
    SELECT d."key",
        coalesce(d.text, (SELECT text FROM passages WHERE document_id = d.id AND ordinal = 0)),
        d.metadata, s.uri, (SELECT count(*) FROM passages WHERE document_id = d.id)
    FROM documents AS d LEFT JOIN sources AS s ON s.id = d.source_id WHERE d."key"
"""
_UNDER = "SELECT uri FROM sources WHERE uri = ? OR substr(uri, 1, ?) = ? ORDER BY uri"
_OF_SOURCE = """
    SELECT count(*) FROM documents AS d JOIN sources AS s ON s.id = d.source_id WHERE s.uri = ?
"""
_TRUNCATED_OF = """
    SELECT count(*) FROM passages WHERE id IN (SELECT value FROM json_each(?)) AND truncated
"""


class Reading:
    """What a store holds, on one snapshot of the database."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def state(self) -> State:
        row = self.connection.row(_STATE)
        if row is None:
            raise CorruptionError(
                "the database is damaged: it has lost its counters; restore it from a backup"
            )
        number, held, parts, published, worded, word_bytes = row
        found = None if published is None else Published.from_json(published)
        return State(number, held, parts, found, worded, word_bytes)

    def known(self, keys: Collection[str]) -> dict[str, KnownDocument]:
        """The documents that exist among `keys`."""
        return {
            row[0]: KnownDocument._make(row[1:]) for row in self.connection.rows_in(_KNOWN, keys)
        }

    def wordless(self, after: int, limit: int) -> list[tuple[int, str]]:
        """Id and text of embedded passages without word vectors, the first past an id."""
        return [(id_, text) for id_, text in self.connection.rows(_WORDLESS, (after, limit))]

    def count_wordless(self) -> int:
        """Embedded passages without word vectors."""
        own = self._count("SELECT count(*) FROM passages WHERE content_hash IS NULL")
        state = self.state()
        return state.passages - own - state.worded

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
