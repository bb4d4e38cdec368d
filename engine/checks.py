"""What can be wrong with a database, found by reading all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from engine import vectors
from engine.errors import CorruptionError
from engine.settings import Metric
from engine.storage import lexical, words
from engine.storage.records import StoreSettings
from engine.storage.schema import documents, passage_words, passages
from engine.storage.view import View
from engine.storage.words import Amount
from engine.text import unicode
from engine.types import BoolArray
from engine.words import Packed, is_intact

_ROWS_A_FETCH = 4096
_UNIT_TOLERANCE = 1e-4


def problems(view: View, settings: StoreSettings) -> list[str]:
    """Faults of the database, a sentence each; none for a sound one.

    SQLite's own check and foreign keys; the counters; every vector's width, numbers and (cosine)
    length; every embedded text against its hash; documents without a passage; the lexical index;
    word vectors: their width, scales, places in the text, and the directions they lie on.
    """
    return [f"database: {fault}" for fault in _faults(view, settings)]


def _faults(view: View, settings: StoreSettings) -> Iterator[str]:
    connection = view.connection
    checked = [row[0] for row in connection.exec_driver_sql("PRAGMA integrity_check")]
    if checked != ["ok"]:
        yield from checked
    orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    if orphans:
        yield f"{len(orphans)} rows refer to rows that do not exist"
    state = view.state()
    for name, table, kept in (
        ("documents", documents, state.documents),
        ("passages", passages, state.passages),
    ):
        count = connection.scalar(sa.select(sa.func.count()).select_from(table))
        if count != kept:
            yield f"{count} {name}, and the counter says {kept}"
    empty = connection.scalar(
        sa.select(sa.func.count())
        .select_from(documents.outerjoin(passages))
        .where(passages.c.id.is_(None))
    )
    if empty:
        yield f"{empty} documents have no passage"
    bad_vectors: list[int] = []
    bad_texts: list[int] = []
    query = sa.select(passages.c.id, passages.c.content_hash, passages.c.text, passages.c.vector)
    result = connection.execution_options(yield_per=_ROWS_A_FETCH).execute(query)
    for rows in result.partitions():
        bad_vectors += _bad_vectors(rows, settings)
        bad_texts += [row.id for row in rows if row.content_hash and not _is_hash_of(row)]
    if bad_vectors:
        yield f"the vectors of passages {_some(bad_vectors)} are damaged"
    if bad_texts:
        yield f"the texts of passages {_some(bad_texts)} are not those that were embedded"
    yield from lexical.problems(connection)
    yield from _word_faults(view)


def _word_faults(view: View) -> Iterator[str]:
    connection, state = view.connection, view.state()
    held = words.amount(connection, sa.true())
    if held != (state.worded, state.word_bytes):
        said = Amount(state.worded, state.word_bytes)
        yield f"word vectors: {held}, and the counters say {said}"
    width, faulty = _fitted_width(connection)
    if faulty:
        yield "the directions of the word vectors are damaged"
    query = sa.select(
        passage_words, passages.c.text, passages.c.content_hash.is_(None).label("own")
    ).join(passages)
    bad: list[int] = []
    result = connection.execution_options(yield_per=_ROWS_A_FETCH // 16).execute(query)
    for row in result:
        width = row.width if width is None else width
        packed = Packed(row.width, row.data)
        intact = is_intact(packed, len(unicode.composed(row.text)))
        if row.own or row.width != width or not intact:
            bad.append(row.passage_id)
    if bad:
        yield f"the word vectors of passages {_some(bad)} are damaged"


def _fitted_width(connection: sa.Connection) -> tuple[int | None, bool]:
    """What width the fitted directions give, if there are any; and whether they are damaged."""
    try:
        fitted = words.read_directions(connection)
    except CorruptionError:
        return None, True
    if fitted is None:
        return None, False
    with np.errstate(all="ignore"):
        off = np.abs(fitted.T @ fitted - np.eye(fitted.shape[1]))
    return fitted.shape[1], not (off < _UNIT_TOLERANCE).all()


def _bad_vectors(rows: Sequence[Any], settings: StoreSettings) -> list[int]:
    width = 4 * settings.dimension
    bad = [row.id for row in rows if len(row.vector) != width]
    whole = [row for row in rows if len(row.vector) == width]
    matrix = vectors.from_blobs([row.vector for row in whole], settings.dimension)
    sound: BoolArray = np.logical_and.reduce(np.isfinite(matrix), axis=1)
    if settings.metric is Metric.COSINE:
        with np.errstate(all="ignore"):
            sound &= np.abs(vectors.row_norms(matrix) - 1) < _UNIT_TOLERANCE
    return bad + [row.id for row, good in zip(whole, sound, strict=True) if not good]


def _is_hash_of(row: Any) -> bool:
    return bool(unicode.digest(unicode.composed(row.text).encode()) == row.content_hash)


def _some(ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:5]))
    return f"{shown} and {len(ids) - 5} more" if len(ids) > 5 else shown
