"""The lexical index: SQLite's FTS5 over the passages' folded texts, in step with their rows.

All that only FTS5 has stands here. The index keeps no text (`content=''`): a row leaves it by the
folded text it came in with, which is made again from the passage. It needs `detail=full`: without
positions FTS5 has neither frequencies, so no BM25, nor phrases. A passage of white space is not
in it. Rows are those of the transaction it is read in, as any table's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import sqlalchemy as sa

from engine.storage.statements import next_after, run_many
from engine.text.terms import fold, phrase
from engine.types import Float64Array, IdArray

TABLE = "lexical"
OWNED = frozenset(f"{TABLE}{part}" for part in ("", "_config", "_data", "_docsize", "_idx"))
"""The table and those that FTS5 keeps it in; the schema's metadata know none of them."""
_SHADOWS = sorted(OWNED - {TABLE})
_DEFINITION = """fts5(
    text, content='',
    tokenize="porter unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'"
)"""
_OPTIONS = {"hashsize": 16 << 20, "automerge": 8}
"""A statement's rows become one part of the index, unless they take more bytes than that; so many
parts of a level are merged. The usual 1 MiB and 4 cost a sixth more time and answer no faster."""
_ROWS = 4096
"""Rows a statement: before each that has several FTS5 writes out what it holds."""

_DROPPABLE = (
    f"CREATE TABLE IF NOT EXISTS {TABLE}_config (k PRIMARY KEY, v) WITHOUT ROWID",
    f"REPLACE INTO {TABLE}_config VALUES ('version', 4)",
    f"CREATE TABLE IF NOT EXISTS {TABLE}_data (id INTEGER PRIMARY KEY, block BLOB)",
    f"REPLACE INTO {TABLE}_data VALUES (1, x''), (10, x'00000000000000')",
)
"""SQLite drops only an index that it can open: this makes of what is left one that has no rows."""

_BEST = f"""
    SELECT rowid, rank FROM {TABLE} WHERE {TABLE} MATCH ? ORDER BY rank, rowid LIMIT ?
"""
_AMONG = f"""
    SELECT rowid, rank FROM {TABLE}
    WHERE {TABLE} MATCH ?1 AND rowid BETWEEN ?2 AND ?3
    AND substr(?4, rowid - ?2 + 1, 1) = x'01'
"""
_BEST_AMONG = f"{_AMONG} ORDER BY rank, rowid LIMIT ?5"
_TWIN = "lexical_twin"
UNUSABLE = re.compile(rf"(?:no such table|vtable constructor failed): {TABLE}(?:_\w+)?$")
"""What SQLite says where the index, or a table it is kept in, is not there."""
NAMELESS = ("SQL logic error", "constraint failed")
"""What SQLite says of the tables FTS5 keeps the index in, where they are not as it left them: of
tables of the schema it says which, and what is wrong."""
REMEDY = "`attendex rebuild` makes it anew"


def _differing(key: str, value: str, held: str, due: str) -> str:
    """A query that counts the keys whose values two tables do not share."""
    first, second = (f"SELECT {key}, {value} FROM {table}" for table in (held, due))
    return f"""
        SELECT count(DISTINCT {key}) FROM (
            SELECT * FROM ({first} EXCEPT {second})
            UNION ALL SELECT * FROM ({second} EXCEPT {first})
        )
    """


_TOTALS = "CASE block WHEN x'0000' THEN x'' ELSE block END"
"""An index that was emptied says no rows and no tokens; one that never held any says nothing."""
_COMPARED = {
    "rows": _differing("id", "sz", f"{TABLE}_docsize", f"{_TWIN}_docsize"),
    "tokens": _differing("term", "doc, cnt", "held_tokens", "due_tokens"),
    "totals": _differing("id", _TOTALS, f"{TABLE}_data WHERE id = 1", f"{_TWIN}_data WHERE id = 1"),
}
_COUNT = f"SELECT count(*) FROM (SELECT 1 FROM {TABLE} WHERE {TABLE} MATCH ? LIMIT ?)"


def create(connection: sa.Connection) -> None:
    """Make the empty index."""
    connection.exec_driver_sql(f"CREATE VIRTUAL TABLE {TABLE} USING {_DEFINITION}")
    for option in _OPTIONS.items():
        connection.exec_driver_sql(f"INSERT INTO {TABLE} ({TABLE}, rank) VALUES (?, ?)", option)


def fill(connection: sa.Connection, table: str = TABLE) -> None:
    """Take all passages into the empty index, some at a time."""
    for rows in _blocks(connection):
        insert(connection, rows, table)


def rebuild(connection: sa.Connection) -> None:
    """Make the index anew from the passages, whatever became of it."""
    for statement in _DROPPABLE:
        connection.exec_driver_sql(statement)
    for name in (TABLE, *_SHADOWS):
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
    create(connection)
    fill(connection)


def optimize(connection: sa.Connection) -> None:
    """Merge the parts of the index into one, without what was deleted."""
    connection.exec_driver_sql(f"INSERT INTO {TABLE} ({TABLE}) VALUES ('optimize')")


def insert(connection: sa.Connection, rows: Iterable[tuple[int, str]], table: str = TABLE) -> None:
    """Take in passages (id, text), ids ascending."""
    folded = [(key, fold(text)) for key, text in rows if text and not text.isspace()]
    command = f"INSERT INTO {table} (rowid, text) VALUES"
    run_many(connection, command, "(?, ?)", folded, _ROWS)


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
        run_many(connection, command, "('delete', ?, ?)", folded, _ROWS)


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
        given = (expression, *_marked(allowed), k)
        rows = connection.exec_driver_sql(_BEST_AMONG, given).all()
    ids, ranks = zip(*rows, strict=True) if rows else ((), ())
    return np.array(ids, dtype=np.int64), -np.array(ranks, dtype=np.float64)


def scores(connection: sa.Connection, expression: str, ids: IdArray) -> dict[int, float]:
    """The BM25 score, as `best` gives it, of those passages among `ids` (ascending) that have one.

    Unordered, so that FTS5 scores these alone.
    """
    if not len(ids):
        return {}
    rows = connection.exec_driver_sql(_AMONG, (expression, *_marked(ids))).all()
    return {id_: -rank for id_, rank in rows}


def _marked(ids: IdArray) -> tuple[int, int, bytes]:
    """The first and the last of ascending ids, and a byte for each number between: 1 for an id."""
    first, last = int(ids[0]), int(ids[-1])
    marks = np.zeros(last - first + 1, np.uint8)
    marks[ids - first] = 1
    return first, last, marks.tobytes()


def document_frequencies(connection: sa.Connection, words: Sequence[str], most: int) -> list[int]:
    """How many passages hold each word, its parts side by side; counting ends at `most`."""
    sought = map(phrase, words)
    return [
        0 if one is None else int(connection.exec_driver_sql(_COUNT, (one, most)).scalar_one())
        for one in sought
    ]


def problems(connection: sa.Connection) -> list[str]:
    """How the index differs from one made afresh of the passages; writes only a temporary one.

    Compared are the rows' lengths, each token's passages and occurrences, and the totals.
    """
    try:
        faults = _differences(connection)
    except sa.exc.DBAPIError as error:
        faults = [f"it cannot be read ({error.orig})"]
    return [f"the lexical index is damaged: {fault}; {REMEDY}" for fault in faults]


def _differences(connection: sa.Connection) -> list[str]:
    # One that cannot be opened would spoil the transaction, once temporary tables refer to it.
    connection.exec_driver_sql(f"SELECT 1 FROM {TABLE} LIMIT 0")
    temporary = connection.begin_nested()
    try:
        connection.exec_driver_sql(f"CREATE VIRTUAL TABLE temp.{_TWIN} USING {_DEFINITION}")
        fill(connection, f"temp.{_TWIN}")
        for name, table in (("held", f"main, {TABLE}"), ("due", f"temp, {_TWIN}")):
            connection.exec_driver_sql(
                f"CREATE VIRTUAL TABLE temp.{name}_tokens USING fts5vocab({table}, row)"
            )
        counts = {
            what: connection.exec_driver_sql(query).scalar_one()
            for what, query in _COMPARED.items()
        }
    finally:
        temporary.rollback()
    found = [f"{what} ({count})" for what, count in counts.items() if count]
    return [f"its {', '.join(found)} differ from the passages"] if found else []


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
        last = next_after(last, rows)
