"""What can be wrong with a database, found by reading all of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from engine import vectors
from engine.errors import CorruptionError
from engine.settings import Metric
from engine.storage import database, lexical, soundness, words
from engine.storage.records import StoreSettings
from engine.storage.schema import documents, passage_words, passages
from engine.storage.view import View
from engine.storage.words import Amount
from engine.text import unicode
from engine.types import BoolArray
from engine.words import Packed, is_intact

_ROWS_A_FETCH = 4096
_UNIT_TOLERANCE = 1e-4
_UNREADABLE = (
    CorruptionError,
    sa.exc.SQLAlchemyError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


def problems(view: View, settings: StoreSettings, store: Path) -> list[str]:
    """Faults of the database, a sentence each; none for a sound one.

    SQLite's own check and what `soundness.faults` asks; every vector's width, numbers and (cosine)
    length; every embedded text against its hash, and every document's text and own vectors;
    the lexical index; word vectors: their width, scales, places in the text, and the directions
    they lie on; generations of the index that the database does not know.
    """
    found: list[str] = []
    parts: list[tuple[str, Callable[[], Iterable[str]]]] = [
        ("the tables", lambda: soundness.all_faults(store / database.FILE_NAME)),
        ("the passages", lambda: _row_faults(view, settings)),
        ("the documents", lambda: _document_faults(view)),
        ("the lexical index", lambda: lexical.problems(view.connection)),
        ("the word vectors", lambda: _word_faults(view)),
        ("the log", lambda: _lost_log(view, store)),
    ]
    for what, part in parts:
        try:
            found += part()
        except _UNREADABLE as error:
            cause = getattr(error, "orig", None) or error
            found.append(f"{what} cannot be read ({cause})")
    return [f"database: {fault}" for fault in found]


def _lost_log(view: View, store: Path) -> Iterator[str]:
    """An index that was made of a later generation tells that commits are gone: the log that
    held them was removed, or damaged, or an older database was put in its place."""
    number = view.state().number
    made = [
        int(path.stem[6:]) for path in store.glob("index/index-*.faiss") if path.stem[6:].isdigit()
    ]
    if made and max(made) > number:
        yield (
            f"it holds generation {number}, and an index was made of generation {max(made)}: "
            f"what was committed between is gone; was {database.FILE_NAME}-wal removed?"
        )


def _document_faults(view: View) -> Iterator[str]:
    """Documents whose text, with the vectors they brought, is not the one that was stored."""
    bad: list[int] = []
    query = (
        sa.select(
            documents.c.id,
            documents.c.content_hash,
            documents.c.text,
            passages.c.text,
            passages.c.content_hash.is_(None),
            passages.c.vector,
        )
        .select_from(documents.join(passages))
        .order_by(documents.c.id, passages.c.ordinal)
    )
    result = view.connection.execution_options(yield_per=_ROWS_A_FETCH // 16).execute(query)
    for id_, group in itertools.groupby(result, key=itemgetter(0)):
        rows = list(group)
        text = rows[0][2] if rows[0][2] is not None else rows[0][3]
        own = [row[5] for row in rows if row[4]]
        if unicode.digest(text.encode(), *own) != rows[0][1]:
            bad.append(id_)
    if bad:
        yield f"the texts of documents {_some(bad)} are not those that were stored"


def _row_faults(view: View, settings: StoreSettings) -> Iterator[str]:
    connection = view.connection
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
