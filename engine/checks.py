"""What can be wrong with a database, found by reading all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from engine import vectors
from engine.settings import Metric
from engine.storage import lexical
from engine.storage.records import StoreSettings
from engine.storage.schema import documents, passages
from engine.storage.view import View
from engine.text import unicode
from engine.types import BoolArray

_ROWS_A_FETCH = 4096
_UNIT_TOLERANCE = 1e-4


def problems(view: View, settings: StoreSettings) -> list[str]:
    """Faults of the database, a sentence each; none for a sound one.

    SQLite's own check and foreign keys; the counters; every vector's width, numbers and (cosine)
    length; every embedded text against its hash; documents without a passage; the lexical index.
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
