"""Opening the SQLite file: connections, transactions, creation, schema upgrades.

Transactions are explicit: `reading()` holds one snapshot, `writing()` takes the write lock at
its first statement. Schema changes happen inside one transaction that really rolls back, which
SQLAlchemy's own SQLite driver settings do not give: the driver's implicit transactions are
switched off and BEGIN is emitted here.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, InvalidRequestError

import engine
from engine import files
from engine.errors import (
    CorruptionError,
    EngineError,
    LockedError,
    SchemaVersionError,
    StorageError,
    StoreExistsError,
    StoreNotFoundError,
)
from engine.storage import lexical, soundness
from engine.storage.schema import HEAD

log = logging.getLogger("attendex")

FILE_NAME = "store.db"
BUSY_MILLISECONDS = 5_000
PAGE_BYTES = 16_384
_WRITE = "attendex_write"
_UNDECODED = "Could not decode to UTF-8"
_migrating = files.Mutex()
"""Alembic's context is one for the whole process."""


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def dump_json(value: object) -> str:
    """JSON as the store writes it: readable, strict (NaN is refused with ValueError)."""
    return _ENCODER.encode(value)


def open_engine(path: Path, *, read_only: bool = False) -> sa.Engine:
    """A SQLAlchemy engine on the database file, with this module's pragmas and transactions."""
    uri = soundness.uri_of(path, read_only=read_only)

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            uri,
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_MILLISECONDS / 1000,
        )

    created = sa.create_engine(
        "sqlite://",
        creator=connect,
        poolclass=sa.QueuePool,
        max_overflow=-1,
        json_serializer=dump_json,
    )
    event.listen(created, "connect", _set_pragmas)
    event.listen(created, "begin", _begin)
    return created


def _set_pragmas(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA mmap_size = 268435456")
    connection.execute("PRAGMA cache_size = -32768")


def _begin(connection: sa.Connection) -> None:
    write = connection.get_execution_options().get(_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


@contextmanager
def reading(db: sa.Engine, path: Path) -> Iterator[sa.Connection]:
    """A connection on one snapshot of the database; storage faults become `StorageError`s."""
    with translated(path), db.connect() as connection, connection.begin():
        yield connection


@contextmanager
def writing(db: sa.Engine, path: Path) -> Iterator[sa.Connection]:
    """A connection in one write transaction: committed at the end, rolled back on any error."""
    with translated(path), db.connect() as plain:
        connection = plain.execution_options(**{_WRITE: True})
        with connection.begin():
            yield connection


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn sqlite3's and SQLAlchemy's exceptions into the engine's; and what else is raised over
    rows, where the database turns out to be damaged."""
    try:
        yield
    except EngineError:
        raise
    except (DBAPIError, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise _storage_error(path, cause) from error
    except (
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        AttributeError,
        InvalidRequestError,
    ) as error:
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


def _storage_error(path: Path, cause: BaseException | None) -> StorageError:
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
    if (fault := soundness.damage(path / FILE_NAME)) is not None:
        return damaged(path, fault)
    if str(cause) in lexical.NAMELESS:
        return CorruptionError(f"the lexical index of {path} is damaged; {lexical.REMEDY}")
    return StorageError(f"the store {path} failed: {cause}")


@contextmanager
def created(store: Path) -> Iterator[sa.Connection]:
    """Make `store`'s database: yields a connection on the new schema to write the settings.

    The file gets its name only when all is committed, so a store is made whole or not at all.
    """
    target = store / FILE_NAME
    if store.exists() and not store.is_dir():
        raise StorageError(f"{store} is a file, and a store is a directory")
    if store.is_dir() and any(store.iterdir()) and not target.exists():
        leftovers = [p for p in store.iterdir() if not p.name.startswith(f".{FILE_NAME}.")]
        if leftovers:
            raise StorageError(f"{store} is a directory with other files in it, and no store")
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the store {store}: {error.strerror}") from error

    temporary = store / f".{FILE_NAME}.{os.getpid()}.{threading.get_ident()}"
    temporary.unlink(missing_ok=True)
    try:
        with translated(store):
            with closing(sqlite3.connect(temporary, isolation_level=None)) as raw:
                raw.execute(f"PRAGMA page_size = {PAGE_BYTES}")
                raw.execute("PRAGMA journal_mode = WAL")
            db = open_engine(temporary)
            try:
                with writing(db, store) as connection:
                    _run_migrations(connection)
                    yield connection
            finally:
                db.dispose()
        files.sync(temporary)
        try:
            files.rename_new(temporary, target)
        except FileExistsError:
            raise StoreExistsError(store) from None
    except OSError as error:
        raise StorageError(f"cannot make the store {store}: {error.strerror}") from error
    finally:
        for ending in ("", "-wal", "-shm", "-journal"):
            temporary.with_name(temporary.name + ending).unlink(missing_ok=True)


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
        closing(sqlite3.connect(soundness.uri_of(path, read_only=True), uri=True)) as raw,
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


def upgrade(store: Path, found: str) -> Path | None:
    """Bring an older store to `HEAD`, after a backup; returns the backup's path.

    One transaction: an upgrade that fails or is killed leaves the store as it was.
    """
    if found == HEAD:
        return None
    path = store / FILE_NAME
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    saved = store / "backups" / f"schema-{found}-{stamp}.db"
    with translated(store):
        try:
            files.publish(saved, lambda temporary: backup(path, temporary))
        except OSError as error:
            raise StorageError(
                f"the store {store} must be upgraded, and its backup {saved} cannot be written "
                f"({error.strerror or error}); nothing was changed"
            ) from error
        db = open_engine(path)
        try:
            with writing(db, store) as connection:
                _run_migrations(connection)
        finally:
            db.dispose()
    return saved


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
        closing(sqlite3.connect(soundness.uri_of(database, read_only=True), uri=True)) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        try:
            source.backup(copy)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise


def migrations_directory() -> Path:
    """Where the migrations lie: inside the installed package, or beside it in a checkout."""
    package = Path(engine.__file__).resolve().parent
    inside = package / "migrations"
    return inside if inside.is_dir() else package.parent / "migrations"


def _run_migrations(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_directory()).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        with _migrating:
            command.upgrade(config, "head")
    except (EngineError, DBAPIError):
        raise
    except Exception as error:  # a revision may fail in any way; the transaction rolls back
        raise StorageError(
            f"the schema could not be brought to {HEAD}: {error}; the store is as it was"
        ) from error
