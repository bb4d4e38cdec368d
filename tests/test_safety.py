"""What files and names may not do: leave their place, run, take all memory, call out."""

from __future__ import annotations

import ast
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import cli
from engine import Document, Engine
from engine.text import pdf, sources
from engine.types import SkipReason
from tests.words import WordEmbedder

ROOT = Path(__file__).resolve().parents[1]

OFFLINE = """
import sys
reached = []
def closed(event, arguments):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto"):
        reached.append((event, arguments))
        raise OSError("there is no network")
sys.addaudithook(closed)
import os
import cli
os.chdir(sys.argv[1])
for arguments in (
    ["index", "a.txt", "--offline"],
    ["query", "a barking animal", "--explain", "--json"],
    ["query", "animal", "--context", "the animal barks", "--runtime", "sentence-transformers"],
    ["tokens", "build"],
    ["tune", "--kind", "hnsw"],
    ["explain", "a dog", "a cat"],
    ["verify"],
    ["doctor"],
    ["export", "out.parquet"],
):
    assert cli.run(arguments) == 0, arguments
assert reached == [], reached
print("done")
"""


@pytest.mark.model
def test_nothing_uses_the_network(tmp_path: Path) -> None:
    """Every connection, name look-up and socket that is bound would be heard."""
    (tmp_path / "a.txt").write_text("a dog barks\na cat sleeps\n")
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr


def test_what_an_export_names_stays_a_name(tmp_path: Path, words: WordEmbedder) -> None:
    """Ids and sources that look like paths are written nowhere."""
    hostile = ["../../escaped", "/etc/passwd", "a/../../b", "nul\0byte", "C:\\x", "~root"]
    lines = [
        json.dumps({"id": id_, "text": "a dog", "metadata": {}, "source": id_}) for id_ in hostile
    ]
    inside = tmp_path / "deep" / "inside"
    inside.mkdir(parents=True)
    (inside / "in.jsonl").write_text("\n".join(lines))
    before = sorted(tmp_path.rglob("*"))
    with Engine.create(inside / "s", model=words) as engine:
        engine.import_file(inside / "in.jsonl")
        held = {hit.id for hit in engine.search("dog", k=20).hits}
        engine.export_file(inside / "out.jsonl")
    assert {"../../escaped", "/etc/passwd", "a/../../b"} <= held
    made = [path for path in sorted(tmp_path.rglob("*")) if path not in before]
    assert all(path.is_relative_to(inside) for path in made)


def test_index_files_are_named_within_the_store(tmp_path: Path, words: WordEmbedder) -> None:
    """A record that names a file elsewhere is no record: the index is made anew."""
    from contextlib import closing
    from sqlite3 import connect

    store = tmp_path / "s"
    with Engine.create(store, model=words) as engine:
        engine.add(["a dog", "a cat"])
        engine.rebuild()
    with closing(connect(store / "store.db")) as raw, raw:
        (published,) = raw.execute("SELECT published FROM generation").fetchone()
        moved = published.replace('"file":"', '"file":"../../').replace(
            '"file": "', '"file": "../../'
        )
        assert moved != published
        raw.execute("UPDATE generation SET published = ?", (moved,))
    with Engine.open(store, model=words) as engine:
        assert engine.search("dog", k=1).hits[0].text == "a dog"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]


@pytest.mark.parametrize("suffix", [".md", ".json", ".html", ".md.gz", ".html.gz", ".json.gz"])
def test_what_is_too_large_to_be_read_whole(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(sources, "MOST_READ_WHOLE", 1 << 20)
    large, small = b"[" + b"1," * (1 << 20) + b"1]", b'["a dog"]'
    for name, content in (("large", large), ("small", small)):
        packed = gzip.compress(content) if suffix.endswith(".gz") else content
        (tmp_path / f"{name}{suffix}").write_bytes(packed)
    report = engine.add_files([tmp_path / f"large{suffix}", tmp_path / f"small{suffix}"])
    assert report.added == 1
    (refusal,) = report.refusals
    assert refusal.reason is SkipReason.UNREADABLE
    assert f"large{suffix}" in refusal.where
    assert "more than 1 Mi; split it" in refusal.detail


def _pdf(path: Path, pages: int) -> None:
    from pypdf import PdfWriter

    writer = PdfWriter()
    for _ in range(pages):
        writer.add_blank_page(100, 100)
    writer.write(path)


def test_a_pdf_that_takes_too_long_is_left(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pypdf import PageObject

    def slow(self: Any) -> str:
        time.sleep(0.02)
        return "text"

    _pdf(tmp_path / "a.pdf", 5)
    monkeypatch.setattr(PageObject, "extract_text", slow)
    monkeypatch.setattr(pdf, "MOST_SECONDS", 0.03)
    (refusal,) = engine.add_files([tmp_path / "a.pdf"]).refusals
    assert "it took more than 0.03 seconds" in refusal.detail


def test_nothing_that_is_read_is_run() -> None:
    """No evaluation, no unpickling, no shell, in any module of the program."""
    forbidden = {"eval", "exec", "compile", "__import__"}
    for path in [ROOT / "cli.py", *ROOT.glob("engine/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = node.func
                builtin = isinstance(name, ast.Name) and name.id in forbidden
                assert not builtin, (path, ast.unparse(node))
                assert ast.unparse(name) not in ("os.system", "os.popen"), path
                assert ast.unparse(name) != "torch.load", path
                for option in node.keywords:
                    if option.arg in ("allow_pickle", "shell", "trust_remote_code"):
                        assert ast.unparse(option.value) == "False", (path, ast.unparse(node))


def test_terminal_controls_of_names_are_not_passed_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: WordEmbedder
) -> None:
    with Engine.create(tmp_path / "s", model=words) as engine:
        engine.add([Document("a dog \x1b[31m", id="\x1b]0;title\x07", metadata={"a": "\x1b"})])
    for command in (["query", "dog", "--mode", "lexical"], ["get", "\x1b]0;title\x07"]):
        assert cli.run([*command, "--store", str(tmp_path / "s"), "--table"]) == 0
        assert "\x1b" not in capsys.readouterr().out
