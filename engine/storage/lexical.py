"""The lexical index: SQLite's FTS5 over the passages' folded texts, in step with their rows.

All that only FTS5 has stands here. The index keeps no text (`content=''`): a row leaves it by the
folded text it came in with, which is made again from the passage. It needs `detail=full`: without
positions FTS5 has neither frequencies, so no BM25, nor phrases. A passage of white space is not
in it. Rows are those of the transaction it is read in, as any table's.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from engine.arrays import Float64Array, IdArray
from engine.storage.connection import Connection, next_after
from engine.text.terms import fold, phrase

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
_OF_DOCUMENTS = """
    SELECT id FROM passages WHERE document_id IN (SELECT value FROM json_each(?)) ORDER BY id
"""
_HELD = f"""
    SELECT p.id, p.text FROM passages AS p JOIN {TABLE}_docsize AS held USING (id)
    WHERE p.id IN (SELECT value FROM json_each(?)) ORDER BY p.id
"""
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


def create(connection: Connection) -> None:
    """Make the empty index."""
    connection.execute(f"CREATE VIRTUAL TABLE {TABLE} USING {_DEFINITION}")
    for option in _OPTIONS.items():
        connection.execute(f"INSERT INTO {TABLE} ({TABLE}, rank) VALUES (?, ?)", option)


def fill(connection: Connection, table: str = TABLE) -> None:
    """Take all passages into the empty index, some at a time."""
    for rows in _blocks(connection):
        insert(connection, rows, table)


def rebuild(connection: Connection) -> None:
    """Make the index anew from the passages, whatever became of it."""
    for statement in _DROPPABLE:
        connection.execute(statement)
    for name in (TABLE, *_SHADOWS):
        connection.execute(f"DROP TABLE IF EXISTS {name}")
    create(connection)
    fill(connection)


def optimize(connection: Connection) -> None:
    """Merge the parts of the index into one, without what was deleted."""
    connection.execute(f"INSERT INTO {TABLE} ({TABLE}) VALUES ('optimize')")


def insert(connection: Connection, rows: Iterable[tuple[int, str]], table: str = TABLE) -> None:
    """Take in passages (id, text), ids ascending."""
    folded = [(key, fold(text)) for key, text in rows if text and not text.isspace()]
    command = f"INSERT INTO {table} (rowid, text) VALUES"
    connection.insert_many(command, "(?, ?)", folded, _ROWS)


def remove(connection: Connection, document_ids: Sequence[int]) -> None:
    """Take out the passages of documents, before their rows go."""
    ids = iter(connection.rows_of_ids(_OF_DOCUMENTS, document_ids))
    while block := [row[0] for row in islice(ids, _ROWS)]:
        folded = [(key, fold(text)) for key, text in connection.rows_of_ids(_HELD, block)]
        command = f"INSERT INTO {TABLE} ({TABLE}, rowid, text) VALUES"
        connection.insert_many(command, "('delete', ?, ?)", folded, _ROWS)


def best(
    connection: Connection, expression: str, k: int, allowed: IdArray | None
) -> tuple[IdArray, Float64Array]:
    """The `k` best passages by BM25 (FTS5's, k1 1.2, b .75): ids and scores, higher is better.

    Both (n,), n <= k, by (-score, id). `allowed` (ascending) restricts the answers, not what the
    scores are computed of. `expression` is what `terms.match_expression` makes.
    """
    if allowed is None:
        rows = connection.rows(_BEST, (expression, k))
    elif not len(allowed):
        rows = []
    else:
        given = (expression, *_marked(allowed), k)
        rows = connection.rows(_BEST_AMONG, given)
    ids, ranks = zip(*rows, strict=True) if rows else ((), ())
    return np.array(ids, dtype=np.int64), -np.array(ranks, dtype=np.float64)


def scores(connection: Connection, expression: str, ids: IdArray) -> dict[int, float]:
    """The BM25 score, as `best` gives it, of those passages among `ids` (ascending) that have one.

    Unordered, so that FTS5 scores these alone.
    """
    if not len(ids):
        return {}
    found = connection.rows(_AMONG, (expression, *_marked(ids)))
    return {id_: -rank for id_, rank in found}


def _marked(ids: IdArray) -> tuple[int, int, bytes]:
    """The first and the last of ascending ids, and a byte for each number between: 1 for an id."""
    first, last = int(ids[0]), int(ids[-1])
    marks = np.zeros(last - first + 1, np.uint8)
    marks[ids - first] = 1
    return first, last, marks.tobytes()


def document_frequencies(connection: Connection, words: Sequence[str], most: int) -> list[int]:
    """How many passages hold each word, its parts side by side; counting ends at `most`."""
    sought = map(phrase, words)
    return [0 if one is None else int(connection.value(_COUNT, (one, most))) for one in sought]


def problems(connection: Connection) -> list[str]:
    """How the index differs from one made afresh of the passages; writes only a temporary one.

    Compared are the rows' lengths, each token's passages and occurrences, and the totals.
    """
    try:
        faults = _differences(connection)
    except sqlite3.Error as error:
        faults = [f"it cannot be read ({error})"]
    return [f"the lexical index is damaged: {fault}; {REMEDY}" for fault in faults]


def _differences(connection: Connection) -> list[str]:
    # One that cannot be opened would spoil the transaction, once temporary tables refer to it.
    connection.execute(f"SELECT 1 FROM {TABLE} LIMIT 0")
    connection.execute("SAVEPOINT twin")
    try:
        connection.execute(f"CREATE VIRTUAL TABLE temp.{_TWIN} USING {_DEFINITION}")
        fill(connection, f"temp.{_TWIN}")
        for name, table in (("held", f"main, {TABLE}"), ("due", f"temp, {_TWIN}")):
            connection.execute(
                f"CREATE VIRTUAL TABLE temp.{name}_tokens USING fts5vocab({table}, row)"
            )
        counts = {what: connection.value(query) for what, query in _COMPARED.items()}
    finally:
        connection.execute("ROLLBACK TO twin")
        connection.execute("RELEASE twin")
    found = [f"{what} ({count})" for what, count in counts.items() if count]
    return [f"its {', '.join(found)} differ from the passages"] if found else []


def _blocks(connection: Connection) -> Iterator[list[tuple[int, str]]]:
    """(id, text) of all passages, ids ascending, some at a time."""
    last = 0
    while True:
        rows = connection.rows(
            "SELECT id, text FROM passages WHERE id > ? ORDER BY id LIMIT ?", (last, _ROWS)
        )
        if not rows:
            return
        yield [(key, text) for key, text in rows]
        last = next_after(last, rows)
