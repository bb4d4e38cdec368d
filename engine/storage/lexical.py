"""The lexical index: SQLite's FTS5 over the passages' folded texts, in step with their rows.

All that only FTS5 has stands here. The index keeps no text (`content=''`): a row leaves it by the
folded text it came in with, which is made again from the passage. It needs `detail=full`: without
positions FTS5 has neither frequencies, so no BM25, nor phrases. A passage of white space is not
in it. Rows are those of the transaction it is read in, as any table's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

import numpy as np
import sqlalchemy as sa

from engine.text.terms import fold, phrase
from engine.types import Float64Array, IdArray

TABLE = "lexical"
OWNED = frozenset(f"{TABLE}{part}" for part in ("", "_config", "_data", "_docsize", "_idx"))
"""The table and those that FTS5 keeps it in; the schema's metadata know none of them."""
_DEFINITION = """fts5(
    text, content='',
    tokenize="porter unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'"
)"""
_PENDING_BYTES = 16 << 20
"""A transaction's rows are one part of the index, unless they take more than this in memory."""
_ROWS = 4096

_BEST = f"""
    SELECT rowid, rank FROM {TABLE} WHERE {TABLE} MATCH ? ORDER BY rank, rowid LIMIT ?
"""
_BEST_AMONG = f"""
    SELECT rowid, rank FROM {TABLE}
    WHERE {TABLE} MATCH ?1 AND rowid BETWEEN ?2 AND ?3
    AND substr(?4, rowid - ?2 + 1, 1) = x'01'
    ORDER BY rank, rowid LIMIT ?5
"""
_COUNT = f"SELECT count(*) FROM (SELECT 1 FROM {TABLE} WHERE {TABLE} MATCH ? LIMIT ?)"


def create(connection: sa.Connection) -> None:
    """Make the empty index."""
    connection.exec_driver_sql(f"CREATE VIRTUAL TABLE {TABLE} USING {_DEFINITION}")
    connection.exec_driver_sql(
        f"INSERT INTO {TABLE} ({TABLE}, rank) VALUES ('hashsize', {_PENDING_BYTES})"
    )


def fill(connection: sa.Connection) -> None:
    """Take all passages into the empty index, some at a time."""
    for rows in _blocks(connection):
        insert(connection, rows)


def rebuild(connection: sa.Connection) -> None:
    """Make the index anew from the passages, whatever became of it."""
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {TABLE}")
    create(connection)
    fill(connection)


def optimize(connection: sa.Connection) -> None:
    """Merge the parts of the index into one, without what was deleted."""
    connection.exec_driver_sql(f"INSERT INTO {TABLE} ({TABLE}) VALUES ('optimize')")


def insert(connection: sa.Connection, rows: Iterable[tuple[int, str]]) -> None:
    """Take in passages (id, text), ids ascending."""
    folded = [(key, fold(text)) for key, text in rows if text and not text.isspace()]
    _run(connection, f"INSERT INTO {TABLE} (rowid, text) VALUES", "(?, ?)", folded)


def remove(connection: sa.Connection, document_ids: Sequence[int]) -> None:
    """Take out the passages of documents, before their rows go."""
    given = json.dumps(list(document_ids))
    found = connection.exec_driver_sql(
        "SELECT id FROM passages WHERE document_id IN (SELECT value FROM json_each(?)) ORDER BY id",
        (given,),
    )
    ids = iter(found.scalars().all())
    while block := list(islice(ids, _ROWS)):
        rows = connection.exec_driver_sql(
            f"SELECT p.id, p.text FROM passages AS p JOIN {TABLE}_docsize AS held USING (id) "
            "WHERE p.id IN (SELECT value FROM json_each(?)) ORDER BY p.id",
            (json.dumps(block),),
        )
        folded = [(key, fold(text)) for key, text in rows]
        command = f"INSERT INTO {TABLE} ({TABLE}, rowid, text) VALUES"
        _run(connection, command, "('delete', ?, ?)", folded)


def best(
    connection: sa.Connection, expression: str, k: int, allowed: IdArray | None
) -> tuple[IdArray, Float64Array]:
    """The `k` best passages by BM25 (FTS5's, k1 1.2, b .75): ids and scores, higher is better.

    Both (n,), n <= k, by (-score, id). `allowed` (ascending) restricts the answers, not what the
    scores are computed of. `expression` is what `terms.match_expression` makes.
    """
    if allowed is None:
        rows = connection.exec_driver_sql(_BEST, (expression, k)).all()
    elif not len(allowed):
        rows = []
    else:
        first, last = int(allowed[0]), int(allowed[-1])
        marks = np.zeros(last - first + 1, np.uint8)
        marks[allowed - first] = 1
        given = (expression, first, last, marks.tobytes(), k)
        rows = connection.exec_driver_sql(_BEST_AMONG, given).all()
    ids, ranks = zip(*rows, strict=True) if rows else ((), ())
    return np.array(ids, dtype=np.int64), -np.array(ranks, dtype=np.float64)


def document_frequencies(connection: sa.Connection, words: Sequence[str], most: int) -> list[int]:
    """How many passages hold each word, its parts side by side; counting ends at `most`."""
    sought = map(phrase, words)
    return [
        0 if one is None else int(connection.exec_driver_sql(_COUNT, (one, most)).scalar_one())
        for one in sought
    ]


def _run(
    connection: sa.Connection, command: str, marks: str, rows: Sequence[tuple[int, str]]
) -> None:
    """One statement for many rows: FTS5 writes out what it holds before each that has several."""
    for start in range(0, len(rows), _ROWS):
        block = rows[start : start + _ROWS]
        statement = f"{command} {', '.join([marks] * len(block))}"
        connection.exec_driver_sql(statement, tuple(chain.from_iterable(block)))


def _blocks(connection: sa.Connection) -> Iterator[list[tuple[int, str]]]:
    """(id, text) of all passages, ids ascending, some at a time."""
    last = 0
    while True:
        rows = connection.exec_driver_sql(
            "SELECT id, text FROM passages WHERE id > ? ORDER BY id LIMIT ?", (last, _ROWS)
        ).all()
        if not rows:
            return
        yield [(key, text) for key, text in rows]
        last = rows[-1][0]
