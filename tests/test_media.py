"""Stores where nothing can be written, or not where it should be."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import Document, Engine
from engine.errors import StorageError
from tests.older import make_older
from tests.words import WordEmbedder

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def read_only(engine: Engine, tmp_path: Path) -> Iterator[Path]:
    """A store on a file system that is mounted to be read only, without a log beside it."""
    engine.add(Document(f"text {i}", id=str(i)) for i in range(300))
    engine.close()
    place = tmp_path / "medium"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "attendex-test", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system can be mounted by root alone")
    try:
        shutil.copytree(tmp_path / "s", place / "s")
        assert not list((place / "s").glob("store.db-*"))
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        yield place / "s"
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_store_on_a_medium_that_cannot_be_written(read_only: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in read_only.rglob("*"))
    for given in (True, False):
        with Engine.open(read_only, model=WordEmbedder(), read_only=given) as engine:
            assert [hit.id for hit in engine.search("text 7", k=1).hits] == ["7"]
            assert engine.verify().problems == ()
            engine.backup(tmp_path / f"{given}.db")
            for write in (lambda: engine.add(["x"]), lambda: engine.delete(["7"]), engine.rebuild):
                with pytest.raises(StorageError, match="read only|Read-only|cannot be written"):
                    write()
            assert engine.stats().documents == 300
    assert sorted(path.name for path in read_only.rglob("*")) == before


def test_an_upgrade_whose_backup_cannot_be_written(tmp_path: Path, words: WordEmbedder) -> None:
    with Engine.create(tmp_path / "s", model=words, tokens=False) as engine:
        engine.add([Document("a dog", id="dog")])
    make_older(tmp_path / "s", "0002")
    (tmp_path / "s" / "backups").write_text("no directory")
    with pytest.raises(StorageError, match="its backup .* cannot be written .*nothing was changed"):
        Engine.open(tmp_path / "s", model=words)
    (tmp_path / "s" / "backups").unlink()
    with Engine.open(tmp_path / "s", model=words) as engine:
        assert engine.search("dog", k=1).hits[0].id == "dog"


def test_whoever_has_read_enough(engine: Engine, tmp_path: Path) -> None:
    """`attendex export - | head -1` is no failure."""
    engine.add(Document(f"text {i} " + "x" * 500, id=str(i)) for i in range(2000))
    engine.close()
    child = subprocess.Popen(
        [sys.executable, "cli.py", "export", "-", "--store", str(tmp_path / "s")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    assert "attendex_export" in child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == ""
    child.stderr.close()
    assert child.wait(timeout=60) == 0
