"""Many rows by few statements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import sqlalchemy as sa


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
