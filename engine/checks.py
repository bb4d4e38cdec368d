"""What can be wrong with a database, found by reading all of it."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path

import numpy as np

from engine import vectors
from engine.arrays import BoolArray
from engine.errors import CorruptionError
from engine.settings import Metric
from engine.storage import database, lexical, soundness, words
from engine.storage.connection import Connection, Row
from engine.storage.records import StoreSettings
from engine.storage.view import View
from engine.storage.words import Amount
from engine.text import unicode
from engine.words import Packed, is_intact

_ROWS_A_FETCH = 4096
_UNIT_TOLERANCE = 1e-4
_ANEW = "`attendex tokens drop` and `tokens build` make them anew"
_PASSAGES = "SELECT id, content_hash, text, vector FROM passages"
_DOCUMENTS = """
    SELECT d.id, d.content_hash, coalesce(d.text, p.text), p.content_hash IS NULL, p.vector
    FROM documents AS d JOIN passages AS p ON p.document_id = d.id ORDER BY d.id, p.ordinal
"""
_WORDS = """
    SELECT w.passage_id, w.width, w.data, p.text, p.content_hash IS NULL
    FROM passage_words AS w JOIN passages AS p ON p.id = w.passage_id
"""
_UNREADABLE = (
    CorruptionError,
    sqlite3.Error,
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
            found.append(f"{what} cannot be read ({error})")
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
    rows = itertools.chain.from_iterable(
        view.connection.blocks(_DOCUMENTS, size=_ROWS_A_FETCH // 16)
    )
    for id_, group in itertools.groupby(rows, key=itemgetter(0)):
        parts = list(group)
        own = [vector for *_, brought, vector in parts if brought]
        if unicode.digest(parts[0][2].encode(), *own) != parts[0][1]:
            bad.append(id_)
    if bad:
        yield f"the texts of documents {_some(bad)} are not those that were stored"


def _row_faults(view: View, settings: StoreSettings) -> Iterator[str]:
    connection = view.connection
    bad_vectors: list[int] = []
    bad_texts: list[int] = []
    for rows in connection.blocks(_PASSAGES, size=_ROWS_A_FETCH):
        bad_vectors += _bad_vectors([(row[0], row[3]) for row in rows], settings)
        bad_texts += [id_ for id_, own, text, _ in rows if own and not _is_hash_of(own, text)]
    if bad_vectors:
        yield f"the vectors of passages {_some(bad_vectors)} are damaged"
    if bad_texts:
        yield f"the texts of passages {_some(bad_texts)} are not those that were embedded"


def _word_faults(view: View) -> Iterator[str]:
    connection, state = view.connection, view.state()
    held = words.amount(connection)
    if held != (state.worded, state.word_bytes):
        said = Amount(state.worded, state.word_bytes)
        yield f"word vectors: {held}, and the counters say {said}"
    width, faulty = _fitted_width(connection)
    if faulty:
        yield f"the directions of the word vectors are damaged; {_ANEW}"
    bad: list[int] = []
    for id_, own_width, data, text, own in itertools.chain.from_iterable(
        connection.blocks(_WORDS, size=_ROWS_A_FETCH // 16)
    ):
        width = own_width if width is None else width
        intact = is_intact(Packed(own_width, data), len(unicode.composed(text)))
        if own or own_width != width or not intact:
            bad.append(id_)
    if bad:
        yield f"the word vectors of passages {_some(bad)} are damaged; {_ANEW}"


def _fitted_width(connection: Connection) -> tuple[int | None, bool]:
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


def _bad_vectors(rows: Sequence[Row], settings: StoreSettings) -> list[int]:
    width = 4 * settings.dimension
    bad = [id_ for id_, blob in rows if len(blob) != width]
    whole = [(id_, blob) for id_, blob in rows if len(blob) == width]
    matrix = vectors.from_blobs([blob for _, blob in whole], settings.dimension)
    sound: BoolArray = np.logical_and.reduce(np.isfinite(matrix), axis=1)
    if settings.metric is Metric.COSINE:
        with np.errstate(all="ignore"):
            sound &= np.abs(vectors.row_norms(matrix) - 1) < _UNIT_TOLERANCE
    return bad + [id_ for (id_, _), good in zip(whole, sound, strict=True) if not good]


def _is_hash_of(content_hash: bytes, text: str) -> bool:
    return unicode.digest(unicode.composed(text).encode()) == content_hash


def _some(ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:5]))
    return f"{shown} and {len(ids) - 5} more" if len(ids) > 5 else shown
