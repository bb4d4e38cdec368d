"""Writes inside one transaction: the commit that follows is the next generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from engine import vectors
from engine.storage import database
from engine.storage.records import NewDocument, NewPassage
from engine.storage.schema import documents, fields, generation, passages, sources, tombstones
from engine.storage.view import View, in_list, rows_in
from engine.storage.where import field_name, field_paths
from engine.types import IdArray


class Writer:
    """Writes inside one transaction. What it changes is the next generation, once closed."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        row = connection.execute(sa.select(generation)).one()
        self._number: int = row.number + 1
        self._last_document: int = row.last_document_id
        self._last_passage: int = row.last_passage_id
        self._documents: int = row.documents
        self._passages: int = row.passages
        self._sources: dict[str, int] = {}
        self._changed = False

    def add(self, batch: Sequence[NewDocument]) -> dict[str, int]:
        """Insert or replace documents, each key once; returns the row id of each key."""
        known = View(self._connection, 0).known([document.key for document in batch])
        self._bury([known[d.key].row_id for d in batch if d.key in known and d.passages])
        inserts: list[dict[str, Any]] = []
        updates: list[dict[str, Any]] = []
        labels: list[dict[str, Any]] = []
        new_passages: list[dict[str, Any]] = []
        row_ids: dict[str, int] = {}
        for document in batch:
            row: dict[str, Any] = {
                "source_id": self._source(document.source),
                "metadata": document.metadata,
            }
            if document.key in known:
                row_id = known[document.key].row_id
            else:
                self._last_document += 1
                row_id = self._last_document
            row_ids[document.key] = row_id
            if document.passages is None:
                labels.append(row | {"row_id": row_id})
                continue
            row |= {"content_hash": document.content_hash, "text": _whole_text(document)}
            if document.key in known:
                updates.append(row | {"row_id": row_id})
            else:
                written = database.dump_json(document.metadata)
                inserts.append(row | {"id": row_id, "key": document.key, "metadata": written})
            new_passages += self._passage_rows(row_id, document.passages)
        self._insert(documents, inserts)
        for rows in filter(None, (updates, labels)):
            by_id = documents.c.id == sa.bindparam("row_id")
            self._connection.execute(sa.update(documents).where(by_id), rows)
        self._insert(passages, new_passages)
        self._documents += len(inserts)
        self._passages += len(new_passages)
        self._register_fields(batch)
        self._changed = True
        return row_ids

    def _insert(self, table: sa.Table, rows: list[dict[str, Any]]) -> None:
        """Insert rows by the driver's own executemany: half the time of the compiled statement's,
        which converts every value of every row on its way."""
        if not rows:
            return
        names = list(rows[0])
        statement = sa.insert(table).values({name: sa.bindparam(name) for name in names})
        compiled = statement.compile(self._connection)
        order = compiled.positiontup or names
        self._connection.exec_driver_sql(
            str(compiled), [tuple(row[name] for name in order) for row in rows]
        )

    def delete(self, row_ids: Sequence[int]) -> int:
        """Delete documents and their passages; returns how many documents went."""
        if not row_ids:
            return 0
        self._bury(row_ids)
        gone = self._connection.execute(
            sa.delete(documents).where(in_list(documents.c.id, row_ids))
        ).rowcount
        self._documents -= gone
        self._changed = True
        return gone

    def finish_source(self, uri: str, kept: IdArray | None) -> int:
        """A source was read to its end. Deletes its documents that are not among the rows `kept`
        (None keeps all); returns how many went."""
        source_id = self._source(uri, finished=True)
        if kept is None:
            return 0
        rows = self._connection.scalars(
            sa.select(documents.c.id).where(documents.c.source_id == source_id)
        ).all()
        return self.delete(np.setdiff1d(np.array(rows, dtype=np.int64), kept).tolist())

    def forget_source(self, uri: str) -> int:
        """Delete a source and its documents; returns how many documents went."""
        gone = self.finish_source(uri, np.empty(0, np.int64))
        self._connection.execute(sa.delete(sources).where(sources.c.uri == uri))
        self._sources.pop(uri, None)
        return gone

    def close(self) -> None:
        """Write the counters of the new generation, if there is one."""
        if self._changed:
            self._write_counters()

    def _bury(self, document_ids: Sequence[int]) -> None:
        """Delete the passages of documents, keeping their ids as tombstones for the index."""
        if not document_ids:
            return
        chosen = in_list(passages.c.document_id, document_ids)
        self._connection.execute(
            sa.insert(tombstones).from_select(
                ["passage_id", "generation"],
                sa.select(passages.c.id, sa.literal(self._number)).where(chosen),
            )
        )
        self._passages -= self._connection.execute(sa.delete(passages).where(chosen)).rowcount

    def _passage_rows(self, document_id: int, parts: Sequence[NewPassage]) -> list[dict[str, Any]]:
        rows = []
        for ordinal, passage in enumerate(parts):
            self._last_passage += 1
            rows.append(
                {
                    "id": self._last_passage,
                    "document_id": document_id,
                    "ordinal": ordinal,
                    "start": passage.start,
                    "end": passage.end,
                    "token_count": passage.token_count,
                    "truncated": passage.truncated,
                    "content_hash": passage.content_hash,
                    "text": passage.text,
                    "vector": vectors.to_blob(passage.vector),
                }
            )
        return rows

    def _source(self, uri: str | None, *, finished: bool = False) -> int | None:
        """A source's row, made if need be; it is unfinished until it was read to its end."""
        if uri is None:
            return None
        if uri not in self._sources or finished:
            row = self._connection.execute(sa.select(sources).where(sources.c.uri == uri)).first()
            if row is None:
                made = sa.insert(sources).values(uri=uri, finished=finished)
                self._sources[uri] = self._connection.execute(
                    made.returning(sources.c.id)
                ).scalar_one()
            else:
                self._sources[uri] = row.id
                if row.finished != finished:
                    self._connection.execute(
                        sa.update(sources).where(sources.c.id == row.id).values(finished=finished)
                    )
        return self._sources[uri]

    def _register_fields(self, batch: Sequence[NewDocument]) -> None:
        seen = {field_name(path) for document in batch for path in field_paths(document.metadata)}
        query = sa.select(fields.c.name)
        known = {row.name for row in rows_in(self._connection, query, fields.c.name, seen)}
        if seen - known:
            self._connection.execute(
                sa.insert(fields), [{"name": name} for name in sorted(seen - known)]
            )

    def _write_counters(self) -> None:
        self._connection.execute(
            sa.update(generation).values(
                number=self._number,
                last_document_id=self._last_document,
                last_passage_id=self._last_passage,
                documents=self._documents,
                passages=self._passages,
            )
        )


def _whole_text(document: NewDocument) -> str | None:
    """The document's text where its passages do not hold it: NULL for a single whole passage."""
    parts = document.passages
    single = parts is not None and len(parts) == 1 and parts[0].text == document.text
    return None if single else document.text
