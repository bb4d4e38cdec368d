"""Whether the database's tables can be trusted, by SQL alone: pages, types, references, counters.

An unexpected error while the store is read is damage where one of these finds a fault, and an
error of the program where none does.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from engine.storage.connection import uri_of
from engine.storage.schema import metadata

_MAGIC = b"SQLite format 3\0"
_WAL_VERSIONS = b"\x02\x02"
_KINDS = {
    sa.Integer: ("integer",),
    sa.Boolean: ("integer",),
    sa.Text: ("text",),
    sa.JSON: ("text", "integer", "real"),
    sa.LargeBinary: ("blob",),
}
"""SQLite keeps a JSON number as a number."""
_SINGLE = ("generation",)
_COUNTED = ("documents", "passages")
_JSON = {"documents": "metadata", "settings": "value"}


def faults(connection: sqlite3.Connection) -> Iterator[str]:
    """What is wrong, a sentence each. What cannot even be asked raises `sqlite3.Error`."""
    checked = [row[0] for row in connection.execute("PRAGMA integrity_check")]
    if checked != ["ok"]:
        yield from checked
    there = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    missing = sorted(metadata.tables.keys() - there)
    if missing:
        yield f"there is no table {', '.join(missing)}"
        return
    orphans = connection.execute("PRAGMA foreign_key_check").fetchall()
    if orphans:
        yield f"{len(orphans)} rows refer to rows that do not exist"
    for table in metadata.tables.values():
        count = _one(connection, f"SELECT count(*) FROM {table.name} WHERE {_wrong(table)}")
        if count:
            yield f"{count} rows of {table.name} hold values of another kind"
    for name, column in _JSON.items():
        bad = f"CASE WHEN json_valid({column}) THEN 0 ELSE 1 END"
        if name == "documents":
            bad = f"CASE WHEN json_valid({column}) THEN json_type({column}) <> 'object' ELSE 1 END"
        count = _one(connection, f"SELECT count(*) FROM {name} WHERE {bad}")
        if count:
            yield f"{count} rows of {name} hold no JSON as they should"
    for name in _SINGLE:
        count = _one(connection, f"SELECT count(*) FROM {name}")
        if count != 1:
            yield f"{name} has {count} rows, and must have one"
            return
    for name in _COUNTED:
        count = _one(connection, f"SELECT count(*) FROM {name}")
        kept = _one(connection, f"SELECT {name} FROM generation")
        if count != kept:
            yield f"{count} {name}, and the counter says {kept}"
    empty = _one(
        connection,
        "SELECT count(*) FROM documents AS d LEFT JOIN passages AS p ON p.document_id = d.id"
        " WHERE p.id IS NULL",
    )
    if empty:
        yield f"{empty} documents have no passage"


def header_faults(database: Path) -> list[str]:
    """What is wrong with the file's first bytes, though SQLite may open it all the same."""
    with database.open("rb") as file:
        head = file.read(20)
    if head[:16] == _MAGIC and head[18:20] != _WAL_VERSIONS:
        return ["the header of the file is damaged: it is of no known version"]
    return []


def all_faults(database: Path) -> list[str]:
    """Every fault of a database, whatever can be asked of it."""
    found = header_faults(database)
    try:
        with closing(_opened(database)) as connection:
            found.extend(faults(connection))
    except sqlite3.Error as error:
        found.append(f"it cannot be read ({error})")
    return found


def _opened(database: Path) -> sqlite3.Connection:
    uri = uri_of(database, read_only=True)
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    connection.execute("BEGIN")
    return connection


def damage(database: Path) -> str | None:
    """The first fault of a database; None for a sound one, or one that is not there."""
    if not database.is_file():
        return None
    try:
        with closing(_opened(database)) as connection:
            return next(faults(connection), None)
    except sqlite3.Error as error:
        code = error.sqlite_errorcode & 0xFF if hasattr(error, "sqlite_errorcode") else 0
        passing = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN)
        return None if code in passing else str(error)


def _wrong(table: sa.Table) -> str:
    """The condition that a row holds a value of another kind than its column's."""
    found = []
    for column in table.columns:
        kinds = next(kinds for type_, kinds in _KINDS.items() if isinstance(column.type, type_))
        known = ", ".join(f"'{kind}'" for kind in (*kinds, *(["null"] if column.nullable else [])))
        found.append(f'typeof("{column.name}") NOT IN ({known})')
    return " OR ".join(found)


def _one(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])
