"""A sqlite3 connection as the rooms of storage use it: statements written out, rows as tuples.

Reading needs no more than this, and loads nothing else; only writing goes through SQLAlchemy.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from engine.errors import CorruptionError

Row = tuple[Any, ...]
_VALUES_A_STATEMENT = 16_384
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def dump_json(value: object) -> str:
    """JSON as the store writes it: readable, strict (NaN is refused with ValueError)."""
    return _ENCODER.encode(value)


class Connection:
    """Statements in the transaction that its maker began and ends."""

    def __init__(self, driver: sqlite3.Connection) -> None:
        self._driver = driver
        self._open: set[sqlite3.Cursor] = set()

    def close_cursors(self) -> None:
        """End the statements whose rows nobody read to the end: they would hold the snapshot."""
        while self._open:
            self._open.pop().close()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._driver.execute(statement, values)

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """All rows."""
        return self._driver.execute(statement, values).fetchall()

    def row(self, statement: str, values: Sequence[Any] = ()) -> Row | None:
        """The first row; None where there is none."""
        found: Row | None = self._driver.execute(statement, values).fetchone()
        return found

    def column(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """The first value of every row."""
        return [row[0] for row in self._driver.execute(statement, values)]

    def value(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """The first value of the first row; None where there is none."""
        found = self.row(statement, values)
        return None if found is None else found[0]

    def blocks(
        self, statement: str, values: Sequence[Any] = (), *, size: int
    ) -> Iterator[list[Row]]:
        """The rows, so many at a time."""
        cursor = self._driver.execute(statement, values)
        self._open.add(cursor)
        while block := cursor.fetchmany(size):
            yield block
        self._open.discard(cursor)

    def rows_of_ids(self, statement: str, ids: Collection[int]) -> list[Row]:
        """All rows of a statement whose one variable is read by `json_each`: any number of ids."""
        return self.rows(statement, (dump_json(list(ids)),))

    def rows_in(self, statement: str, values: Collection[str] | Collection[bytes]) -> Iterator[Row]:
        """The rows of a statement that ends before `IN`, some values at a time.

        Bound one by one: a JSON list would end a text at its first NUL.
        """
        wanted = list(values)
        for start in range(0, len(wanted), _VALUES_A_STATEMENT):
            block = wanted[start : start + _VALUES_A_STATEMENT]
            yield from self.rows(f"{statement} IN ({', '.join('?' * len(block))})", block)

    def execute_many(self, statement: str, rows: Sequence[Row]) -> None:
        """One statement, row by row."""
        self._driver.executemany(statement, rows)

    def insert_many(self, command: str, marks: str, rows: Sequence[Row], at_once: int) -> None:
        """An INSERT of rows, as `marks` for each, so many by one statement."""
        for start in range(0, len(rows), at_once):
            block = rows[start : start + at_once]
            statement = f"{command} {', '.join([marks] * len(block))}"
            self._driver.execute(statement, tuple(chain.from_iterable(block)))


def uri_of(database: Path, *, read_only: bool) -> str:
    """How SQLite is told to open a database.

    On a file system that is mounted to be read only it cannot make the files that a log needs;
    where there is no log, nobody can write either, and it may be told so.
    """
    log = database.with_name(f"{database.name}-wal")
    mode = "mode=ro" if read_only else "mode=rw"
    if _cannot_change(database.parent) and not (log.is_file() and log.stat().st_size):
        mode = "mode=ro&immutable=1"
    return f"{database.absolute().as_uri()}?{mode}"


def _cannot_change(directory: Path) -> bool:
    try:
        return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
    except (AttributeError, OSError):  # Windows has none
        return False


def next_after(last: int, rows: Sequence[Row]) -> int:
    """The id to go on after, that of the last of some rows, ids ascending.

    Raises `CorruptionError` where it is no later one: in a damaged table that would never end.
    """
    found = rows[-1][0]
    if not isinstance(found, int) or found <= last:
        raise CorruptionError(
            "the database is damaged: its rows are out of order; restore it from a backup, or "
            "save what can still be read (attendex recover)"
        )
    return found
