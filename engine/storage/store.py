"""Rows in and out as value types, one transaction a call.

A document's row, its passages, their vectors and the new generation commit together, so what a
reader sees is always one generation, whole.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import files
from engine.errors import InvalidInputError, SchemaVersionError, StorageError
from engine.files import Mutex, WriterLock
from engine.storage import database
from engine.storage.database import Snapshots
from engine.storage.reading import Reading
from engine.storage.records import Published, StoreSettings
from engine.types import Stats

if TYPE_CHECKING:
    from engine.storage.alchemy import Transactions
    from engine.storage.view import View
    from engine.storage.writer import Writer


def create_store(path: Path, made: StoreSettings) -> None:
    """Make a new, empty store; raises `StorageError` where one cannot be made."""
    from engine.storage import alchemy, writer

    with alchemy.created(path) as connection:
        writer.begin(connection, made.values())


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
        if self.schema != database.HEAD:
            if read_only:
                raise SchemaVersionError(
                    f"the store {path} has the older schema {self.schema}; open it once for "
                    "writing, with any `attendex query`, to upgrade it",
                    found=self.schema,
                    expected=database.HEAD,
                )
            from engine.storage import alchemy

            with self.lock.held():
                alchemy.upgrade(path, database.check_schema(path))
            self.schema = database.HEAD
        self._snapshots = Snapshots(path, read_only=read_only)
        self._transactions: Transactions | None = None
        self._setup = Mutex()
        try:
            self.settings = self._read_settings()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._snapshots.close()
        if self._transactions is not None:
            self._transactions.close()

    def _read_settings(self) -> StoreSettings:
        with self._snapshots.reading() as connection:
            rows = connection.rows("SELECT name, value FROM settings")
        try:
            return StoreSettings.from_json(rows)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise database.damaged(self.path, f"its settings: {error}") from error

    @contextmanager
    def reading(self) -> Iterator[View]:
        """One snapshot: all that is read through the view is of the same generation."""
        from engine.storage.view import View

        with self._snapshots.reading() as connection:
            yield View(connection, self.settings.dimension)

    @contextmanager
    def counting(self) -> Iterator[Reading]:
        """`reading`, without what needs arrays."""
        with self._snapshots.reading() as connection:
            yield Reading(connection)

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """One transaction: all that is written through the writer commits together."""
        from engine.storage.alchemy import Transactions
        from engine.storage.writer import Writer

        if self.read_only:
            raise StorageError(f"the store {self.path} was opened to be read only")
        with self._setup:
            if self._transactions is None:
                self._transactions = Transactions(self.path)
        with self._transactions.writing() as connection:
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
        with self.writing() as writer:
            if wanted is not None:
                writer.set_settings(
                    {
                        "kind": wanted.kind.value,
                        "recall": wanted.recall,
                        "memory": wanted.memory,
                        "factory": wanted.factory,
                    }
                )
            writer.set_published(published)

    def reload(self) -> StoreSettings:
        """The settings as they are now: another process may have changed the index wanted."""
        self.settings = self._read_settings()
        return self.settings

    def compact(self) -> None:
        """Give the room of deleted rows back to the disk."""
        with self.writing() as writer:
            writer.optimize_lexical()
        database.compact(self.path)

    def rebuild_lexical(self) -> None:
        """Make the lexical index anew from the passages."""
        with self.writing() as writer:
            writer.rebuild_lexical()

    def rename_model(self, name: str) -> None:
        """Remember where the same model is found now."""
        self._set({"model": name})

    def keep_tokens(self) -> None:
        """Keep the word vectors of new passages from now on."""
        if not self.reload().tokens:
            self._set({"tokens": True})

    def _set(self, values: dict[str, Any]) -> None:
        with self.writing() as writer:
            writer.set_settings(values)
        self.settings = self._read_settings()

    def stats(self) -> Stats:
        """What the store holds, from its counters and the sizes of its files."""
        self.reload()
        with self.counting() as view:
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
