"""What writes: SQLAlchemy's connections, the making of a store, and schema upgrades.

Transactions are explicit here too: `writing` takes the write lock at its first statement.
Schema changes happen inside one transaction that really rolls back, which SQLAlchemy's own SQLite
driver settings do not give: BEGIN is emitted here.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, InvalidRequestError

import engine
from engine import files
from engine.errors import EngineError, StorageError, StoreExistsError
from engine.storage import database
from engine.storage.connection import Connection, dump_json

_migrating = files.Mutex()
"""Alembic's context is one for the whole process."""


def open_engine(path: Path) -> sa.Engine:
    """A SQLAlchemy engine on the database file, with the store's pragmas and transactions."""
    made = sa.create_engine(
        "sqlite://",
        creator=lambda: database.connect(path),
        poolclass=sa.QueuePool,
        max_overflow=-1,
        json_serializer=dump_json,
    )
    event.listen(made, "begin", _begin)
    return made


def _begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def plain(connection: sa.Connection) -> Connection:
    """The driver's connection beneath, in the same transaction."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return Connection(driver)


class Transactions:
    """What a store is written through. Threads may share it; a forked child makes its own
    connections and leaves its parent's alone."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._engine = open_engine(store / database.FILE_NAME)
        self._process = os.getpid()

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A connection in one write transaction: committed at the end, rolled back on any error.

        Storage faults become `StorageError`s.
        """
        if os.getpid() != self._process:
            self._engine.dispose(close=False)
            self._process = os.getpid()
        with writing(self._engine, self._store) as connection:
            yield connection

    def close(self) -> None:
        self._engine.dispose(close=os.getpid() == self._process)


@contextmanager
def writing(db: sa.Engine, path: Path) -> Iterator[sa.Connection]:
    """As `Transactions.writing`, of any database."""
    with database.translated(path):
        try:
            with db.connect() as connection, connection.begin():
                yield connection
        except DBAPIError as error:
            raise error.orig or error from error
        except InvalidRequestError as error:
            raise LookupError(f"a row is not there ({error})") from error


@contextmanager
def created(store: Path) -> Iterator[sa.Connection]:
    """Make `store`'s database: yields a connection on the new schema to write the settings.

    The file gets its name only when all is committed, so a store is made whole or not at all.
    """
    target = store / database.FILE_NAME
    if store.exists() and not store.is_dir():
        raise StorageError(f"{store} is a file, and a store is a directory")
    if store.is_dir() and any(store.iterdir()) and not target.exists():
        leftovers = [p for p in store.iterdir() if not p.name.startswith(f".{database.FILE_NAME}.")]
        if leftovers:
            raise StorageError(f"{store} is a directory with other files in it, and no store")
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the store {store}: {error.strerror}") from error

    temporary = store / f".{database.FILE_NAME}.{os.getpid()}.{threading.get_ident()}"
    temporary.unlink(missing_ok=True)
    try:
        with database.translated(store):
            with closing(sqlite3.connect(temporary, isolation_level=None)) as raw:
                raw.execute(f"PRAGMA page_size = {database.PAGE_BYTES}")
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


def upgrade(store: Path, found: str) -> Path | None:
    """Bring an older store to `HEAD`, after a backup; returns the backup's path.

    One transaction: an upgrade that fails or is killed leaves the store as it was.
    """
    if found == database.HEAD:
        return None
    path = store / database.FILE_NAME
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    saved = store / "backups" / f"schema-{found}-{stamp}.db"
    with database.translated(store):
        try:
            files.publish(saved, lambda temporary: database.backup(path, temporary))
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
            f"the schema could not be brought to {database.HEAD}: {error}; the store is as it was"
        ) from error
