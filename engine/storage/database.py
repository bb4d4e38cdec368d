"""The SQLite file: its connections, snapshots to read, its faults told in the engine's words.

Transactions are explicit: the driver's implicit ones are switched off. Nothing here loads
SQLAlchemy, which only writing needs (`engine.storage.alchemy`).
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import engine
from engine.errors import (
    CorruptionError,
    EngineError,
    LockedError,
    SchemaVersionError,
    StorageError,
    StoreNotFoundError,
)
from engine.storage.connection import Connection, uri_of

log = logging.getLogger("attendex")

HEAD: Final = "0003"
"""The schema this program reads and writes; revisions are numbered in order."""
FILE_NAME = "store.db"
BUSY_MILLISECONDS = 5_000
PAGE_BYTES = 16_384
_UNDECODED = "Could not decode to UTF-8"
_KEPT_OPEN = 8


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection to the database file, which must be there, with this store's pragmas."""
    made = sqlite3.connect(
        uri_of(path, read_only=read_only),
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_MILLISECONDS / 1000,
    )
    try:
        made.execute("PRAGMA foreign_keys = ON")
        made.execute("PRAGMA synchronous = FULL")
        made.execute("PRAGMA mmap_size = 268435456")
        made.execute("PRAGMA cache_size = -32768")
    except BaseException:
        made.close()
        raise
    return made


class Snapshots:
    """Transactions to read in, on connections that are kept and used again. Threads may share
    it; a forked child makes its own connections and leaves its parent's alone."""

    def __init__(self, store: Path, *, read_only: bool) -> None:
        self._store = store
        self._read_only = read_only
        self._idle: deque[sqlite3.Connection] = deque()
        self._parents: list[deque[sqlite3.Connection]] = []
        self._process = os.getpid()
        self._closed = False

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection on one snapshot of the database; storage faults become `StorageError`s."""
        with translated(self._store):
            own = self._take()
            connection = Connection(own)
            try:
                own.execute("BEGIN")
                yield connection
            finally:
                connection.close_cursors()
                self._give_back(own)

    def close(self) -> None:
        """Close all connections, those in use as soon as they are given back."""
        self._closed = True
        self._leave_parents()
        self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _leave_parents(self) -> None:
        if os.getpid() != self._process:
            self._parents.append(self._idle)  # to close them here would unlock them there
            self._idle = deque()
            self._process = os.getpid()

    def _take(self) -> sqlite3.Connection:
        self._leave_parents()
        with suppress(IndexError):
            return self._idle.pop()
        return connect(self._store / FILE_NAME, read_only=self._read_only)

    def _give_back(self, own: sqlite3.Connection) -> None:
        try:
            if own.in_transaction:
                own.execute("ROLLBACK")
        except sqlite3.Error:
            own.close()
            raise
        if len(self._idle) >= _KEPT_OPEN:
            own.close()
        else:
            self._idle.append(own)
        if self._closed:
            self._close_idle()


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn sqlite3's exceptions into the engine's; and what else is raised over rows, where the
    database turns out to be damaged."""
    try:
        yield
    except EngineError:
        raise
    except sqlite3.Error as error:
        raise _storage_error(path, error) from error
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        from engine.storage import soundness

        fault = soundness.damage(path / FILE_NAME)
        if fault is None:
            raise
        raise damaged(path, fault) from error


def damaged(path: Path, fault: object) -> CorruptionError:
    """The error that says so of a store's database, and what to do."""
    return CorruptionError(
        f"the database of {path} is damaged ({fault}); save what can still be read with "
        f"`attendex recover NEW --store {path}`, or remove {FILE_NAME}, {FILE_NAME}-wal and "
        f"{FILE_NAME}-shm and restore {FILE_NAME} from a backup"
    )


def _storage_error(path: Path, cause: sqlite3.Error) -> StorageError:
    from engine.storage import lexical

    extended = getattr(cause, "sqlite_errorcode", 0)
    code = extended & 0xFF
    if extended == sqlite3.SQLITE_CORRUPT_VTAB or lexical.UNUSABLE.match(str(cause)):
        return CorruptionError(f"the lexical index of {path} is damaged; {lexical.REMEDY}")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LockedError(path, pid=None, waited=BUSY_MILLISECONDS / 1000)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or _UNDECODED in str(cause):
        return damaged(path, cause)
    if code == sqlite3.SQLITE_FULL:
        return StorageError(f"no space left for the store {path}; what was committed is kept")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
        return StorageError(f"the store {path} cannot be written or opened: {cause}")
    if code == sqlite3.SQLITE_IOERR:
        return StorageError(
            f"the store {path} could not be read or written ({cause}); is the disk full? "
            "What was committed is kept"
        )
    from engine.storage import soundness

    if (fault := soundness.damage(path / FILE_NAME)) is not None:
        return damaged(path, fault)
    if str(cause) in lexical.NAMELESS:
        return CorruptionError(f"the lexical index of {path} is damaged; {lexical.REMEDY}")
    return StorageError(f"the store {path} failed: {cause}")


def check_schema(store: Path) -> str:
    """The schema revision of an existing store, read without loading SQLAlchemy's machinery.

    Raises `StoreNotFoundError`, `CorruptionError`, or `SchemaVersionError` for a store made by a
    newer program.
    """
    path = store / FILE_NAME
    if not path.is_file():
        if store.exists() and not store.is_dir():
            raise StorageError(f"{store} is a file, and a store is a directory")
        raise StoreNotFoundError(store)
    with (
        translated(store),
        closing(sqlite3.connect(uri_of(path, read_only=True), uri=True)) as raw,
    ):
        try:
            row = raw.execute("SELECT version_num FROM alembic_version").fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            row = None
    found: str | None = row[0] if row else None
    if found is None or not found.isdigit():
        raise SchemaVersionError(f"{path} is no attendex database", found=found, expected=HEAD)
    if int(found) > int(HEAD):
        raise SchemaVersionError(
            f"the store {store} has schema {found}, and this attendex ({engine.__version__}) knows "
            f"schemas up to {HEAD}: it was written by a newer version; upgrade attendex to use it",
            found=found,
            expected=HEAD,
        )
    return found


def compact(store: Path) -> None:
    """Write the database anew without the room of deleted rows, and shorten its log.

    Needs that much room on the disk meanwhile. Readers are not disturbed; the log is shortened
    only as far as none of them still reads it.
    """
    with (
        translated(store),
        closing(sqlite3.connect(store / FILE_NAME, isolation_level=None)) as raw,
    ):
        raw.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
        raw.execute("VACUUM")
        (busy, _, _) = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        log.warning("a reader still uses the log of %s; compact again to shorten it", store)


def backup(database: Path, target: Path) -> None:
    """A consistent single-file copy of the database, taken while others may write.

    Raises `OSError` where there is no room for it.
    """
    with (
        closing(sqlite3.connect(uri_of(database, read_only=True), uri=True)) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        try:
            source.backup(copy)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise
