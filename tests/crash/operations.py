"""What is done to a store while it is killed: each operation, and the store it begins with."""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from engine import Engine
from engine.settings import IndexKind
from tests.older import make_older
from tests.words import TokenEmbedder

LINES = 40
COLOURS = ["red", "green", "blue", "pear", "plum", "sea", "sky", "oak"]
SMALLER = {
    "engine.ingest.BATCH": 20,
    "engine.words.FIT_AT": 500,
    "engine.words.FIT_ON": 550,
    "engine.tokens._PASSAGES_A_COMMIT": 30,
    "engine.index.quantised.SMALLEST": 64,
    "engine.storage.view._ROWS_A_FETCH": 32,
    "engine.approximation.FEWEST": 64,
    "engine.upkeep.WHILE_WRITING": (50, 1.0),
    "engine.upkeep.WHEN_DONE": (50, 1 / 16),
}
"""What makes a small store go through all that a large one does."""


def model() -> TokenEmbedder:
    """Of a window of 12 words, its words of a width that will be projected."""
    return TokenEmbedder(256, 12, width=140)


def opened(store: Path) -> Engine:
    return Engine.open(store, model=model())


def write_files(folder: Path, seed: int) -> None:
    """Three files of lines, the first half of each the same whatever the seed."""
    folder.mkdir(exist_ok=True)
    for n in range(3):
        chances = (random.Random(n), random.Random(100 * seed + n))
        lines = (
            f"own{n}x{line} " + " ".join(chance.choices(COLOURS, k=chance.choice([3, 4, 5, 30])))
            for line in range(LINES)
            for chance in [chances[line >= LINES // 2]]
        )
        (folder / f"f{n}.txt").write_text("\n".join(lines))


def files_of(store: Path) -> list[str]:
    return [str(path) for path in sorted((store.parent / "files").glob("*.txt"))]


def nothing(store: Path) -> None:
    write_files(store.parent / "files", 1)


def indexed(store: Path, *, tokens: bool = True) -> None:
    """A store with an index, a copy, rows committed since, and some deleted."""
    nothing(store)
    with Engine.create(store, model=model(), tokens=tokens) as engine:
        engine.add_files(files_of(store)[:2])
        engine.rebuild()
        engine.add_files(files_of(store)[2:])
        engine.delete(engine_ids(store)[::7])


def changed_files(store: Path) -> None:
    indexed(store)
    write_files(store.parent / "files", 2)


def wordless(store: Path) -> None:
    indexed(store, tokens=False)


def first_schema(store: Path) -> None:
    wordless(store)
    make_older(store, "0001")


def exported(store: Path) -> None:
    indexed(store)
    other = store.parent / "other"
    write_files(other, 3)
    with Engine.create(other / "s", model=model()) as engine:
        engine.add_files(sorted(other.glob("*.txt")))
        engine.export_file(store.parent / "other.jsonl")


def engine_ids(store: Path) -> list[str]:
    with closing(sqlite3.connect(store / "store.db")) as raw:
        return [row[0] for row in raw.execute('SELECT "key" FROM documents ORDER BY id')]


def index(store: Path) -> None:
    with Engine.create(store, model=model(), exist_ok=True) as engine:
        engine.add_files(files_of(store))


def delete(store: Path) -> None:
    with opened(store) as engine:
        going = [id_ for id_ in engine_ids(store) if int(id_.rsplit(":", 1)[1]) % 3]
        for start in range(0, len(going), 30):
            engine.delete(going[start : start + 30])
        engine.rebuild()


def compact(store: Path) -> None:
    with opened(store) as engine:
        engine.compact()


def rebuild(store: Path) -> None:
    with opened(store) as engine:
        engine.rebuild()


def upgrade(store: Path) -> None:
    with opened(store) as engine:
        engine.search("red sea", rerank=False)


def build_tokens(store: Path) -> None:
    with opened(store) as engine:
        engine.build_tokens()


def drop_tokens(store: Path) -> None:
    with opened(store) as engine:
        engine.drop_tokens()


def tune(store: Path) -> None:
    with opened(store) as engine:
        engine.tune(kind=IndexKind.HNSW, recall=0.5)


def import_(store: Path) -> None:
    with opened(store) as engine:
        engine.import_file(store.parent / "other.jsonl")


def backup(store: Path) -> None:
    with opened(store) as engine:
        engine.backup(store.parent / "backup.db", overwrite=True)
        engine.export_file(store.parent / "export.jsonl", overwrite=True)


class Operation(NamedTuple):
    """What runs, on a store made by `before`."""

    before: Callable[[Path], None]
    run: Callable[[Path], None]


OPERATIONS = {
    "index": Operation(nothing, index),
    "index again": Operation(changed_files, index),
    "import": Operation(exported, import_),
    "delete": Operation(indexed, delete),
    "rebuild": Operation(indexed, rebuild),
    "compact": Operation(indexed, compact),
    "tune": Operation(indexed, tune),
    "tokens build": Operation(wordless, build_tokens),
    "tokens drop": Operation(indexed, drop_tokens),
    "upgrade": Operation(first_schema, upgrade),
    "backup, export": Operation(indexed, backup),
}

POINTS = {
    "rows written": ("engine.storage.writer.Writer.add", "after"),
    "counters written": ("engine.storage.writer.Writer.close", "after"),
    "before a commit": ("sqlalchemy.engine.default.DefaultDialect.do_commit", "before"),
    "after a commit": ("sqlalchemy.engine.default.DefaultDialect.do_commit", "after"),
    "words added": ("engine.storage.writer.Writer.add_words", "after"),
    "words fitted": ("engine.words.fit", "after"),
    "words dropped": ("engine.storage.writer.Writer.drop_words", "after"),
    "words row inserted": ("engine.storage.words.insert", "after"),
    "lexical index filled": ("engine.storage.lexical.fill", "after"),
    "before a publication": ("engine.upkeep.IndexKeeper.publish", "before"),
    "file written, not synced": ("engine.files.sync", "before"),
    "file synced": ("engine.files.sync", "after"),
    "before a rename": ("os.replace", "before"),
    "renamed, directory not synced": ("os.replace", "after"),
    "before a file has its name": ("engine.files.rename_new", "before"),
    "linked, not synced": ("os.link", "after"),
    "rows in the index, no copy": ("engine.index.quantised.write", "before"),
    "copy written": ("engine.index.quantised.write", "after"),
    "graph saved": ("engine.index.native.save", "after"),
    "between files and record": ("engine.storage.store.Store.set_published", "before"),
    "between record and removal": ("engine.storage.store.Store.set_published", "after"),
    "a file removed": ("pathlib.Path.unlink", "after"),
    "before the vacuum": ("engine.storage.database.compact", "before"),
    "after the vacuum": ("engine.storage.database.compact", "after"),
    "backup made": ("engine.storage.database.backup", "after"),
    "schema changed": ("engine.storage.alchemy._run_migrations", "after"),
    "lock taken": ("engine.files.WriterLock._take", "after"),
}
"""Where a child is killed: a function's name, before it runs or after."""
WITHIN = {"in the middle of a file": "engine.storage.view.View.all_vectors"}
"""Generators, in the middle of which a child is killed."""


def content(store: Path, *, words: bool = True) -> list[Any]:
    """All that a store holds, by document, whatever the row numbers; of an older schema too.

    Of word vectors only their size: they are rounded once more where the directions are fitted
    after they were packed, which depends on how fast the batch before was committed.
    """
    return snapshot(store, words=words)[1]


def snapshot(store: Path, *, words: bool = True) -> tuple[int, list[Any]]:
    """The last committed generation and its `content`, read together."""
    with closing(sqlite3.connect(store / "store.db", isolation_level=None)) as raw:
        raw.execute("BEGIN")
        number = raw.execute("SELECT number FROM generation").fetchone()[0]
        rows: list[Any] = raw.execute(
            "SELECT d.key, d.metadata, d.content_hash, d.text, s.uri, p.ordinal, p.start, p.end,"
            " p.text, p.content_hash, p.vector FROM documents d JOIN passages p"
            " ON p.document_id = d.id LEFT JOIN sources s ON s.id = d.source_id ORDER BY 1, 6"
        ).fetchall()
        rows += raw.execute("SELECT documents, passages FROM generation").fetchall()
        kept = raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'passage_words'").fetchone()
        if words and kept:
            rows += raw.execute(
                "SELECT d.key, p.ordinal, w.width, length(w.data) FROM passage_words w"
                " LEFT JOIN passages p ON p.id = w.passage_id LEFT JOIN documents d"
                " ON d.id = p.document_id ORDER BY 1, 2"
            ).fetchall()
            rows += raw.execute(
                "SELECT worded, word_bytes FROM generation WHERE worded OR word_bytes"
            ).fetchall()
    return number, rows


def digest(store: Path) -> str:
    return digest_of(content(store))


def digest_of(rows: list[Any]) -> str:
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def generation(store: Path) -> int:
    """The last committed generation; 0 where there is no store yet."""
    if not (store / "store.db").exists():
        return 0
    with closing(sqlite3.connect(store / "store.db")) as raw:
        return int(raw.execute("SELECT number FROM generation").fetchone()[0])


def pending(store: Path) -> int:
    with closing(sqlite3.connect(store / "store.db")) as raw:
        query = "SELECT count(*) FROM sources WHERE NOT finished"
        return int(raw.execute(query).fetchone()[0])
