"""Reads on one snapshot of the database, as value types."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import sqlalchemy as sa

from engine import vectors
from engine.errors import CorruptionError
from engine.storage import database, lexical, words
from engine.storage.filters import to_sql
from engine.storage.records import Changes, KnownDocument, PassageRow, Published, State
from engine.storage.schema import (
    documents,
    fields,
    passage_words,
    passages,
    sources,
    tombstones,
)
from engine.storage.where import Filter, check_fields
from engine.types import Exported, Float32Array, Float64Array, IdArray, Passage, StoredDocument
from engine.words import Packed

_ROWS_A_FETCH = 1024
_VALUES_A_QUERY = 16_384
MOST_COUNTED = 1 << 18

_STATE = "SELECT number, documents, passages, published, worded, word_bytes FROM generation"
_PASSAGES = """
    SELECT p.id, p.document_id, d."key", p.text, p.start, p."end", d.metadata
    FROM passages AS p JOIN documents AS d ON d.id = p.document_id
    WHERE p.id IN (SELECT value FROM json_each(?))
"""
_OWNERS = """
    SELECT id, document_id FROM passages WHERE id IN (SELECT value FROM json_each(?))
"""
_PARTS = """
    SELECT document_id, id FROM passages
    WHERE document_id IN (SELECT value FROM json_each(?)) ORDER BY id
"""
"""The statements of every search, written out: building them took as long as running them."""


def in_list(column: sa.ColumnElement[Any], numbers: Sequence[int]) -> sa.ColumnElement[bool]:
    """`column IN numbers` for any number of them: one bound JSON list, not a variable each."""
    items = sa.func.json_each(database.dump_json(list(numbers))).table_valued("value")
    return column.in_(sa.select(items.c.value))


def rows_in(
    connection: sa.Connection,
    query: sa.Select[Any],
    column: sa.ColumnElement[Any],
    values: Collection[str] | Collection[bytes],
) -> Iterator[sa.Row[Any]]:
    """The rows of `query` whose column is among texts or bytes, some values a statement.

    Bound one by one: a JSON list would end a text at its first NUL.
    """
    wanted = list(values)
    for start in range(0, len(wanted), _VALUES_A_QUERY):
        block = wanted[start : start + _VALUES_A_QUERY]
        yield from connection.execute(query.where(column.in_(block)))


class View:
    """Reads on one snapshot of the database."""

    def __init__(self, connection: sa.Connection, dimension: int) -> None:
        self.connection = connection
        self._dimension = dimension

    def state(self) -> State:
        row = self.connection.exec_driver_sql(_STATE).one()
        number, held, parts, published, worded, word_bytes = row
        found = None if published is None else Published.from_json(published)
        return State(number, held, parts, found, worded, word_bytes)

    def changes(self, *, after_passage: int, after_generation: int) -> Changes:
        """Passages appended after an id, and ids deleted after a generation."""
        query = sa.select(passages.c.id, passages.c.vector).order_by(passages.c.id)
        rows = self.connection.execute(query.where(passages.c.id > after_passage)).all()
        dead = self.connection.scalars(
            sa.select(tombstones.c.passage_id)
            .where(tombstones.c.generation > after_generation)
            .order_by(tombstones.c.passage_id)
        ).all()
        return Changes(*self._ids_and_vectors(rows), np.array(dead, dtype=np.int64))

    def all_vectors(self) -> Iterator[tuple[IdArray, Float32Array]]:
        """Every passage's id and vector, ids ascending, in blocks."""
        query = sa.select(passages.c.id, passages.c.vector).order_by(passages.c.id)
        result = self.connection.execution_options(yield_per=_ROWS_A_FETCH).execute(query)
        for rows in result.partitions():
            yield self._ids_and_vectors(rows)

    def _ids_and_vectors(self, rows: Sequence[Any]) -> tuple[IdArray, Float32Array]:
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
        d = documents.c
        written = sa.type_coerce(d.metadata, sa.Text)
        query = sa.select(d.key, d.id, d.content_hash, written, sources.c.uri).select_from(
            documents.outerjoin(sources)
        )
        found = rows_in(self.connection, query, d.key, keys)
        return {row[0]: KnownDocument._make(row[1:]) for row in found}

    def embedded(
        self, hashes: Collection[bytes]
    ) -> dict[bytes, tuple[Float32Array, Packed | None]]:
        """Vectors of texts that were embedded before, and of their words, by content hash."""
        p = passages.c
        query = sa.select(p.content_hash, p.id, p.vector)
        rows: list[Any] = list(rows_in(self.connection, query, p.content_hash, hashes))
        ids, matrix = self._ids_and_vectors([row[1:] for row in rows])
        packed = self.words(ids.tolist())
        found: dict[bytes, tuple[Float32Array, Packed | None]] = {}
        for row, vector in zip(rows, matrix, strict=True):
            content_hash, id_ = row[0], row[1]
            if content_hash not in found or id_ in packed:
                found[content_hash] = vector, packed.get(id_)
        return found

    def documents_of_texts(self, hashes: Collection[bytes]) -> set[int]:
        """The documents that have a passage of one of these content hashes."""
        query = sa.select(passages.c.document_id)
        return {row[0] for row in rows_in(self.connection, query, passages.c.content_hash, hashes)}

    def words(self, ids: Sequence[int]) -> dict[int, Packed]:
        """The word vectors of passages, of those that have them, by passage id."""
        return words.read(self.connection, ids)

    def directions(self) -> Float32Array | None:
        """What word vectors are projected on (D, width); None while they have their full width."""
        return words.read_directions(self.connection)

    def wordless(self, after: int, limit: int) -> list[tuple[int, str]]:
        """Id and text of embedded passages without word vectors, the first past an id."""
        p = passages.c
        query = (
            sa.select(p.id, p.text)
            .outerjoin(passage_words)
            .where(p.id > after, p.content_hash.is_not(None), passage_words.c.passage_id.is_(None))
            .order_by(p.id)
            .limit(limit)
        )
        return [(row.id, row.text) for row in self.connection.execute(query)]

    def count_wordless(self) -> int:
        """Embedded passages without word vectors."""
        own = sa.select(sa.func.count()).where(passages.c.content_hash.is_(None))
        state = self.state()
        return state.passages - self._count(own) - state.worded

    def allowed(self, where: Filter) -> IdArray:
        """Ids of the passages whose document meets the filter, ascending.

        Raises `FilterError` for a field that no document has, unless there is no document at all.
        """
        if not self.state().documents:
            return np.empty(0, np.int64)
        check_fields(where, self.field_names())
        rows = self.connection.scalars(
            sa.select(passages.c.id)
            .join(documents, documents.c.id == passages.c.document_id)
            .where(to_sql(where))
            .order_by(passages.c.id)
        ).all()
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
        return set(self.connection.scalars(sa.select(fields.c.name)).all())

    def passages(self, ids: Sequence[int]) -> dict[int, PassageRow]:
        """Candidate passages with their documents, by passage id."""
        given = database.dump_json(list(ids))
        rows = self.connection.exec_driver_sql(_PASSAGES, (given,)).cursor
        return {row[0]: PassageRow(*row) for row in ([] if rows is None else rows.fetchall())}

    def owners(self, ids: Sequence[int]) -> dict[int, int]:
        """The documents of passages, by passage id."""
        given = database.dump_json(list(ids))
        return {row[0]: row[1] for row in self.connection.exec_driver_sql(_OWNERS, (given,))}

    def passage_ids(self, document_ids: Sequence[int]) -> dict[int, list[int]]:
        """The passages of documents, in order, by document."""
        given = database.dump_json(list(document_ids))
        found: dict[int, list[int]] = {}
        for document, id_ in self.connection.exec_driver_sql(_PARTS, (given,)):
            found.setdefault(document, []).append(id_)
        return found

    def documents(self, keys: Sequence[str]) -> dict[str, StoredDocument]:
        """Whole documents by key."""
        d, p = documents.c, passages.c
        first = sa.select(p.text).where(p.document_id == d.id, p.ordinal == 0).scalar_subquery()
        count = sa.select(sa.func.count()).where(p.document_id == d.id).scalar_subquery()
        query = sa.select(
            d.key, sa.func.coalesce(d.text, first), d.metadata, sources.c.uri, count
        ).select_from(documents.outerjoin(sources))
        found = rows_in(self.connection, query, d.key, keys)
        return {row.key: StoredDocument(*tuple(row)) for row in found}

    def exported(self, where: Filter | None) -> Iterator[Exported]:
        """Every document, or those of a filter, with its passages; in order of insertion."""
        d, p = documents.c, passages.c
        query = sa.select(
            d.id,
            p.id,
            p.vector,
            d.key,
            d.text,
            sa.type_coerce(d.metadata, sa.Text),
            sources.c.uri,
            p.text,
            *(p.start, p.end, p.token_count, p.truncated),
            p.content_hash.is_(None),
        ).select_from(documents.join(passages).outerjoin(sources))
        if where is not None:
            if self.state().documents:
                check_fields(where, self.field_names())
            query = query.where(to_sql(where))
        streamed = self.connection.execution_options(yield_per=_ROWS_A_FETCH)
        result = streamed.execute(query.order_by(d.id, p.ordinal))
        for _, group in itertools.groupby(result, key=itemgetter(0)):
            rows = list(group)
            _, matrix = self._ids_and_vectors([row[1:3] for row in rows])
            parts = tuple(
                Passage(start, end, tokens, truncated, own, vector)
                for (*_, start, end, tokens, truncated, own), vector in zip(
                    rows, matrix, strict=True
                )
            )
            key, text, written, uri, only = rows[0][3:8]
            yield Exported(key, only if text is None else text, written, uri, parts)

    def count_chunked(self) -> int:
        """Documents that were split into several passages."""
        return self._count(sa.select(sa.func.count()).where(passages.c.ordinal == 1))

    def count_truncated(self) -> int:
        """Passages of which the model saw only the beginning."""
        return self._count(sa.select(sa.func.count()).where(passages.c.truncated))

    def count_truncated_of(self, ids: Sequence[int]) -> int:
        """Passages among `ids` of which the model saw only the beginning."""
        chosen = sa.select(sa.func.count()).where(in_list(passages.c.id, ids), passages.c.truncated)
        return self._count(chosen)

    def sources_under(self, root: str) -> list[str]:
        """The sources that are `root` itself or lie below it."""
        prefix = root.rstrip("/") + "/"
        below = sa.func.substr(sources.c.uri, 1, len(prefix)) == prefix
        query = sa.select(sources.c.uri).where(sa.or_(sources.c.uri == root, below))
        return list(self.connection.scalars(query.order_by(sources.c.uri)).all())

    def count_documents_of(self, uri: str) -> int:
        """Documents that came from a source."""
        joined = documents.join(sources)
        return self._count(
            sa.select(sa.func.count()).select_from(joined).where(sources.c.uri == uri)
        )

    def unfinished_sources(self) -> list[str]:
        """Sources that an interrupted `index` left half read."""
        query = sa.select(sources.c.uri).where(sources.c.finished.is_(False))
        return list(self.connection.scalars(query.order_by(sources.c.uri)).all())

    def count_sources(self) -> int:
        return self._count(sa.select(sa.func.count()).select_from(sources))

    def count_dead(self) -> int:
        """Passages that the published index holds and that were deleted since."""
        return self._count(sa.select(sa.func.count()).select_from(tombstones))

    def _count(self, query: sa.Select[Any]) -> int:
        return self.connection.scalar(query) or 0
