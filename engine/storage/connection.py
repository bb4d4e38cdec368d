"""A sqlite3 connection as the rooms of storage use it: statements written out, rows as tuples.

Reading needs no more than this, and loads nothing else; only writing goes through SQLAlchemy.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any

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
        try:
            while block := cursor.fetchmany(size):
                yield block
        finally:
            cursor.close()

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
