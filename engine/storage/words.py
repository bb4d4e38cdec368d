"""The rows of word vectors: in step with their passages, of one width once directions are fitted.

Directions are fitted once, in the transaction that brings the words up to `words.FIT_AT`; in it
all rows kept so far at full width are projected, so a reader never meets two widths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from engine import words
from engine.arrays import Float32Array
from engine.errors import CorruptionError
from engine.storage.connection import Connection, next_after
from engine.words import Packed

_ROWS_A_FETCH = 256
_BY_IDS = """
    SELECT passage_id, width, data FROM passage_words
    WHERE passage_id IN (SELECT value FROM json_each(?))
"""
_AFTER = """
    SELECT passage_id, width, data FROM passage_words
    WHERE passage_id > ? ORDER BY passage_id LIMIT ?
"""
_AMOUNT = "SELECT count(*), coalesce(sum(length(data)), 0) FROM passage_words"
_OF_DOCUMENTS = """
    WHERE passage_id IN (
        SELECT id FROM passages WHERE document_id IN (SELECT value FROM json_each(?))
    )
"""
_INSERT = "INSERT OR REPLACE INTO passage_words (passage_id, width, data) VALUES (?, ?, ?)"


class Amount(NamedTuple):
    """So many passages with word vectors, of so many bytes."""

    passages: int
    bytes: int


def read_directions(connection: Connection) -> Float32Array | None:
    """The fitted directions (D, width); None as long as there are none."""
    row = connection.row("SELECT width, matrix FROM directions")
    if row is None:
        return None
    width, matrix = row
    if width < 1 or not matrix or len(matrix) % (4 * width):
        raise CorruptionError(
            "the database is damaged: the directions of its word vectors have a wrong size; "
            "restore it from a backup, or make them anew (attendex tokens drop, tokens build)"
        )
    return np.frombuffer(matrix, "<f4").reshape(-1, width)


def read(connection: Connection, ids: Sequence[int]) -> dict[int, Packed]:
    """The word vectors of passages by id, of those that have them; all of one width."""
    if not ids:
        return {}
    rows = connection.rows_of_ids(_BY_IDS, ids)
    found = {id_: Packed(width, data) for id_, width, data in rows}
    width = rows[0][1] if rows else 0
    damaged = [id_ for id_, one in found.items() if not one.is_sound or one.width != width]
    if damaged:
        raise CorruptionError(
            f"the database is damaged: the word vectors of passages {damaged[:5]} have a wrong "
            "size; restore it from a backup, or make them anew (attendex tokens drop, tokens build)"
        )
    return found


def insert(connection: Connection, rows: Sequence[tuple[int, Packed]]) -> Amount:
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
    connection.execute_many(_INSERT, [(id_, one.width, one.data) for id_, one in packed])
    return Amount(len(packed), sum(len(one.data) for _, one in packed))


def amount(connection: Connection, document_ids: Sequence[int] | None = None) -> Amount:
    """How much of word vectors there is, or the passages of some documents have."""
    if document_ids is None:
        rows = connection.rows(_AMOUNT)
    else:
        rows = connection.rows_of_ids(f"{_AMOUNT} {_OF_DOCUMENTS}", document_ids)
    return Amount(*rows[0])


def fit_if_due(connection: Connection, held: Amount) -> Amount:
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
    fitted = (1, min(total, words.FIT_ON), matrix.shape[1], matrix.astype("<f4").tobytes())
    connection.execute(
        "INSERT INTO directions (id, words, width, matrix) VALUES (?, ?, ?, ?)", fitted
    )
    small = 0
    for block in _blocks(connection):
        projected = [(id_, words.repack(packed, matrix)) for id_, packed in block]
        connection.execute_many(_INSERT, [(id_, one.width, one.data) for id_, one in projected])
        small += sum(len(one.data) for _, one in projected)
    return Amount(held.passages, small)


def _width(connection: Connection) -> int | None:
    """The width of the rows that are kept; None where there is none."""
    width: int | None = connection.value("SELECT width FROM passage_words LIMIT 1")
    return width


def _blocks(connection: Connection) -> Iterator[list[tuple[int, Packed]]]:
    """Word vectors by id, block by block, each read anew: its rows may be written meanwhile."""
    last = -1
    while True:
        rows = connection.rows(_AFTER, (last, _ROWS_A_FETCH))
        if not rows:
            return
        last = next_after(last, rows)
        yield [(id_, Packed(width, data)) for id_, width, data in rows]
