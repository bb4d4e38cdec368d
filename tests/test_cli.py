"""The command line with the real model: output, exit status, one sentence for every fault."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cli
from engine import Engine
from engine.models import ModelSource
from engine.settings import DEFAULT_MODEL
from tests.test_storage import HOLD
from tests.words import WordEmbedder

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.model


@pytest.fixture(scope="module", autouse=True)
def _exported() -> None:
    """The model is exported before, so that no command says it does so."""
    ModelSource(DEFAULT_MODEL, offline=True).load()


@dataclass
class Done:
    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Done]


@pytest.fixture
def run(
    minilm: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run a command in an empty directory; nothing but the sentence may reach stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ATTENDEX_STORE", raising=False)

    def call(*arguments: str, stdin: str | bytes = b"") -> Done:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capsys.readouterr()
        status = cli.run(list(arguments))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Done(status, captured.out, captured.err)

    return call


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("a thermometer measures temperature\n\nthe dog barks\nmoney in the bank\n")
    return path


def test_index_query_status_get_delete(run: Run, notes: Path) -> None:
    done = run("index", "notes.txt")
    assert done.status == 0
    (report,) = done.rows
    assert (report["added"], report["skipped"], report["embedded"]) == (3, {"blank": 1}, 3)
    assert done.err == "attendex: skipped 1 for this: blank text\n"

    done = run("query", "instrument for heat", "-k", "2")
    assert (done.status, done.err) == (0, "")
    first, second = done.rows
    assert (first["rank"], first["id"]) == (1, "notes.txt:1")
    assert first["text"] == "a thermometer measures temperature"
    assert first["score"] > second["score"]
    assert first["weight"] + second["weight"] == pytest.approx(1.0)

    (status,) = run("status").rows
    assert (status["documents"], status["dimension"], status["sources"]) == (3, 384, 1)
    assert status["model"] == "sentence-transformers/all-MiniLM-L6-v2"

    (found,) = run("get", "notes.txt:3").rows
    assert (found["text"], found["source"]) == ("the dog barks", notes.as_posix())

    assert run("delete", "notes.txt:3").rows == [{"deleted": 1}]
    done = run("get", "notes.txt:3", "notes.txt:4")
    assert (done.status, [row["id"] for row in done.rows]) == (1, ["notes.txt:4"])
    assert done.err == "attendex: no document with id 'notes.txt:3'\n"
    done = run("delete", "notes.txt:3")
    assert (done.status, done.rows) == (1, [{"deleted": 0}])
    assert run("verify").rows == [{"documents": 2, "passages": 2, "problems": 0}]


def test_tables_for_people(run: Run, notes: Path) -> None:
    done = run("index", "notes.txt", "--table")
    assert done.out.startswith("3 documents in ")
    assert "3 added" in done.out
    out = run("query", "heat", "--table", "-k", "1").out
    assert "score" in out
    assert "100%" in out
    assert "a thermometer measures temperature" in out
    assert "documents" in run("status", "--table").out
    assert "the dog barks" in run("get", "notes.txt:3", "--table").out


def test_terminal_controls_are_not_passed_on(run: Run, tmp_path: Path) -> None:
    (tmp_path / "evil.txt").write_text("red \x1b[31m alarm\n")
    run("index", "evil.txt")
    assert "\x1b" not in run("query", "alarm", "--table").out


def test_indexing_again_embeds_nothing_and_follows_the_file(run: Run, notes: Path) -> None:
    run("index", "notes.txt")
    (report,) = run("index", "notes.txt").rows
    assert (report["unchanged"], report["embedded"], report["removed"]) == (3, 0, 0)
    notes.write_text("a thermometer measures temperature\n")
    (report,) = run("index", "notes.txt").rows
    assert (report["unchanged"], report["removed"]) == (1, 2)
    notes.write_text("")
    (report,) = run("index", "notes.txt").rows
    assert report["removed"] == 1
    assert run("status").rows[0]["documents"] == 0


def test_other_files_are_left_alone(run: Run, notes: Path, tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("a ship at sea\n")
    run("index", "notes.txt", "b.txt")
    run("index", "notes.txt")
    assert run("query", "a boat on the ocean", "-k", "1").rows[0]["id"] == "b.txt:1"


def test_columns_and_filters(run: Run, tmp_path: Path) -> None:
    (tmp_path / "talks.csv").write_text(
        "key,title,abstract,year,lang\n"
        '007,Dogs,"They bark, loudly",1999,en\n'
        "8,Chats,Ils miaulent,2004,fr\n"
    )
    done = run(
        *("index", "talks.csv", "--id-column", "key"),
        *("--text-column", "title", "--text-column", "abstract"),
    )
    assert done.status == 0
    (hit,) = run("query", "pets", "--where", "year >= 2000 and lang = 'fr'").rows
    assert (hit["id"], hit["text"]) == ("8", "Chats: Ils miaulent")
    assert hit["metadata"] == {"year": 2004, "lang": "fr"}
    assert run("get", "007").rows[0]["text"] == "Dogs: They bark, loudly"
    assert run("query", "pets", "--where", "lang = 'de'").rows == []


def test_many_queries_from_stdin(run: Run, notes: Path) -> None:
    run("index", "notes.txt")
    done = run("query", "-", "-k", "1", stdin="heat\n\nanimal\n")
    assert done.status == 1
    assert [(row["query"], row["id"]) for row in done.rows] == [
        ("heat", "notes.txt:1"),
        ("animal", "notes.txt:3"),
    ]
    assert done.err.startswith("attendex: query 2: the query is empty")
    assert run("query", "-", stdin="").out == ""


def test_texts_from_stdin(run: Run) -> None:
    assert run("index", "-", stdin="first text\nsecond text\n").rows[0]["added"] == 2
    assert run("index", "-", stdin="third text\n").rows[0]["added"] == 1
    assert run("index", "-", stdin="third text\n").rows[0]["unchanged"] == 1
    assert run("status").rows[0]["documents"] == 3
    done = run("index", "-", "--format", "jsonl", stdin='{"id": "j", "text": "json"}\n')
    assert done.rows[0]["added"] == 1
    assert run("get", "j").rows[0]["text"] == "json"


@pytest.mark.parametrize("query", ["what's the budget?", "x' OR 1=1 --", "NEAR(", "*", "-k", '"'])
def test_any_text_is_a_query(run: Run, notes: Path, query: str) -> None:
    run("index", "notes.txt")
    done = run("query", "--", query)
    assert (done.status, len(done.rows)) == (0, 3)


def test_a_bad_row_is_named_and_the_rest_goes_on(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(
        b'{"text": "good"}\n{"text": \n{"text": null}\n[1]\n'
        b'{"text": "bad \\ud800"}\n{"text": "fine \xf0\x9f\x91\x8b"}\n'
    )
    done = run("index", "rows.jsonl")
    assert done.status == 1
    assert (done.rows[0]["added"], done.rows[0]["skipped"]) == (
        2,
        {"unreadable": 2, "blank": 1, "invalid": 1},
    )
    assert "skipped rows.jsonl:2: is no JSON" in done.err
    assert "skipped rows.jsonl:4: is a JSON list" in done.err
    assert "skipped rows.jsonl:5: it holds a lone surrogate (U+D800)" in done.err
    assert run("query", "fine").rows[0]["text"] == "fine 👋"


def test_vectors_in_a_column(run: Run, tmp_path: Path) -> None:
    rows = [
        {"id": "good", "text": "a", "v": [1.0] * 384},
        {"id": "nan", "text": "b", "v": [float("nan")] * 384},
        {"id": "zero", "text": "c", "v": [0] * 384},
        {"id": "short", "text": "d", "v": [1, 2]},
    ]
    (tmp_path / "v.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = run("index", "v.jsonl", "--vector-column", "v")
    assert (done.status, done.rows[0]["added"], done.rows[0]["embedded"]) == (1, 1, 0)
    for line in (
        "v.jsonl:2: the vector of id 'nan' holds NaN or infinity",
        "v.jsonl:3: the vector of id 'zero' is all zeros",
        "v.jsonl:4: the vector of id 'short': of dimension 2, and the store's vectors",
    ):
        assert line in done.err


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["query", ""], 2, "the query is empty"),
        (["query", "x", "-k", "0"], 2, "0 is not in the range"),
        (["query", "x", "--where", "yeer = 1"], 2, "no document has the metadata field 'yeer'"),
        (["query", "x", "--where", "a ="], 2, "cannot read the filter 'a =' at its end"),
        (
            ["query", "x", "--store", "none"],
            1,
            "/none; make one with: attendex index PATHS --store /",
        ),
        (["status", "--store", "none"], 1, "there is no store at /"),
        (["delete", "x", "--store", "none"], 1, "there is no store at /"),
        (["query", "x", "--model", "no/such/model"], 1, "no model directory no/such/model"),
        (["query", "x", "--model", "a/b", "--offline"], 1, "not on this machine"),
        (["index", "nothing.txt"], 1, "skipped nothing.txt: no such file or directory"),
        (["index", "notes.txt", "--text-column", "t", "--format", "csv"], 1, "columns: a therm"),
        (["index", "notes.txt", "--metric", "ip"], 2, "compares by cosine"),
        (["index"], 2, "Missing argument"),
        (["nonsense"], 2, "No such command"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_faults_are_one_sentence(
    run: Run, notes: Path, arguments: list[str], status: int, sentence: str
) -> None:
    run("index", "notes.txt")
    done = run(*arguments)
    assert (done.status, sentence in done.err) == (status, True), done.err


def test_no_store_is_made_for_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty.txt").touch()
    assert run("index", "missing.txt").status == 1
    done = run("index", "t.csv")
    assert done.status == 1
    assert "skipped t.csv: has no text column; name one with --text-column (columns: a, b)" in (
        done.err
    )
    assert run("index", "empty.txt").status == 0
    assert not (tmp_path / "attendex.store").exists()


def test_another_model_is_refused_and_a_moved_copy_is_not(
    run: Run, notes: Path, tmp_path: Path
) -> None:
    from engine.embedding.locate import locate

    run("index", "notes.txt")
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", locate(DEFAULT_MODEL).path, copy], check=True)
    assert run("query", "heat", "--model", str(copy)).rows[0]["id"] == "notes.txt:1"
    pooling = copy / "1_Pooling" / "config.json"
    changed = json.loads(pooling.read_text())
    changed |= {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    pooling.write_text(json.dumps(changed))
    done = run("query", "heat", "--model", str(copy))
    assert done.status == 4
    assert "is another (its weights" in done.err
    assert run("index", "notes.txt", "--model", str(copy)).status == 4


def test_a_locked_store(run: Run, notes: Path, tmp_path: Path, monkeypatch: Any) -> None:
    run("index", "notes.txt")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "attendex.store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    holder.stdout.readline()
    done = run("delete", "notes.txt:1")
    assert done.status == 3
    assert f"process {holder.pid}" in done.err
    assert run("query", "heat").status == 0
    holder.stdin.close()
    holder.wait()
    holder.stdout.close()
    assert run("delete", "notes.txt:1").status == 0


def test_a_newer_store(run: Run, notes: Path, tmp_path: Path) -> None:
    run("index", "notes.txt")
    with closing(sqlite3.connect(tmp_path / "attendex.store" / "store.db")) as raw, raw:
        raw.execute("UPDATE alembic_version SET version_num = '0999'")
    done = run("query", "x")
    assert (done.status, "upgrade attendex" in done.err) == (1, True)


def test_a_lost_or_damaged_index_comes_back(run: Run, notes: Path, tmp_path: Path) -> None:
    run("index", "notes.txt")
    run("rebuild")
    before = run("query", "heat").out
    (file,) = (tmp_path / "attendex.store" / "index").iterdir()
    for spoil in (
        lambda: file.unlink(),
        lambda: file.write_bytes(b""),
        lambda: file.write_bytes(file.read_bytes()[:-7]),
        lambda: file.write_bytes(file.read_bytes()[:200] + b"\1" + file.read_bytes()[201:]),
    ):
        spoil()
        assert run("verify").status == 1
        done = run("query", "heat")
        assert (done.status, done.out) == (0, before)
        assert run("verify").status == 0


def test_an_internal_error_is_one_line(
    run: Run, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Engine, "stats", fail)
    run("index", "notes.txt")
    done = run("status")
    assert done.status == 1
    assert done.err.count("\n") == 1
    assert "internal error: ZeroDivisionError: oops" in done.err


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def test_both_names_are_the_same_program(tmp_path: Path) -> None:
    Engine.create(tmp_path / "s", model=WordEmbedder()).close()
    script = [sys.executable, str(ROOT / "cli.py")]
    installed = [str(Path(sys.executable).with_name("attendex"))]
    for program in (script, installed):
        if not Path(program[-1]).exists():
            pytest.skip("attendex is not installed here")
        done = subprocess.run(
            [*program, "status", "--store", str(tmp_path / "s")],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=True,
        )
        assert json.loads(done.stdout)["documents"] == 0


def test_a_closed_pipe_is_no_error(run: Run, notes: Path, tmp_path: Path) -> None:
    run("index", "notes.txt")
    command = f"{sys.executable} {ROOT / 'cli.py'} get notes.txt:1 notes.txt:3 | true"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stderr == ""


SLOW = """
import sys, time
import cli
from engine.embedding.tokenized import TokenizedEmbedder
from engine import ingest
plain = TokenizedEmbedder.embed_with_words
def slow(self, texts, *, query):
    print("embedding", file=sys.stderr, flush=True)
    time.sleep(0.5)
    return plain(self, texts, query=query)
TokenizedEmbedder.embed_with_words = slow
ingest.BATCH = 5
sys.exit(cli.run(sys.argv[1:]))
"""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_then_resumed(run: Run, tmp_path: Path, stop: signal.Signals) -> None:
    (tmp_path / "many.txt").write_text("".join(f"line number {i}\n" for i in range(40)))
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, "index", "many.txt"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
        env=environment(),
    )
    assert child.stderr is not None
    for _ in range(3):
        while "embedding" not in child.stderr.readline():
            assert child.poll() is None
    time.sleep(0.1)
    child.send_signal(stop)
    rest = child.stderr.read()
    child.stderr.close()
    status = child.wait()
    if stop is signal.SIGINT:
        assert status == 130
        assert "interrupted; what was committed is kept" in rest
        assert "Traceback" not in rest
    assert run("verify").status == 0
    assert run("status").rows[0]["documents"] == 10
    (report,) = run("index", "many.txt").rows
    assert (report["unchanged"], report["embedded"]) == (10, 30)


def test_demo(run: Run) -> None:
    done = run("demo", "--store", "demo.store")
    assert done.status == 0
    answers: dict[str, str] = {}
    query = ""
    for line in done.out.splitlines():
        if line.startswith("$ attendex query"):
            query = line.split('"')[1]
        elif line.startswith('{"query"'):
            answers.setdefault(query, json.loads(line)["text"])
    assert answers["instrument for measuring temperature"].startswith("thermometer")
    assert "a financial institution" in answers["an institution that lends money"]
    assert answers["sloping land beside a river"].startswith("bank: sloping land")
    assert answers["to go on foot"].startswith("walk: ")
    assert run("demo", "--store", "demo.store").status == 0
