"""kill -9 at random moments of an ingest: resumed, the store is that of an uninterrupted one."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import Document, Engine
from tests.words import WordEmbedder

ROOT = Path(__file__).resolve().parents[1]
KILLS = 20
COLOURS = ["red", "green", "blue", "pear", "plum"]

CHILD = """
import sys
from engine import Engine, ingest
from tests.words import WordEmbedder
ingest.BATCH = 60
with Engine.create(sys.argv[1], model=WordEmbedder(64, 12), exist_ok=True) as engine:
    print("open", flush=True)
    engine.add_files(sys.argv[2:])
    print("done", flush=True)
"""


def content(store: Path) -> dict[str, Any]:
    """All that a store holds, by document, whatever the row numbers."""
    with closing(sqlite3.connect(store / "store.db")) as raw:
        rows = raw.execute(
            "SELECT d.key, d.metadata, d.content_hash, d.text, s.uri, p.ordinal, p.start, p.end,"
            " p.text, p.content_hash, p.vector FROM documents d JOIN passages p"
            " ON p.document_id = d.id LEFT JOIN sources s ON s.id = d.source_id ORDER BY 1, 6"
        ).fetchall()
        counters = raw.execute("SELECT documents, passages FROM generation").fetchone()
        pending = raw.execute("SELECT count(*) FROM sources WHERE NOT finished").fetchone()
    return {"rows": rows, "counters": counters, "pending": pending}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    chance = random.Random(7)
    paths = [tmp_path / f"f{n}.txt" for n in range(3)]
    for path in paths:
        lines = (" ".join(chance.choices(COLOURS, k=chance.randint(1, 40))) for _ in range(1000))
        path.write_text("\n".join(f"{n} {line}" for n, line in enumerate(lines)))
    return [str(path) for path in paths]


def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, files: list[str]) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", CHILD, str(whole), *files], cwd=ROOT, check=True)
    longest = time.monotonic() - started
    chance = random.Random(11)
    interrupted = 0
    for _ in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(killed), *files],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(chance.uniform(0, longest / 4))
        child.kill()
        finished = "done" in child.stdout.read()
        child.stdout.close()
        child.wait()
        interrupted += not finished
        with Engine.open(killed, model=WordEmbedder(64, 12)) as engine:
            assert engine.verify().problems == ()
            stats = engine.stats()
            if stats.documents:
                (hit,) = engine.search("red green", k=1).hits
                assert engine.get([hit.id])[0].text[hit.start : hit.end] == hit.text
        if finished:
            break
    subprocess.run([sys.executable, "-c", CHILD, str(killed), *files], cwd=ROOT, check=True)
    assert interrupted > 0
    assert content(killed) == content(whole)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: any(c.isalnum() for c in text)
)
documents = st.builds(
    Document,
    text=texts,
    id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    metadata=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), json_values, max_size=3
    ),
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(documents, max_size=6, unique_by=lambda document: document.id))
def test_any_document_comes_back_as_it_was(engine: Engine, batch: list[Document]) -> None:
    report = engine.add(batch)
    assert report.documents == len(batch)
    found = engine.get([document.id for document in batch if document.id is not None])
    assert [(d.id, d.text, d.metadata) for d in found] == [
        (d.id, d.text, d.metadata) for d in batch
    ]
    assert engine.add(batch).unchanged == len(batch)
