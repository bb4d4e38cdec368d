"""Many rows by few statements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import sqlalchemy as sa

from engine.errors import CorruptionError


def run_many(
    connection: sa.Connection,
    command: str,
    marks: str,
    rows: Sequence[tuple[Any, ...]],
    at_once: int,
) -> None:
    """An INSERT of rows, as `marks` for each, so many by one statement."""
    for start in range(0, len(rows), at_once):
        block = rows[start : start + at_once]
        statement = f"{command} {', '.join([marks] * len(block))}"
        connection.exec_driver_sql(statement, tuple(chain.from_iterable(block)))


def next_after(last: int, rows: Sequence[Any]) -> int:
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
