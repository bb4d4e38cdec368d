"""Reads on one snapshot of the database, as value types."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from engine import vectors
from engine.errors import CorruptionError
from engine.storage import database
from engine.storage.filters import to_sql
from engine.storage.records import Changes, KnownDocument, PassageRow, Published, State
from engine.storage.schema import (
    documents,
    fields,
    generation,
    passages,
    sources,
    tombstones,
)
from engine.storage.where import Filter, check_fields
from engine.types import Float32Array, IdArray, StoredDocument

_ROWS_A_FETCH = 8192
_VALUES_A_QUERY = 500


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
        row = self.connection.execute(sa.select(generation)).one()
        published = Published(**row.published) if row.published else None
        return State(row.number, row.documents, row.passages, published)

    def changes(self, *, after_passage: int, after_generation: int) -> Changes:
        """Passages appended after an id, and ids deleted after a generation."""
        rows = self.connection.execute(
            sa.select(passages.c.id, passages.c.vector)
            .where(passages.c.id > after_passage)
            .order_by(passages.c.id)
        ).all()
        dead = self.connection.scalars(
            sa.select(tombstones.c.passage_id)
            .where(tombstones.c.generation > after_generation)
            .order_by(tombstones.c.passage_id)
        ).all()
        return Changes(
            ids=np.array([row.id for row in rows], dtype=np.int64),
            vectors=self._matrix(rows),
            dead=np.array(dead, dtype=np.int64),
        )

    def all_vectors(self) -> Iterator[tuple[IdArray, Float32Array]]:
        """Every passage's id and vector, ids ascending, in blocks."""
        query = sa.select(passages.c.id, passages.c.vector).order_by(passages.c.id)
        result = self.connection.execution_options(yield_per=_ROWS_A_FETCH).execute(query)
        for rows in result.partitions():
            ids = np.array([row.id for row in rows], dtype=np.int64)
            yield ids, self._matrix(rows)

    def _matrix(self, rows: Sequence[Any]) -> Float32Array:
        """The vectors of rows of (id, …, vector). Raises `CorruptionError` for a wrong width."""
        wrong = [row.id for row in rows if len(row.vector) != 4 * self._dimension]
        if wrong:
            raise CorruptionError(
                f"the database is damaged: the vectors of passages {wrong[:5]} have a wrong width; "
                "restore it from a backup, or index the documents again"
            )
        return vectors.from_blobs([row.vector for row in rows], self._dimension)

    def known(self, keys: Collection[str]) -> dict[str, KnownDocument]:
        """The documents that exist among `keys`."""
        d = documents.c
        query = sa.select(d.key, d.id, d.content_hash, d.metadata, sources.c.uri).select_from(
            documents.outerjoin(sources)
        )
        return {
            row.key: KnownDocument(row.id, row.content_hash, row.metadata, row.uri)
            for row in rows_in(self.connection, query, d.key, keys)
        }

    def embedded(self, hashes: Collection[bytes]) -> dict[bytes, Float32Array]:
        """Vectors of texts that were embedded before, by content hash."""
        query = sa.select(passages.c.id, passages.c.content_hash, passages.c.vector)
        rows = list(rows_in(self.connection, query, passages.c.content_hash, hashes))
        return dict(zip((row.content_hash for row in rows), self._matrix(rows), strict=True))

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

    def field_names(self) -> set[str]:
        return set(self.connection.scalars(sa.select(fields.c.name)).all())

    def passages(self, ids: Sequence[int]) -> dict[int, PassageRow]:
        """Candidate passages with their documents, by passage id."""
        p, d = passages.c, documents.c
        query = (
            sa.select(p.id, p.document_id, d.key, p.text, p.start, p.end, d.metadata)
            .select_from(passages.join(documents))
            .where(in_list(p.id, ids))
        )
        return {row.id: PassageRow(*row) for row in self.connection.execute(query)}

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

    def count_chunked(self) -> int:
        """Documents that were split into several passages."""
        return self._count(sa.select(sa.func.count()).where(passages.c.ordinal == 1))

    def count_truncated(self) -> int:
        """Passages of which the model saw only the beginning."""
        return self._count(sa.select(sa.func.count()).where(passages.c.truncated))

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
