"""The rows of word vectors: in step with their passages, of one width once directions are fitted.

Directions are fitted once, in the transaction that brings the words up to `words.FIT_AT`; in it
all rows kept so far at full width are projected, so a reader never meets two widths.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa

from engine import words
from engine.errors import CorruptionError
from engine.storage.schema import directions, passage_words
from engine.storage.statements import next_after
from engine.types import Float32Array
from engine.words import Packed

_ROWS_A_FETCH = 256
_BY_IDS = """
    SELECT passage_id, width, data FROM passage_words
    WHERE passage_id IN (SELECT value FROM json_each(?))
"""
_INSERT = "INSERT OR REPLACE INTO passage_words (passage_id, width, data) VALUES (?, ?, ?)"


class Amount(NamedTuple):
    """So many passages with word vectors, of so many bytes."""

    passages: int
    bytes: int


def read_directions(connection: sa.Connection) -> Float32Array | None:
    """The fitted directions (D, width); None as long as there are none."""
    row = connection.exec_driver_sql("SELECT width, matrix FROM directions").first()
    if row is None:
        return None
    width, matrix = row
    if width < 1 or not matrix or len(matrix) % (4 * width):
        raise CorruptionError(
            "the database is damaged: the directions of its word vectors have a wrong size; "
            "restore it from a backup, or make them anew (attendex tokens drop, tokens build)"
        )
    return np.frombuffer(matrix, "<f4").reshape(-1, width)


def read(connection: sa.Connection, ids: Sequence[int]) -> dict[int, Packed]:
    """The word vectors of passages by id, of those that have them; all of one width."""
    if not ids:
        return {}
    rows = connection.exec_driver_sql(_BY_IDS, (json.dumps(list(ids)),)).all()
    found = {id_: Packed(width, data) for id_, width, data in rows}
    damaged = [
        id_ for id_, packed in found.items() if not packed.is_sound or packed.width != rows[0].width
    ]
    if damaged:
        raise CorruptionError(
            f"the database is damaged: the word vectors of passages {damaged[:5]} have a wrong "
            "size; restore it from a backup, or make them anew (attendex tokens drop, tokens build)"
        )
    return found


def insert(connection: sa.Connection, rows: Sequence[tuple[int, Packed]]) -> Amount:
    """Keep the word vectors of new passages, projected where directions are fitted.

    Raises `ModelError` where they are not as wide as those that are kept.
    """
    if not rows:
        return Amount(0, 0)
    fitted = read_directions(connection)
    if fitted is None:
        held = _width(connection) or rows[0][1].width
        for width in {one.width for _, one in rows}:
            words.check_width(width, held)
    packed = [(id_, one if fitted is None else words.repack(one, fitted)) for id_, one in rows]
    connection.exec_driver_sql(_INSERT, [(id_, one.width, one.data) for id_, one in packed])
    return Amount(len(packed), sum(len(one.data) for _, one in packed))


def amount(connection: sa.Connection, chosen: sa.ColumnElement[bool]) -> Amount:
    """How much of word vectors some passages have."""
    length = sa.func.coalesce(sa.func.sum(sa.func.length(passage_words.c.data)), 0)
    row = connection.execute(sa.select(sa.func.count(), length).where(chosen)).one()
    return Amount(*row)


def fit_if_due(connection: sa.Connection, held: Amount) -> Amount:
    """Fit the directions where there are none and now words enough; returns what is held then."""
    width = _width(connection) or 0
    if width <= words.WIDTH or words.words_in(held.bytes, width) < words.FIT_AT:
        return held
    sample: list[Float32Array] = []
    total = 0
    for _, packed in chain.from_iterable(_blocks(connection)):
        if total >= words.FIT_ON:
            break
        sample.append(words.unpack(packed).vectors)
        total += packed.size
    matrix = words.fit(np.concatenate(sample)[: words.FIT_ON])
    connection.execute(
        sa.insert(directions),
        {
            "id": 1,
            "words": min(total, words.FIT_ON),
            "width": matrix.shape[1],
            "matrix": matrix.astype("<f4").tobytes(),
        },
    )
    small = 0
    for block in _blocks(connection):
        projected = [(id_, words.repack(packed, matrix)) for id_, packed in block]
        connection.exec_driver_sql(_INSERT, [(id_, one.width, one.data) for id_, one in projected])
        small += sum(len(one.data) for _, one in projected)
    return Amount(held.passages, small)


def _width(connection: sa.Connection) -> int | None:
    """The width of the rows that are kept; None where there is none."""
    return connection.scalar(sa.select(passage_words.c.width).limit(1))


def _blocks(connection: sa.Connection) -> Iterator[list[tuple[int, Packed]]]:
    """Word vectors by id, block by block, each read anew: its rows may be written meanwhile."""
    last = -1
    while True:
        query = (
            sa.select(passage_words)
            .where(passage_words.c.passage_id > last)
            .order_by(passage_words.c.passage_id)
            .limit(_ROWS_A_FETCH)
        )
        rows = connection.execute(query).all()
        if not rows:
            return
        last = next_after(last, rows)
        yield [(row.passage_id, Packed(row.width, row.data)) for row in rows]
