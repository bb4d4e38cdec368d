"""Reading a damaged database row by row, past the pages that cannot be read.

It works on a copy, whose header is mended first. What is readable of each table goes into a sound
database of its own, where rows can be put together again; keys of documents whose row is lost come
from the index of the keys. What a row says is not trusted here: whoever takes it checks the hashes.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import CorruptionError, StoreNotFoundError
from engine.storage.database import FILE_NAME, PAGE_BYTES

_TABLES = {
    "settings": ("name", "value"),
    "generation": ("documents", "passages", "last_document_id", "last_passage_id"),
    "sources": ("uri", "finished"),
    "documents": ("key", "source_id", "content_hash", "text", "metadata"),
    "passages": (
        "document_id",
        "ordinal",
        "start",
        "end",
        "token_count",
        "truncated",
        "content_hash",
        "text",
        "vector",
    ),
}
_TEXTS = {"name", "uri", "key", "text", "metadata"}
_BYTES = {"content_hash", "vector"}
_NULLABLE = {"source_id", "content_hash", "text"}
_KEYS = "sqlite_autoindex_documents_1"
_TRIES = 4_000_000
_MOST = 1 << 40
_HEADER = struct.Struct(">16sHBBBBBBIIIIIIIIIIII20xII")
_UTF8 = 1
_FORMAT = 4
_DOCUMENTS = """
    SELECT ids.id, coalesce(d.key, k.key), d.content_hash, d.text, d.metadata, s.uri, d.id IS NULL
    FROM (
        SELECT id FROM documents UNION SELECT id FROM keys UNION SELECT document_id FROM passages
    ) AS ids
    LEFT JOIN documents AS d ON d.id = ids.id LEFT JOIN keys AS k ON k.id = ids.id
    LEFT JOIN sources AS s ON s.id = d.source_id
    ORDER BY ids.id
"""
_PASSAGES = """
    SELECT start, "end", token_count, truncated, content_hash, text, vector FROM passages
    WHERE document_id = ? ORDER BY ordinal, id
"""


class FoundPassage(NamedTuple):
    """What is left of a passage's row."""

    start: int
    end: int
    tokens: int
    truncated: bool
    content_hash: bytes | None
    text: str
    vector: bytes


class FoundDocument(NamedTuple):
    """What is left of a document: None, or no passage, for what cannot be read."""

    id: int
    key: str | None
    content_hash: bytes | None
    text: str | None
    metadata: str | None
    source: str | None
    lost: bool
    passages: list[FoundPassage]


class Salvage:
    """What can be read of the damaged store `store`; `folder` is for its own files.

    `counted` is how many documents and passages the store said it held, None where it does not
    say. Raises `StoreNotFoundError`, `CorruptionError` where there is nothing to read.
    """

    def __init__(self, store: Path, folder: Path) -> None:
        database = store / FILE_NAME
        if not database.is_file():
            raise StoreNotFoundError(store)
        if database.stat().st_size < PAGE_BYTES:
            raise CorruptionError(
                f"{database} is empty or cut off within its first page: nothing of it can be "
                "saved; restore it from a backup, or index the sources again"
            )
        self._copy, self._sound = folder / FILE_NAME, folder / "sound.db"
        for ending in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{database}{ending}", f"{self._copy}{ending}")
        _mend_header(self._copy)
        self._tries = 0
        with closing(sqlite3.connect(self._sound)) as sound, sound:
            for table, columns in _TABLES.items():
                names = ", ".join(f'"{name}"' for name in columns)
                sound.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, {names})")
            sound.execute("CREATE TABLE keys (id INTEGER PRIMARY KEY, key)")
            sound.execute("CREATE INDEX of_document ON passages (document_id)")
            for table, columns in _TABLES.items():
                self._take(sound, table, columns)
            self._take_keys(sound)
            row = sound.execute("SELECT documents, passages FROM generation").fetchone()
            self.counted: tuple[int, int] | None = row
            found = sound.execute("SELECT name, value FROM settings").fetchall()
            self.settings = {name: _json(value) for name, value in found}
            finished = sound.execute("SELECT uri FROM sources WHERE finished = 1").fetchall()
            self.finished = {uri for (uri,) in finished}

    def documents(self) -> Iterator[FoundDocument]:
        """What is left of each document, in order of insertion."""
        with closing(sqlite3.connect(self._sound)) as sound:
            for *row, lost in sound.execute(_DOCUMENTS):
                parts = [FoundPassage(*part) for part in sound.execute(_PASSAGES, (row[0],))]
                yield FoundDocument._make([*row, bool(lost), parts])

    def _take(self, sound: sqlite3.Connection, table: str, columns: Sequence[str]) -> None:
        marks = ", ".join("?" * (1 + len(columns)))
        insert = f"INSERT OR REPLACE INTO {table} VALUES ({marks})"
        with closing(self._opened()) as damaged:
            rows = (_usable(columns, row) for row in self._rows(damaged, table, columns))
            sound.executemany(insert, (row for row in rows if row is not None))

    def _take_keys(self, sound: sqlite3.Connection) -> None:
        """Keys out of their index, which needs no row of its table."""
        query = f"SELECT id, key FROM documents INDEXED BY {_KEYS} WHERE key > ? ORDER BY key"
        with closing(self._opened()) as damaged, suppress(sqlite3.Error):
            for id_, key in damaged.execute(query, (b"",)):
                text = _text(key)
                if isinstance(id_, int) and text is not None:
                    sound.execute("INSERT OR REPLACE INTO keys VALUES (?, ?)", (id_, text))

    def _opened(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._copy, isolation_level=None)
        connection.text_factory = bytes
        connection.execute("PRAGMA cell_size_check = ON")
        return connection

    def _rows(
        self, damaged: sqlite3.Connection, table: str, columns: Sequence[str]
    ) -> Iterator[tuple[Any, ...]]:
        """Row by row; a range of ids that cannot be read is halved until single ids are left."""
        names = ", ".join(f'"{name}"' for name in columns)
        query = f"SELECT rowid, {names} FROM {table} WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
        ranges = [(-1, self._last_id(damaged, table))]
        while ranges and self._tries < _TRIES:
            low, high = ranges.pop()
            try:
                for row in damaged.execute(query, (low, high)):
                    if isinstance(row[0], int) and low <= row[0] <= high:
                        low = row[0] + 1
                        yield row
            except sqlite3.Error as error:
                if "no such table" in str(error) or "no such column" in str(error):
                    return
                self._tries += 1
                if low < high:
                    middle = (low + high) // 2
                    ranges += [(middle + 1, high), (low, middle)]

    def _last_id(self, damaged: sqlite3.Connection, table: str) -> int:
        """No row has a greater id: what the rows, or the counters, say."""
        single = {"documents": "last_document_id", "passages": "last_passage_id"}
        for query in (
            f"SELECT max(rowid) FROM {table}",
            f"SELECT {single.get(table, 'NULL')} FROM generation",
            f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'",
        ):
            with suppress(sqlite3.Error):
                found = damaged.execute(query).fetchone()
                if found and isinstance(found[0], int) and 0 <= found[0] < _MOST:
                    return found[0]
        return max(1024, self._copy.stat().st_size // 64)


def _mend_header(database: Path) -> None:
    """Write what is known of any store's file over its header, and leave SQLite to count pages."""
    with database.open("r+b") as file:
        fields = list(_HEADER.unpack(file.read(_HEADER.size)))
        fields[:8] = [b"SQLite format 3\0", PAGE_BYTES, 2, 2, 0, 64, 32, 32]
        change, schema = 8, 13
        fields[change + 1 : change + 4] = [0, 0, 0]
        fields[schema] = _FORMAT
        fields[schema + 1 : schema + 6] = [0, 0, _UTF8, 0, 0]
        fields[-2] = fields[change] ^ 1  # the size in the header is that of another change
        file.seek(0)
        file.write(_HEADER.pack(*fields))
        file.truncate(database.stat().st_size // PAGE_BYTES * PAGE_BYTES)


def _usable(columns: Sequence[str], row: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A row with its texts decoded; None for one that holds what no such row does."""
    made = [row[0]]
    for name, value in zip(columns, row[1:], strict=True):
        if value is None and name in _NULLABLE:
            made.append(None)
        elif name in _TEXTS:
            text = _text(value)
            if text is None:
                return None
            made.append(text)
        elif name == "value" or isinstance(value, bytes if name in _BYTES else int):
            made.append(value)
        else:
            return None
    return tuple(made)


def _text(value: object) -> str | None:
    try:
        return value.decode() if isinstance(value, bytes) else None
    except UnicodeDecodeError:
        return None


def _json(value: object) -> object:
    """A settings value, as JSON or as the number SQLite made of it; None where it is neither."""
    try:
        return json.loads(value) if isinstance(value, str | bytes) else value
    except ValueError:
        return None
