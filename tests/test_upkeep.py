"""Readers, writers and the published index: a commit is seen at the next search, by everyone."""

from __future__ import annotations

import json
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from engine import Document, Engine
from engine import upkeep as upkeep_module
from engine.errors import CorruptionError
from engine.files import publish, sha256_file
from engine.storage.store import Store
from engine.upkeep import Due
from tests.words import WordEmbedder

ROOT = Path(__file__).resolve().parents[1]


def published(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "index").glob("*"))


def test_published_when_enough_has_changed(engine: Engine, tmp_path: Path) -> None:
    engine.add([f"text {i}" for i in range(256)])
    assert engine.stats().indexed == 0
    engine.add(["one more"])
    stats = engine.stats()
    assert (stats.indexed, stats.delta, stats.dead) == (257, 0, 0)
    assert published(tmp_path / "s") == ["index-2.faiss"]
    engine.delete([engine.search("one more", k=1).hits[0].id])
    engine.add([f"later {i}" for i in range(10)])
    stats = engine.stats()
    assert (stats.indexed, stats.delta, stats.dead) == (257, 10, 1)
    engine.rebuild()
    stats = engine.stats()
    assert (stats.indexed, stats.delta, stats.dead) == (266, 0, 0)
    assert published(tmp_path / "s") == ["index-4.faiss"]


def test_published_while_a_long_add_runs(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.ingest.BATCH", 100)
    monkeypatch.setattr("engine.upkeep.WHILE_WRITING", Due(256, 1.0))
    seen: list[int] = []
    engine.add(
        (f"text {i}" for i in range(1000)),
        on_progress=lambda _: seen.append(engine.stats().indexed),
    )
    assert seen == [0, 0, 300, 300, 300, 300, 700, 700, 700, 700]
    assert (engine.stats().indexed, engine.stats().delta) == (1000, 0)


def test_published_after_deletions_and_at_the_end_of_an_add(engine: Engine) -> None:
    engine.add([Document(f"text {i}", id=str(i)) for i in range(1000)])
    assert engine.stats().indexed == 1000
    engine.add([f"later {i}" for i in range(300)])
    assert engine.stats().indexed == 1300
    engine.delete([str(i) for i in range(300)])
    engine.add(["one more"])
    stats = engine.stats()
    assert (stats.indexed, stats.delta, stats.dead) == (1001, 0, 0)


def test_a_deletion_and_then_a_publication(engine: Engine) -> None:
    engine.add([Document("one", id="1"), Document("two", id="2")])
    engine.delete(["1"])
    engine.rebuild()
    assert (engine.stats().indexed, engine.stats().dead) == (1, 0)


def test_what_is_deleted_while_an_index_is_written_stays_deleted(
    engine: Engine, tmp_path: Path
) -> None:
    engine.add([Document("one", id="1"), Document("two", id="2")])
    engine.rebuild()
    store = Store(tmp_path / "s")
    with store.reading() as view:
        published = view.state().published
    assert published is not None
    engine.delete(["1"])
    store.set_published(published)
    assert [hit.id for hit in engine.search("one two").hits] == ["2"]
    with Engine.open(tmp_path / "s", model=WordEmbedder()) as fresh:
        assert [hit.id for hit in fresh.search("one two").hits] == ["2"]
    store.close()


def test_an_older_view_is_answered_of_its_own_time(engine: Engine, tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    keeper = upkeep_module.IndexKeeper(store)
    engine.add([Document("one", id="1")])
    with store.reading() as older:
        assert older.state().number == 1
        engine.add([Document("two", id="2")])
        with store.reading() as newer:
            assert keeper.snapshot(newer).last_id == 2
        assert keeper.snapshot(older).last_id == 1
    store.close()


def test_another_engine_sees_a_commit_at_its_next_search(engine: Engine, tmp_path: Path) -> None:
    with Engine.open(tmp_path / "s", read_only=True, model=WordEmbedder()) as reader:
        assert reader.search("fish").hits == ()
        engine.add([Document("a fish", id="1")])
        assert [hit.id for hit in reader.search("fish").hits] == ["1"]
        engine.rebuild()
        engine.add([Document("a bird", id="1"), Document("big fish", id="2")])
        assert [(h.id, h.text) for h in reader.search("fish", k=1).hits] == [("2", "big fish")]
        engine.rebuild()
        engine.delete(["2"])
        assert [(h.id, h.text) for h in reader.search("fish").hits] == [("1", "a bird")]


def test_a_reader_survives_the_removal_of_its_index_file(engine: Engine, tmp_path: Path) -> None:
    engine.add([Document(f"text {i}", id=str(i)) for i in range(300)])
    with Engine.open(tmp_path / "s", model=WordEmbedder()) as reader:
        assert reader.search("text 7", k=1).hits[0].id == "7"
        engine.rebuild()
        engine.delete(["7"])
        engine.rebuild()
        assert reader.search("text 8", k=1).hits[0].id == "8"
        assert len(reader.search("text", k=1000).hits) == 299


def test_an_index_replaced_between_snapshot_and_opening(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.add([Document(f"text {i}", id=str(i)) for i in range(300)])
    reader = Engine.open(tmp_path / "s", model=WordEmbedder())
    plain = upkeep_module.IndexKeeper._fault
    tries: list[str] = []

    def replaced(self: upkeep_module.IndexKeeper, named: object) -> str | None:
        if not tries:
            engine.add(["a newer text"])
            engine.rebuild()
        fault = plain(self, named)  # type: ignore[arg-type]
        tries.append(fault or "sound")
        return fault

    monkeypatch.setattr(upkeep_module.IndexKeeper, "_fault", replaced)
    assert reader.search("a newer text", k=1).hits[0].text == "a newer text"
    assert [fault.rsplit(" ", 1)[-1] for fault in tries] == ["missing", "sound"]
    reader.close()


def test_an_index_of_another_time_is_not_used(engine: Engine, tmp_path: Path) -> None:
    engine.add([Document(f"text {i}", id=str(i)) for i in range(300)])
    old = (tmp_path / "s" / "index" / "index-1.faiss").read_bytes()
    engine.add([Document("text 5 is another now", id="5")])
    engine.rebuild()
    (file,) = (tmp_path / "s" / "index").iterdir()
    file.write_bytes(old)
    with Engine.open(tmp_path / "s", model=WordEmbedder()) as opened:
        assert "checksum differs" in opened.verify().problems[0]
        assert opened.search("another now", k=1).hits[0].id == "5"
        assert opened.verify().problems == ()


def test_a_reader_without_the_right_to_write_answers_all_the_same(
    engine: Engine, tmp_path: Path
) -> None:
    engine.add([Document(f"text {i}", id=str(i)) for i in range(300)])
    for file in (tmp_path / "s" / "index").iterdir():
        file.unlink()
    with Engine.open(tmp_path / "s", read_only=True, model=WordEmbedder()) as reader:
        assert reader.search("text 7", k=1).hits[0].id == "7"
        assert published(tmp_path / "s") == []
        engine.add([Document("text 999", id="new")])
        assert reader.search("text 999", k=1).hits[0].id == "new"


READER = """
import json, sys
from engine import Engine
from tests.words import WordEmbedder
with Engine.open(sys.argv[1], model=WordEmbedder()) as engine:
    print("ready", flush=True)
    counts = []
    for line in sys.stdin:
        hits = engine.search("text", k=100_000).hits
        texts = {hit.text for hit in hits}
        assert len(texts) == len(hits)
        assert all(hit.text.split()[1] == hit.id for hit in hits)
        counts.append(len(hits))
        print(len(hits), flush=True)
"""


def test_processes_read_while_one_writes(engine: Engine, tmp_path: Path) -> None:
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(tmp_path / "s")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in range(2)
    ]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    for step in range(1, 7):
        engine.add([Document(f"text {i}", id=str(i)) for i in range(100 * step - 100, 100 * step)])
        for reader in readers:
            assert reader.stdin is not None
            assert reader.stdout is not None
            reader.stdin.write("search\n")
            reader.stdin.flush()
            assert json.loads(reader.stdout.readline()) == 100 * step
    for reader in readers:
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.close()
        assert reader.wait() == 0
        reader.stdout.close()


def test_threads_share_an_engine(engine: Engine) -> None:
    errors: list[BaseException] = []

    def write(thread: int) -> None:
        try:
            for batch in range(10):
                engine.add(
                    [
                        Document(f"t{thread} b{batch} n{n}", id=f"{thread}-{batch}-{n}")
                        for n in range(10)
                    ]
                )
        except BaseException as error:
            errors.append(error)

    def read() -> None:
        try:
            for _ in range(30):
                hits = engine.search("t1 b1 n1", k=50).hits
                assert len({hit.id for hit in hits}) == len(hits)
                engine.search_many(["t1", "b2"], k=3)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert engine.stats().documents == 400
    assert engine.search("t3 b9 n9", k=1).hits[0].id == "3-9-9"
    assert engine.verify().problems == ()


def test_publish_is_all_or_nothing(tmp_path: Path) -> None:
    target = tmp_path / "file"

    def write(path: Path) -> None:
        path.write_bytes(b"one")

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    publish(target, write)
    with pytest.raises(OSError, match="disk"):
        publish(target, fail)
    assert target.read_bytes() == b"one"
    assert sha256_file(target) == (
        "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def in_child(path: str, queue: multiprocessing.Queue[list[str]]) -> None:
    with Engine.open(path, model=WordEmbedder()) as engine:
        queue.put([hit.id for hit in engine.search("fish").hits])


def test_a_spawned_child_opens_the_store(engine: Engine, tmp_path: Path) -> None:
    engine.add([Document("a fish", id="1")])
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[list[str]] = context.Queue()
    child = context.Process(target=in_child, args=(str(tmp_path / "s"), queue))
    child.start()
    assert queue.get(timeout=60) == ["1"]
    child.join()
    assert child.exitcode == 0
    queue.close()


def test_a_full_disk_loses_nothing(engine: Engine, tmp_path: Path) -> None:
    """In a child that may write no file past 3 MB: one sentence, and what was committed stays."""
    engine.close()
    code = """
import resource, signal, sys
from engine import Engine, EngineError
from tests.words import WordEmbedder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
with Engine.open(sys.argv[1], model=WordEmbedder()) as engine:
    try:
        for start in range(0, 20_000, 200):
            engine.add([f"text {i}" for i in range(start, start + 200)])
    except EngineError as error:
        print(engine.stats().documents, type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    count, kind, sentence = done.stdout.strip().split(" ", 2)
    assert kind == "StorageError"
    assert str(tmp_path / "s") in sentence
    assert "Traceback" not in done.stderr
    with Engine.open(tmp_path / "s", model=WordEmbedder()) as opened:
        assert opened.stats().documents == int(count) > 0
        assert opened.verify().problems == ()
        assert opened.search("text 7", k=1).hits[0].text == "text 7"
        assert opened.add(["text 7", "and more"]).added == 1


def test_a_forked_child_answers(engine: Engine, tmp_path: Path) -> None:
    code = """
import os, sys
from engine import Document, Engine
from tests.words import WordEmbedder
with Engine.open(sys.argv[1], model=WordEmbedder()) as engine:
    engine.add([Document(f"text {i}", id=str(i)) for i in range(300)])
    assert engine.search("text 7", k=1).hits[0].id == "7"
    child = os.fork()
    if child == 0:
        found = engine.search("text 8", k=1).hits[0].id
        many = engine.search_many(["text 8", "text 9"], k=1)[1].hits[0].id
        os._exit(0 if (found, many) == ("8", "9") else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    assert engine.search("text 7", k=1).hits[0].id == "7"
"""
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s")], cwd=ROOT, check=True, timeout=120
    )


def damage(store: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(store / "store.db")) as raw, raw:
        raw.execute(statement, values)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE passages SET vector = zeroblob(2048) WHERE id = 7", "vectors of passages 7 are"),
        ("UPDATE passages SET vector = x'00' WHERE id = 7", "vectors of passages 7 are"),
        (
            "UPDATE passages SET vector = (SELECT vector FROM passages WHERE id = 8) WHERE id = 7",
            "differs from the database in 1 vectors",
        ),
        ("UPDATE passages SET text = 'other' WHERE id = 7", "not those that were embedded"),
        ("DELETE FROM passages WHERE id = 7", "299 passages, and the counter says 300"),
        ("UPDATE generation SET documents = 3", "300 documents, and the counter says 3"),
        ("UPDATE documents SET source_id = 99 WHERE id = 7", "refer to rows that do not exist"),
    ],
)
def test_verify_names_what_is_damaged(
    engine: Engine, tmp_path: Path, statement: str, problem: str
) -> None:
    engine.add([f"text {i}" for i in range(300)])
    assert engine.verify().problems == ()
    damage(tmp_path / "s", statement)
    assert any(problem in found for found in engine.verify().problems)


def test_vectors_of_a_wrong_width_are_an_error_not_an_answer(
    engine: Engine, tmp_path: Path
) -> None:
    engine.add(["one", "two"])
    damage(tmp_path / "s", "UPDATE passages SET vector = x'0011' WHERE id = 2")
    for use in (engine.rebuild, lambda: engine.search("two")):
        with pytest.raises(CorruptionError, match=r"passages \[2\] have a wrong width"):
            use()


def test_compact_drops_what_was_deleted_and_gives_room_back(engine: Engine, tmp_path: Path) -> None:
    engine.add([Document(f"text {i} " + "word " * 40, id=str(i)) for i in range(2000)])
    kept = [str(i) for i in range(0, 2000, 10)]
    engine.delete([str(i) for i in range(2000) if i % 10])
    with Engine.open(tmp_path / "s", model=WordEmbedder(), read_only=True) as reader:
        before, expected = engine.stats(), reader.search("text 70 word", k=300).hits
        freed = engine.compact()
        assert reader.search("text 70 word", k=300).hits == expected
    after = engine.stats()
    assert after.documents == len(kept) == after.indexed
    assert (after.delta, after.dead) == (0, 0)
    sizes = [one.database_bytes + one.index_bytes for one in (before, after)]
    assert sizes[0] - sizes[1] == freed > 0
    assert sizes[1] < sizes[0] / 5
    assert engine.verify().problems == ()
    assert [d.id for d in engine.get(kept)] == kept
    assert engine.add([Document("new", id="new")]).added == 1
    assert engine.search("new", k=1).hits[0].id == "new"


@pytest.mark.parametrize(
    "record",
    [
        "null",
        "5",
        '"rows"',
        "{",
        "",
        "[]",
        '{"rows": 5}',
        '{"file": "index-1.faiss"}',
        '{"rows": {"file": "../store.db", "sha256": "", "stamp": [1]}, "copy": null,'
        ' "bounds": null, "generation": 1, "passages": 3, "longest": 1.0}',
        '{"rows": {"file": "index-1.faiss", "sha256": "", "stamp": null}, "copy": null,'
        ' "bounds": null, "generation": 1, "passages": 3, "longest": 1.0}',
    ],
)
def test_a_record_of_another_form_is_published_anew(
    engine: Engine, tmp_path: Path, record: str
) -> None:
    engine.add(["one dog", "two dogs", "a cat"])
    engine.rebuild()
    with closing(sqlite3.connect(tmp_path / "s" / "store.db")) as raw, raw:
        raw.execute("UPDATE generation SET published = ?", (record,))
    with Engine.open(tmp_path / "s", model=WordEmbedder()) as other:
        assert other.search("cat", k=1).hits[0].text == "a cat"
        assert other.stats().indexed == 0
        assert other.verify().problems == ()
        other.rebuild()
        assert other.stats().indexed == 3


def test_an_unknown_approximate_part_is_left_out(engine: Engine, tmp_path: Path) -> None:
    engine.add(["one dog", "two dogs", "a cat"])
    engine.rebuild()
    with closing(sqlite3.connect(tmp_path / "s" / "store.db")) as raw, raw:
        record = json.loads(raw.execute("SELECT published FROM generation").fetchone()[0])
        record |= {"approximate": {"index": 1, "more": 2}, "later": True}
        raw.execute("UPDATE generation SET published = ?", (json.dumps(record),))
    with Engine.open(tmp_path / "s", model=WordEmbedder()) as other:
        assert other.search("cat", k=1).hits[0].text == "a cat"
        assert other.stats().indexed == 3


def test_verify_sums_up_files_that_look_untouched(engine: Engine, tmp_path: Path) -> None:
    engine.add(["one dog", "two dogs", "a cat"])
    engine.rebuild()
    (path,) = (tmp_path / "s" / "index").iterdir()
    stat, data = path.stat(), path.read_bytes()
    with path.open("r+b") as file:
        file.seek(200)
        file.write(bytes([data[200] ^ 1]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with Engine.open(tmp_path / "s", model=WordEmbedder()) as other:
        (problem,) = other.verify().problems
    assert "is damaged (its checksum differs)" in problem
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    path.rename(path.with_suffix(".old"))
    path.write_bytes(data[:-1] + b"x")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with Engine.open(tmp_path / "s", model=WordEmbedder()) as other:
        assert other.search("cat", k=1).hits[0].text == "a cat", "another file of that look"
