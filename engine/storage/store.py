"""Rows in and out as value types, one transaction a call.

A document's row, its passages, their vectors and the new generation commit together, so what a
reader sees is always one generation, whole.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from engine import files
from engine.errors import InvalidInputError, SchemaVersionError
from engine.files import WriterLock
from engine.storage import database, lexical
from engine.storage.records import Published, StoreSettings
from engine.storage.schema import HEAD, generation, settings, tombstones
from engine.storage.view import View
from engine.storage.writer import Writer, write_settings
from engine.types import Stats


def create_store(path: Path, made: StoreSettings) -> None:
    """Make a new, empty store; raises `StorageError` where one cannot be made."""
    values = asdict(made) | {"metric": made.metric.value, "kind": made.kind.value}
    with database.created(path) as connection:
        connection.execute(
            sa.insert(settings), [{"name": n, "value": v} for n, v in values.items()]
        )
        counters = ("number", "last_document_id", "last_passage_id", "documents", "passages")
        connection.execute(sa.insert(generation), {"id": 1} | dict.fromkeys(counters, 0))


def as_path(path: object) -> Path:
    """A store's path, or `InvalidInputError`."""
    text = files.path_text(path)
    if text is None:
        raise InvalidInputError(f"a store's path is a text or a Path, not {path!r}")
    return Path(text).absolute()


def store_exists(path: Path) -> bool:
    """There is a database at the path."""
    return (path / database.FILE_NAME).is_file()


def new_store_id() -> str:
    """A name no other store has, to tell a cache file of another store."""
    return uuid.uuid4().hex


class Store:
    """An open store. Safe to share between threads: every call has its own connection."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self.schema = database.check_schema(path)
        self.lock = WriterLock(path)
        if self.schema != HEAD:
            if read_only:
                raise SchemaVersionError(
                    f"the store {path} has the older schema {self.schema}; open it once for "
                    "writing, with any `attendex query`, to upgrade it",
                    found=self.schema,
                    expected=HEAD,
                )
            with self.lock.held():
                database.upgrade(path, database.check_schema(path))
            self.schema = HEAD
        self._engine = database.open_engine(path / database.FILE_NAME, read_only=read_only)
        self._process = os.getpid()
        try:
            self.settings = self._read_settings()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._db.dispose()

    @property
    def _db(self) -> sa.Engine:
        """The engine; in a forked child its connections are its own, never the parent's."""
        if os.getpid() != self._process:
            self._engine.dispose(close=False)
            self._process = os.getpid()
        return self._engine

    def _read_settings(self) -> StoreSettings:
        with database.reading(self._db, self.path) as connection:
            rows = connection.execute(sa.select(settings)).all()
        try:
            return StoreSettings.of({row.name: row.value for row in rows})
        except (KeyError, TypeError, ValueError) as error:
            raise database.damaged(self.path, f"its settings: {error}") from error

    @contextmanager
    def reading(self) -> Iterator[View]:
        """One snapshot: all that is read through the view is of the same generation."""
        with database.reading(self._db, self.path) as connection:
            yield View(connection, self.settings.dimension)

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """One transaction: all that is written through the writer commits together."""
        with database.writing(self._db, self.path) as connection:
            writer = Writer(connection)
            yield writer
            writer.close()

    def delete(self, keys: Collection[str]) -> int:
        """Delete documents by key; unknown keys are ignored. Returns how many went."""
        with self.reading() as view:
            rows = [known.row_id for known in view.known(keys).values()]
        with self.writing() as writer:
            return writer.delete(rows)

    def set_published(self, published: Published, wanted: StoreSettings | None = None) -> None:
        """Name the index files in use; forgets the deletions they already lack. With `wanted`,
        its kind of index, target, memory and factory are the store's from now on."""
        with database.writing(self._db, self.path) as connection:
            if wanted is not None:
                values = {
                    "kind": wanted.kind.value,
                    "recall": wanted.recall,
                    "memory": wanted.memory,
                    "factory": wanted.factory,
                }
                write_settings(connection, values)
            connection.execute(sa.update(generation).values(published=asdict(published)))
            connection.execute(
                sa.delete(tombstones).where(tombstones.c.generation <= published.generation)
            )

    def reload(self) -> StoreSettings:
        """The settings as they are now: another process may have changed the index wanted."""
        self.settings = self._read_settings()
        return self.settings

    def compact(self) -> None:
        """Give the room of deleted rows back to the disk."""
        with database.writing(self._db, self.path) as connection:
            lexical.optimize(connection)
        database.compact(self.path)

    def rebuild_lexical(self) -> None:
        """Make the lexical index anew from the passages."""
        with database.writing(self._db, self.path) as connection:
            lexical.rebuild(connection)

    def rename_model(self, name: str) -> None:
        """Remember where the same model is found now."""
        self._set({"model": name})

    def keep_tokens(self) -> None:
        """Keep the word vectors of new passages from now on."""
        if not self.reload().tokens:
            self._set({"tokens": True})

    def _set(self, values: dict[str, Any]) -> None:
        with database.writing(self._db, self.path) as connection:
            write_settings(connection, values)
        self.settings = self._read_settings()

    def stats(self) -> Stats:
        """What the store holds, from its counters and the sizes of its files."""
        self.reload()
        with self.reading() as view:
            state = view.state()
            chunked, dead = view.count_chunked(), view.count_dead()
            truncated, known = view.count_truncated(), view.count_sources()
            pending = tuple(view.unfinished_sources())
            wordless = view.count_wordless() if self.settings.tokens else 0
        indexed = state.published.passages if state.published else 0
        approximate = state.published.approximate if state.published else None
        measured = None if approximate is None else approximate.trial
        return Stats(
            path=str(self.path),
            model=self.settings.model,
            fingerprint=self.settings.fingerprint,
            dimension=self.settings.dimension,
            metric=self.settings.metric.value,
            schema=self.schema,
            generation=state.number,
            documents=state.documents,
            passages=state.passages,
            chunked=chunked,
            truncated=truncated,
            sources=known,
            pending=pending,
            indexed=indexed,
            delta=state.passages - indexed + dead,
            dead=dead,
            database_bytes=_size(self.path, f"{database.FILE_NAME}*"),
            index_bytes=_size(self.path, "index/*"),
            kind=self.settings.kind.value,
            factory=self.settings.factory,
            recall_target=self.settings.recall,
            recall=None if measured is None else (measured.recall, measured.low, measured.high),
            recall_sample=0 if measured is None else measured.sample,
            tokens=self.settings.tokens,
            worded=state.worded,
            wordless=wordless,
            word_bytes=state.word_bytes,
        )


def _size(directory: Path, pattern: str) -> int:
    """Bytes of the files of a pattern; a file that goes away meanwhile counts nothing."""
    total = 0
    for path in directory.glob(pattern):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
