"""Writes inside one transaction: the commit that follows is the next generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import sqlalchemy as sa

from engine.arrays import IdArray
from engine.storage import alchemy, lexical, words
from engine.storage.connection import dump_json
from engine.storage.records import NewDocument, Published
from engine.storage.schema import (
    directions,
    documents,
    fields,
    generation,
    passage_words,
    passages,
    settings,
    sources,
    tombstones,
)
from engine.storage.view import View
from engine.storage.where import field_name, shape
from engine.storage.words import Amount
from engine.words import Packed

_ROWS_A_STATEMENT = 2048
_KNOWN_FIELDS = "SELECT name FROM fields WHERE name"
_TEXT = passages.columns.keys().index("text")


def begin(connection: sa.Connection, made: Mapping[str, Any]) -> None:
    """Write a new store's settings and counters."""
    connection.execute(sa.insert(settings), _named(made))
    counters = ("number", "last_document_id", "last_passage_id", "documents", "passages")
    connection.execute(sa.insert(generation), {"id": 1} | dict.fromkeys(counters, 0))


class Writer:
    """Writes inside one transaction. What it changes is the next generation, once closed."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._plain = alchemy.plain(connection)
        counters = [column for column in generation.columns if column.name != "published"]
        row = connection.execute(sa.select(*counters)).one()
        self._number: int = row.number + 1
        self._last_document: int = row.last_document_id
        self._last_passage: int = row.last_passage_id
        self._documents: int = row.documents
        self._passages: int = row.passages
        self._words = Amount(row.worded, row.word_bytes)
        self._sources: dict[str, int] = {}
        self._fields: set[str] = set()
        self._changed = False

    def add(
        self,
        batch: Sequence[NewDocument],
        is_finished: Callable[[str], bool] | None = None,
    ) -> dict[str, int]:
        """Insert or replace documents, each key once; returns the row id of each key stored.

        A document's source is pending until `finish_source`; with `is_finished`, that says so
        of sources met for the first time, and the others are left as they are.
        """
        found = View(self._plain, 0).known([document.key for document in batch])
        known = {key: old.row_id for key, old in found.items()}
        self._bury([known[d.key] for d in batch if d.key in known and d.passages])
        inserts: list[tuple[Any, ...]] = []
        updates: list[dict[str, Any]] = []
        labels: list[dict[str, Any]] = []
        new_passages: list[tuple[Any, ...]] = []
        new_words: list[tuple[int, Packed]] = []
        row_ids: dict[str, int] = {}
        for document in batch:
            key, content_hash, _, _, written, uri, parts = document
            old = known.get(key)
            if old is None and parts is None:
                continue  # deleted since its metadata were found to have changed
            source = self._source(uri, is_finished)
            if old is None:
                self._last_document += 1
            row_ids[key] = row_id = self._last_document if old is None else old
            if old is None:
                whole = _whole_text(document)
                inserts.append((row_id, key, source, content_hash, whole, written))
            else:
                row: dict[str, Any] = {"row_id": row_id, "source_id": source, "written": written}
                if parts is None:
                    labels.append(row)
                else:
                    row |= {"content_hash": content_hash, "text": _whole_text(document)}
                    updates.append(row)
            for ordinal, part in enumerate(parts or ()):
                self._last_passage += 1
                start, end, text, tokens, part_hash, blob, truncated, packed = part
                if packed is not None:
                    new_words.append((self._last_passage, packed))
                measured = (tokens, truncated, part_hash)
                new_passages.append(
                    (self._last_passage, row_id, ordinal, start, end, *measured, text, blob)
                )
        self._insert(documents, inserts)
        for rows in filter(None, (updates, labels)):
            self._connection.execute(_update_of(rows[0]), rows)
        self._insert(passages, new_passages)
        lexical.insert(self._plain, [(row[0], row[_TEXT]) for row in new_passages])
        self.add_words(new_words)
        self._documents += len(inserts)
        self._passages += len(new_passages)
        self._register_fields(batch)
        self._changed = True
        return row_ids

    def add_words(self, rows: Sequence[tuple[int, Packed]]) -> None:
        """Keep the word vectors of passages that have none yet, by passage id."""
        added = words.insert(self._plain, rows)
        held = Amount(self._words.passages + added.passages, self._words.bytes + added.bytes)
        self._words = words.fit_if_due(self._plain, held) if rows else held
        self._changed |= bool(rows)

    def drop_words(self) -> int:
        """Forget all word vectors and what they are projected on, and keep none from now on;
        returns of how many passages."""
        gone = self._words.passages
        for table in (passage_words, directions):
            self._connection.execute(sa.delete(table))
        self._words = Amount(0, 0)
        self.set_settings({"tokens": False})
        self._changed = True
        return gone

    def _insert(self, table: sa.Table, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows of all the table's columns, in order, many by one statement.

        The driver lets other threads in at every step of a statement, and to come back waits for
        them: with a statement a row, a busy thread beside this one would cost a wait a row.
        """
        names = ", ".join(f'"{column.name}"' for column in table.columns)
        marks = f"({', '.join('?' * len(table.columns))})"
        command = f"INSERT INTO {table.name} ({names}) VALUES"
        self._plain.insert_many(command, marks, rows, _ROWS_A_STATEMENT)

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
        source_id = self._source(uri, lambda _: True)
        self._set_finished(source_id, True)
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

    def set_settings(self, values: Mapping[str, Any]) -> None:
        """Set some of the store's settings, whether they were set before or not."""
        self._connection.execute(sa.delete(settings).where(settings.c.name.in_(values)))
        self._connection.execute(sa.insert(settings), _named(values))

    def set_published(self, published: Published) -> None:
        """Name the index files in use; forgets the deletions they already lack."""
        self._connection.execute(sa.update(generation).values(published=asdict(published)))
        self._connection.execute(
            sa.delete(tombstones).where(tombstones.c.generation <= published.generation)
        )

    def optimize_lexical(self) -> None:
        """Leave out of the lexical index what was deleted."""
        lexical.optimize(self._plain)

    def rebuild_lexical(self) -> None:
        """Make the lexical index anew from the passages."""
        lexical.rebuild(self._plain)

    def close(self) -> None:
        """Write the counters of the new generation, if there is one."""
        if self._changed:
            self._write_counters()

    def _bury(self, document_ids: Sequence[int]) -> None:
        """Delete the passages of documents, keeping their ids as tombstones for the index."""
        if not document_ids:
            return
        lexical.remove(self._plain, document_ids)
        chosen = in_list(passages.c.document_id, document_ids)
        self._connection.execute(
            sa.insert(tombstones).from_select(
                ["passage_id", "generation"],
                sa.select(passages.c.id, sa.literal(self._number)).where(chosen),
            )
        )
        lost = words.amount(self._plain, document_ids)
        self._words = Amount(self._words.passages - lost.passages, self._words.bytes - lost.bytes)
        self._passages -= self._connection.execute(sa.delete(passages).where(chosen)).rowcount

    def _source(self, uri: str | None, is_finished: Callable[[str], bool] | None) -> int | None:
        """A source's row, made if need be; see `add` for whether it is finished."""
        if uri is None or uri in self._sources:
            return None if uri is None else self._sources[uri]
        row = self._connection.execute(sa.select(sources).where(sources.c.uri == uri)).first()
        if row is None:
            finished = is_finished is not None and is_finished(uri)
            made = sa.insert(sources).values(uri=uri, finished=finished)
            self._sources[uri] = self._connection.scalars(made.returning(sources.c.id)).one()
        else:
            self._sources[uri] = row.id
            if row.finished and is_finished is None:
                self._set_finished(row.id, False)
        return self._sources[uri]

    def _set_finished(self, source_id: int | None, finished: bool) -> None:
        chosen = sa.update(sources).where(sources.c.id == source_id)
        self._connection.execute(chosen.values(finished=finished))

    def _register_fields(self, batch: Sequence[NewDocument]) -> None:
        shapes = {shape(document.metadata) for document in batch}
        seen = {field_name(path) for names in shapes for path in names} - self._fields
        if not seen:
            return
        known = {row[0] for row in self._plain.rows_in(_KNOWN_FIELDS, seen)}
        if seen - known:
            self._connection.execute(
                sa.insert(fields), [{"name": name} for name in sorted(seen - known)]
            )
        self._fields |= seen

    def _write_counters(self) -> None:
        self._connection.execute(
            sa.update(generation).values(
                number=self._number,
                last_document_id=self._last_document,
                last_passage_id=self._last_passage,
                documents=self._documents,
                passages=self._passages,
                worded=self._words.passages,
                word_bytes=self._words.bytes,
            )
        )


def _named(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def in_list(column: sa.ColumnElement[Any], numbers: Sequence[int]) -> sa.ColumnElement[bool]:
    """`column IN numbers` for any number of them: one bound JSON list, not a variable each."""
    items = sa.func.json_each(dump_json(list(numbers))).table_valued("value")
    return column.in_(sa.select(items.c.value))


def _update_of(row: dict[str, Any]) -> sa.Update:
    """The statement that writes rows like this one; metadata comes as JSON already."""
    columns: dict[str, Any] = {
        name: sa.bindparam(name) for name in row if name not in ("row_id", "written")
    }
    written = sa.bindparam("written", type_=sa.Text)
    by_id = documents.c.id == sa.bindparam("row_id")
    return sa.update(documents).where(by_id).values(metadata=written, **columns)


def _whole_text(document: NewDocument) -> str | None:
    """The document's text where its passages do not hold it: NULL for a single whole passage."""
    parts = document.passages
    single = parts is not None and len(parts) == 1 and parts[0].text == document.text
    return None if single else document.text
