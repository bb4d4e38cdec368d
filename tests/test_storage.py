"""Schema, migrations, transactions and the refusals of the database."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from engine import Document, Engine
from engine.errors import (
    CorruptionError,
    DimensionError,
    LockedError,
    ModelMismatchError,
    SchemaVersionError,
    StorageError,
    StoreExistsError,
    StoreNotFoundError,
)
from engine.files import WriterLock
from engine.storage import alchemy, database, lexical, schema
from engine.storage.store import Store, create_store
from tests.words import WordEmbedder


def columns_of(db: sa.Engine) -> dict[str, Any]:
    inspector = sa.inspect(db)
    return {
        table: (
            [(c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(table)],
            sorted(str(i["column_names"]) + str(i["name"]) for i in inspector.get_indexes(table)),
            inspector.get_foreign_keys(table),
        )
        for table in inspector.get_table_names()
        if table != "alembic_version" and table not in lexical.OWNED
    }


def test_migrations_make_exactly_the_schema(engine: Engine, tmp_path: Path) -> None:
    migrated = alchemy.open_engine(tmp_path / "s" / "store.db")
    declared = sa.create_engine("sqlite://")
    schema.metadata.create_all(declared)
    assert columns_of(migrated) == columns_of(declared)
    with migrated.connect() as connection:
        own = {"include_name": lambda name, *_: name not in lexical.OWNED}
        context = MigrationContext.configure(connection, opts=own)
        assert compare_metadata(context, schema.metadata) == []
    migrated.dispose()
    declared.dispose()


def test_head_is_the_last_revision() -> None:
    config = Config()
    config.set_main_option("script_location", str(alchemy.migrations_directory()))
    assert ScriptDirectory.from_config(config).get_heads() == [database.HEAD]


def test_pragmas(engine: Engine, tmp_path: Path) -> None:
    db = alchemy.open_engine(tmp_path / "s" / "store.db")
    with db.connect() as connection:
        values = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "page_size", "synchronous")
        }
    db.dispose()
    assert values == {
        "journal_mode": "wal",
        "foreign_keys": 1,
        "page_size": 16_384,
        "synchronous": 2,
    }


def test_schema_changes_roll_back(engine: Engine, tmp_path: Path) -> None:
    db = alchemy.open_engine(tmp_path / "s" / "store.db")
    with (
        pytest.raises(RuntimeError, match="half way"),
        alchemy.writing(db, tmp_path / "s") as connection,
    ):
        connection.exec_driver_sql("CREATE TABLE extra (a)")
        connection.exec_driver_sql("DROP TABLE fields")
        raise RuntimeError("half way")
    names = sa.inspect(db).get_table_names()
    assert "extra" not in names
    assert "fields" in names
    db.dispose()


def set_version(store: Path, version: str) -> None:
    with closing(sqlite3.connect(store / "store.db")) as raw, raw:
        raw.execute("UPDATE alembic_version SET version_num = ?", (version,))


def test_a_newer_store_is_refused(engine: Engine, tmp_path: Path) -> None:
    engine.close()
    set_version(tmp_path / "s", "9999")
    with pytest.raises(SchemaVersionError, match=r"schema 9999.*newer version; upgrade") as error:
        Engine.open(tmp_path / "s")
    assert (error.value.found, error.value.expected) == ("9999", database.HEAD)


HEAD = database.HEAD
NEXT = f"{int(HEAD) + 1:04d}"


@pytest.fixture
def old_store(tmp_path: Path, words: WordEmbedder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store one schema behind: the program learns a revision more, which adds a table."""
    path = tmp_path / "s"
    with Engine.create(path, model=words) as made:
        made.add([Document("a dog", id="dog")])
    copied = tmp_path / "migrations"
    subprocess.run(["cp", "-r", alchemy.migrations_directory(), copied], check=True)
    (copied / "versions" / f"{NEXT}_more.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n"
        f"revision, down_revision = '{NEXT}', '{database.HEAD}'\n"
        "def upgrade():\n"
        "    op.create_table('more', sa.Column('a', sa.Integer))\n"
        "    if (__import__('pathlib').Path(__file__).parent / 'fail').exists():\n"
        "        raise RuntimeError('half way')\n"
    )
    monkeypatch.setattr(alchemy, "migrations_directory", lambda: copied)
    monkeypatch.setattr(database, "HEAD", NEXT)
    return path


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as raw:
        return {row[0] for row in raw.execute("SELECT name FROM sqlite_master")}


def test_an_older_store_is_backed_up_and_upgraded(old_store: Path, words: WordEmbedder) -> None:
    with Engine.open(old_store, model=words) as opened:
        assert opened.stats().schema == NEXT
        assert [hit.id for hit in opened.search("dog").hits] == ["dog"]
    assert "more" in tables(old_store / "store.db")
    (saved,) = (old_store / "backups").iterdir()
    assert "more" not in tables(saved)
    with closing(sqlite3.connect(saved)) as raw:
        assert raw.execute("SELECT key FROM documents").fetchall() == [("dog",)]


def test_a_reader_does_not_upgrade(old_store: Path) -> None:
    with pytest.raises(SchemaVersionError, match="open it once for writing"):
        Engine.open(old_store, read_only=True)
    assert database.check_schema(old_store) == HEAD


def test_a_failed_upgrade_leaves_the_old_store(old_store: Path, tmp_path: Path) -> None:
    (tmp_path / "migrations" / "versions" / "fail").touch()
    with pytest.raises(StorageError, match="half way; the store is as it was"):
        Store(old_store)
    assert "more" not in tables(old_store / "store.db")
    assert database.check_schema(old_store) == HEAD


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"attendex index PATHS --store .*nowhere") as e:
        Engine.open(tmp_path / "nowhere")
    assert e.value.path == tmp_path / "nowhere"
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="is a file"):
        Engine.open(tmp_path / "file")


def test_a_store_is_not_made_over_another(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(StoreExistsError, match="already"):
        Engine.create(tmp_path / "s", model=WordEmbedder())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").touch()
    with pytest.raises(StorageError, match="other files"):
        Engine.create(tmp_path / "other", model=WordEmbedder())


def test_a_failed_creation_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: WordEmbedder
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no migrations")

    monkeypatch.setattr(alchemy, "_run_migrations", fail)
    with pytest.raises(RuntimeError, match="no migrations"):
        Engine.create(tmp_path / "s", model=words)
    assert list((tmp_path / "s").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 100])
def test_what_is_no_database(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "store.db").write_bytes(content)
    with pytest.raises(SchemaVersionError if not content else CorruptionError):
        Engine.open(tmp_path / "s")


def test_a_damaged_page_is_named(engine: Engine, tmp_path: Path) -> None:
    engine.add([f"text number {i} {'x' * 200}" for i in range(300)])
    engine.close()
    path = tmp_path / "s" / "store.db"
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = path.stat().st_size
    with path.open("r+b") as handle:
        handle.seek(16_384 * 3)
        handle.write(b"\xff" * (size - 16_384 * 4))
    with pytest.raises(CorruptionError, match="restore store.db from a backup"):
        Engine.open(tmp_path / "s", model=WordEmbedder()).search("text")


def test_ids_are_never_used_twice(engine: Engine, tmp_path: Path) -> None:
    engine.add([Document("one", id="a"), Document("two", id="b")])
    engine.delete(["b"])
    engine.add([Document("three", id="c")])
    engine.add([Document("one again", id="a")])
    with closing(sqlite3.connect(tmp_path / "s" / "store.db")) as raw:
        found = dict(
            raw.execute("SELECT key, p.id FROM documents d JOIN passages p ON d.id = document_id")
        )
    assert found == {"c": 3, "a": 4}


def test_the_whole_text_is_stored_once(engine: Engine, tmp_path: Path) -> None:
    engine.add([Document("short", id="a")])
    with closing(sqlite3.connect(tmp_path / "s" / "store.db")) as raw:
        assert raw.execute("SELECT text FROM documents").fetchall() == [(None,)]
        assert raw.execute("SELECT text FROM passages").fetchall() == [("short",)]


HOLD = """
import sys
from pathlib import Path
from engine.files import WriterLock
with WriterLock(Path(sys.argv[1])).held():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_writer_is_told_who_holds_the_lock(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.files.LOCK_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(WriterLock.held.__wrapped__, "__defaults__", (0.1,))  # type: ignore[attr-defined]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "s")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(LockedError, match=f"process {holder.pid}") as error:
        engine.add(["late"])
    assert error.value.pid == holder.pid
    assert engine.search("late").hits == ()
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    assert engine.add(["late"]).added == 1


def test_threads_of_one_process_take_turns(tmp_path: Path) -> None:
    lock = WriterLock(tmp_path)
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(20):
            with lock.held(), lock.held():
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 80
    assert max(most) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_read_only_writes_nothing(engine: Engine, tmp_path: Path) -> None:
    engine.add([Document("a dog", id="dog")])
    with Engine.open(tmp_path / "s", read_only=True, model=WordEmbedder()) as reader:
        assert [hit.id for hit in reader.search("dog").hits] == ["dog"]
        for write in (
            lambda: reader.add(["x"]),
            lambda: reader.delete(["dog"]),
            lambda: reader.rebuild(),
        ):
            with pytest.raises(StorageError, match="read only"):
                write()


def test_a_closed_engine_says_so(engine: Engine) -> None:
    engine.close()
    for use in (
        lambda: engine.search("x"),
        lambda: engine.add(["x"]),
        lambda: engine.get(["x"]),
        lambda: engine.stats(),
    ):
        with pytest.raises(StorageError, match="was closed"):
            use()


@pytest.mark.parametrize(
    "name", ["a b", "100%", "a%20b", "what?mode=ro", "#1", "ベクターストア", "é"]
)
def test_any_name_of_a_directory(tmp_path: Path, name: str, words: WordEmbedder) -> None:
    with Engine.create(tmp_path / name, model=words) as made:
        made.add([Document("a dog", id="dog")])
        made.rebuild()
    assert (tmp_path / name / "store.db").is_file()
    with Engine.open(str(tmp_path / name), model=words) as opened:
        assert [hit.id for hit in opened.search("dog").hits] == ["dog"]


def test_creation_never_replaces_a_store(engine: Engine, tmp_path: Path) -> None:
    engine.add([Document("a dog", id="dog")])
    store = Store(tmp_path / "s")
    with pytest.raises(StoreExistsError):
        create_store(tmp_path / "s", store.settings)
    store.close()
    assert engine.get(["dog"])[0].text == "a dog"


def test_a_read_only_connection_cannot_write(engine: Engine, tmp_path: Path) -> None:
    store = Store(tmp_path / "s", read_only=True)
    with pytest.raises(StorageError, match="read only"):
        store.rename_model("other")
    store.close()


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (sqlite3.SQLITE_BUSY, LockedError, "try again"),
        (sqlite3.SQLITE_LOCKED, LockedError, "try again"),
        (sqlite3.SQLITE_CORRUPT, CorruptionError, "restore"),
        (sqlite3.SQLITE_NOTADB, CorruptionError, "restore"),
        (sqlite3.SQLITE_FULL, StorageError, "no space left"),
        (sqlite3.SQLITE_READONLY, StorageError, "cannot be written"),
        (sqlite3.SQLITE_CANTOPEN, StorageError, "cannot be written"),
        (sqlite3.SQLITE_IOERR, StorageError, "is the disk full"),
        (sqlite3.SQLITE_IOERR | (3 << 8), StorageError, "is the disk full"),
        (sqlite3.SQLITE_ERROR, StorageError, "failed"),
    ],
)
def test_faults_of_sqlite_are_named(code: int, kind: type[StorageError], advice: str) -> None:
    fault = sqlite3.OperationalError("cause")
    fault.sqlite_errorcode = code
    with pytest.raises(StorageError, match=advice) as error, database.translated(Path("here")):
        raise fault
    assert type(error.value) is kind
    assert "here" in str(error.value)


def test_a_writer_that_will_not_wait(tmp_path: Path) -> None:
    lock = WriterLock(tmp_path)
    refused: list[BaseException] = []

    def try_once() -> None:
        try:
            with lock.held(wait=0):
                pass
        except LockedError as error:
            refused.append(error)

    with lock.held():
        assert (tmp_path / "writer.pid").read_text() == str(os.getpid())
        thread = threading.Thread(target=try_once)
        thread.start()
        thread.join(timeout=10)
        assert len(refused) == 1
    assert not (tmp_path / "writer.pid").exists()
    with (
        pytest.raises(StorageError, match="cannot be written"),
        WriterLock(tmp_path / "writer.lock").held(),
    ):
        pass


def test_threads_make_different_stores(tmp_path: Path) -> None:
    faults: list[BaseException] = []

    def make(number: int) -> None:
        try:
            with Engine.create(tmp_path / str(number), model=WordEmbedder()) as made:
                made.add([f"text {number}"])
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=make, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    for number in range(4):
        with Engine.open(tmp_path / str(number), model=WordEmbedder()) as opened:
            assert opened.search("text").hits[0].text == f"text {number}"


def test_a_relative_path_stays_where_it_was(
    tmp_path: Path, words: WordEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with Engine.create("s", model=words) as made:
        monkeypatch.chdir(tmp_path / "elsewhere")
        made.add([f"text {i}" for i in range(300)])
        made.rebuild()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert len(list((tmp_path / "s" / "index").iterdir())) == 1


def test_a_creation_killed_half_way_is_no_obstacle(tmp_path: Path, words: WordEmbedder) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / ".store.db.123.456").write_bytes(b"half")
    with Engine.create(tmp_path / "s", model=words) as made:
        assert made.add(["a"]).added == 1
    assert (tmp_path / "s" / ".store.db.123.456").exists()


def test_errors_survive_pickling() -> None:
    for error in (
        LockedError(Path("s"), pid=7, waited=5.0),
        SchemaVersionError("old", found="1", expected="2"),
        StoreNotFoundError(Path("s")),
        DimensionError(expected=3, actual=4),
        ModelMismatchError(store_model="a", given_model="b"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_rows_left_unread_hold_no_snapshot(engine: Engine, tmp_path: Path) -> None:
    """A stream that was left half way would keep its connection at the state it was read at."""
    engine.add([f"text {n}" for n in range(3000)])
    store = Store(tmp_path / "s", read_only=True)
    with store.reading() as view:
        stream = view.exported(None)
        first = next(stream)
        blocks = view.all_vectors()
        next(blocks)
    engine.add(["later"])
    with store.reading() as view:
        assert view.state().documents == 3001
        assert len(list(view.exported(None))) == 3001
    assert first.id
    with pytest.raises(sqlite3.ProgrammingError, match="closed cursor"):
        list(blocks)
    store.close()
