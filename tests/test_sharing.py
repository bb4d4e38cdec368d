"""Many processes, many threads and their children on one store."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine import Document, Engine
from engine.settings import IndexKind
from engine.vectors import unit_rows

ROOT = Path(__file__).resolve().parents[1]
READERS = 4
COMMITS = 30
ROWS = 20

READER = """
import sys
from engine import Engine
from tests.words import WordEmbedder
path, rows, commits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with Engine.open(path, read_only=True, model=WordEmbedder()) as engine:
    seen, searches = 0, 0
    print("ready", flush=True)
    while seen < commits:
        hits = engine.search("text of", k=100_000, mode="dense", rerank=False).hits
        ids = {hit.id for hit in hits}
        assert len(ids) == len(hits) == rows, "a state between two commits"
        batches = {int(hit.text.split()[-1]) for hit in hits}
        assert len(batches) == 1, "rows of two commits"
        assert all(hit.text == f"text of {hit.id} in {min(batches)}" for hit in hits)
        assert min(batches) >= seen, "an older state after a newer"
        seen, searches = min(batches), searches + 1
    print(searches, flush=True)
"""


def test_readers_see_whole_commits_and_never_wait(engine: Engine, tmp_path: Path) -> None:
    """Every commit changes every row; the index is published meanwhile."""

    def commit(number: int) -> None:
        engine.add(Document(f"text of {i} in {number}", id=str(i)) for i in range(ROWS))

    commit(0)
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(tmp_path / "s"), str(ROWS), str(COMMITS)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in range(READERS)
    ]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    for number in range(1, COMMITS + 1):
        commit(number)
        if number % 6 == 0:
            engine.rebuild()
        if number % 15 == 0:
            engine.compact()
    for reader in readers:
        assert reader.stdout is not None
        assert int(reader.stdout.readline()) > 1
        assert reader.wait(timeout=60) == 0
        reader.stdout.close()
    assert engine.verify().problems == ()


def together(*works: Callable[[], None]) -> None:
    """Run in threads; the first fault of any is raised."""
    faults: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


def test_eight_threads_write_through_one_engine(engine: Engine) -> None:
    """8 threads, 20 batches each, 10 rows each: all there, and found while others write."""

    def write(thread: int) -> Callable[[], None]:
        def work() -> None:
            for batch in range(20):
                ids = [f"{thread}-{batch}-{n}" for n in range(10)]
                engine.add([Document(f"of {id_.replace('-', 'x')}", id=id_) for id_ in ids])
                asked = random.choice(ids)
                (hit,) = engine.search(f"of {asked.replace('-', 'x')}", k=1, rerank=False).hits
                assert hit.text == f"of {hit.id.replace('-', 'x')}"

        return work

    together(*(write(thread) for thread in range(8)))
    assert engine.stats().documents == 1600
    assert engine.verify().problems == ()
    found = engine.get([f"{t}-{b}-{n}" for t in range(8) for b in range(20) for n in range(10)])
    assert all(one.text == f"of {one.id.replace('-', 'x')}" for one in found)


def test_answers_stay_those_of_brute_force_while_the_index_changes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishing, compacting and tuning change no answer of a search that runs meanwhile."""
    monkeypatch.setattr("engine.index.quantised.SMALLEST", 64)
    monkeypatch.setattr("engine.approximation.FEWEST", 64)
    rows = unit_rows(np.random.default_rng(4).standard_normal((600, 512)).astype(np.float32))
    engine.add_vectors(rows, ids=[str(i) for i in range(600)])
    engine.delete([str(i) for i in range(0, 600, 5)])
    living = np.array([i for i in range(600) if i % 5])
    queries = unit_rows(np.random.default_rng(5).standard_normal((16, 512)).astype(np.float32))
    scores = queries.astype(np.float64) @ rows[living].T.astype(np.float64)
    expected = [[str(i) for i in living[np.argsort(-row)[:7]]] for row in scores]
    over = threading.Event()

    def change() -> None:
        try:
            engine.rebuild()
            engine.compact()
            engine.tune(kind=IndexKind.HNSW, recall=0.5)
            engine.rebuild()
            engine.tune(kind=IndexKind.FLAT)
        finally:
            over.set()

    def ask() -> None:
        asked = 0
        while not over.is_set() or asked < 20:
            number = asked % len(queries)
            (result,) = engine.search_vectors(queries[number : number + 1], k=7, exact=True)
            assert [hit.id for hit in result.hits] == expected[number]
            asked += 1

    together(change, ask, ask)
    assert engine.verify().problems == ()


CHILDREN = """
import os, sys, threading
from engine import Document, Engine
from tests.words import WordEmbedder
path, workers = sys.argv[1], 3
with Engine.open(path, model=WordEmbedder()) as engine:
    engine.add([Document(f"text {i}", id=str(i)) for i in range(300)])
    assert engine.search("text 7", k=1).hits[0].id == "7"
    held, go = threading.Event(), threading.Event()
    def hold():
        with engine._store.lock.held(), engine._open_index()._lock:
            held.set()
            go.wait()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    children = []
    for worker in range(workers):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for number in range(worker, 300, 30):
                    assert engine.search(f"text {number}", k=1).hits[0].id == str(number)
                os.write(1, b"answered\\n")
                sys.stdin.readline()
                engine.add([f"of worker {worker}"])
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.write(1, b"forked\\n")
    if sys.argv[2] == "dies":
        os.kill(os.getpid(), 9)
    go.set()
    thread.join()
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    assert engine.stats().documents == 300 + workers
"""


@pytest.mark.parametrize("end", ["lives", "dies"])
def test_workers_forked_of_one_engine(engine: Engine, tmp_path: Path, end: str) -> None:
    """Forked while a thread holds every lock, as a pre-forking server may: they answer at once, and
    write when the lock is free; a parent that dies leaves it."""
    parent = subprocess.Popen(
        [sys.executable, "-c", CHILDREN, str(tmp_path / "s"), end],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    lines = sorted(parent.stdout.readline() for _ in range(4))
    assert lines == ["answered\n"] * 3 + ["forked\n"]
    parent.stdin.write("go\n" * 3)
    parent.stdin.close()
    assert parent.stdout.read() == ""
    parent.stdout.close()
    assert parent.wait(timeout=60) == (0 if end == "lives" else -9)
    assert engine.stats().documents == 303
    assert engine.verify().problems == ()
