"""The helper: the very answers of a process of one's own, or none."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import cli
from engine import Document, Engine
from engine.commands.asking import read_line
from engine.embedding.locate import PACKAGE
from engine.errors import FilterError, StorageError
from engine.models import ModelSource
from engine.serving import client, link, protocol, quick
from engine.serving.claim import claimed
from engine.serving.client import Asking, Options
from engine.serving.link import linked
from engine.serving.questions import Explain, Question, Reasons, Search
from engine.serving.server import Daemon
from engine.settings import DEFAULT_MODEL
from tests.words import TokenEmbedder

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ("a dog barks", "a cat sleeps", "money in the bank", "a dog and a cat")
HEAVY = {"torch", "onnxruntime", "faiss", "numpy", "sqlalchemy", "rich"}

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets")


@pytest.fixture(scope="module", autouse=True)
def _meeting_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A runtime directory of our own, for child processes too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        for name in ("ATTENDEX_STORE", "ATTENDEX_DAEMON"):
            patch.delenv(name, raising=False)
        yield


def until(condition: Callable[[], object]) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _patient() -> Iterator[None]:
    """A busy machine is no reason to answer oneself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "PATIENCE_SECONDS", 60.0)
        yield


# A helper within this process, whose embedder counts words.


@pytest.fixture
def store(tmp_path: Path) -> str:
    with Engine.create(tmp_path / "s", model=TokenEmbedder()) as made:
        made.add([Document(text, id=str(n), metadata={"n": n}) for n, text in enumerate(TEXTS)])
        made.rebuild()
    return str(tmp_path / "s")


class Running:
    """A helper in a thread of this process."""

    def __init__(self, store: str, *, idle: float | None = None) -> None:
        self.store, self.why = store, ""
        self._claim = claimed(store)
        self.place = self._claim.__enter__()
        self.engine = Engine.open(self.place.store, model=TokenEmbedder())
        self.daemon = Daemon(
            self.engine,
            self.place,
            Options(),
            idle=idle,
            surroundings=protocol.surroundings(),
            read=read_line,
        )
        ready = threading.Event()

        def run() -> None:
            self.why = self.daemon.run(ready.set)

        self.thread = threading.Thread(target=run)
        self.thread.start()
        ready.wait()

    def close(self) -> None:
        self.daemon.end("the test is over")
        self.thread.join()
        self.engine.close()
        self._claim.__exit__(None, None, None)


@pytest.fixture
def running(store: str) -> Iterator[Running]:
    made = Running(store)
    yield made
    made.close()


def ask(store: str, question: Question[Any], *, alone: bool = False) -> tuple[Any, str]:
    """The answer, and who gave it."""
    by = "the helper"

    def opened() -> Engine:
        nonlocal by
        by = "itself"
        return Engine.open(store, model=TokenEmbedder())

    use = False if alone else None
    with Asking(store, Options(), opened, lambda _: None, use=use) as asking:
        answer = asking.ask(question)
    return answer, by


def ids(store: str, text: str, by: str = "the helper") -> list[str]:
    (result,), found = ask(store, Search((text,), k=3))
    assert found == by
    return [hit.id for hit in result.hits]


@pytest.mark.parametrize(
    "question",
    [
        Search(("dog",), k=2, explain=True),
        Search(("dog", "", "cat"), k=3, where="n > 0", mass=0.5),
        Search((), k=2, combined=True, like=("0",)),
        Search(("dog + cat - bank",), k=2, combined=True, arithmetic=True),
        Explain("a dog", "the dog sleeps"),
        Reasons("2", "dog", k=1),
    ],
    ids=lambda question: type(question).__name__,
)
def test_answers_cross_whole(running: Running, question: Question[Any]) -> None:
    there, by = ask(running.store, question)
    here, alone = ask(running.store, question, alone=True)
    assert (by, alone) == ("the helper", "itself")
    assert repr(there) == repr(here)
    values = (there, here) if isinstance(there, list) else ([there], [here])
    for one, other in zip(*values, strict=True):
        if getattr(one, "error", None) is None and not isinstance(question, Explain):
            sent = {**asdict(one), "context": None, "seconds_by_stage": None}
            assert sent == {**asdict(other), "context": None, "seconds_by_stage": None}


def test_an_error_in_the_question_crosses(running: Running) -> None:
    for alone in (False, True):
        with pytest.raises(FilterError, match="no document has the metadata field 'm'"):
            ask(running.store, Search(("dog",), k=1, where="m = 1"), alone=alone)


def test_every_commit_is_seen(running: Running) -> None:
    assert ids(running.store, "money")[0] == "2"
    with Engine.open(running.store, model=TokenEmbedder()) as other:
        other.add([Document("money money", id="new")])
        assert ids(running.store, "money")[0] == "new"
        other.delete(["new", "2"])
        assert "2" not in ids(running.store, "money")
        other.compact()
        other.drop_tokens()
    explained = Search(("dog",), k=1, explain=True)
    assert repr(ask(running.store, explained)[0]) == repr(
        ask(running.store, explained, alone=True)[0]
    )
    assert running.thread.is_alive()


def test_an_index_that_came_back_is_told_to_who_asked(running: Running) -> None:
    with Engine.open(running.store, model=TokenEmbedder()) as other:
        other.add(["one more"])
        other.rebuild()
    for file in (Path(running.store) / "index").iterdir():
        file.write_bytes(b"")
    said: list[str] = []

    def opened() -> Engine:
        raise AssertionError("the helper should answer")

    with Asking(running.store, Options(), opened, said.append, use=None) as asking:
        assert asking.ask(Search(("dog",), k=1))[0].hits[0].id == "0"
    assert len(said) == 1
    assert "rebuilding it from the database" in said[0]


@pytest.mark.parametrize("change", ["removed", "moved", "replaced", "copied over"])
def test_another_store_ends_it(running: Running, change: str, tmp_path: Path) -> None:
    with Engine.create(tmp_path / "other", model=TokenEmbedder()) as other:
        other.add([Document("a dog barks", id="other")])
    if change == "copied over":
        for ending in ("-wal", "-shm"):
            Path(running.store, f"store.db{ending}").unlink(missing_ok=True)
        shutil.copyfile(tmp_path / "other" / "store.db", Path(running.store, "store.db"))
    else:
        os.rename(running.store, tmp_path / "moved")
    if change == "removed":
        shutil.rmtree(tmp_path / "moved")
    if change in ("replaced", "copied over"):
        if change == "replaced":
            os.rename(tmp_path / "other", running.store)
        assert ids(running.store, "dog", by="itself") == ["other"]
    running.thread.join(30)
    assert "no longer what it was" in running.why
    assert not os.path.exists(running.place.socket)


def test_it_holds_no_lock(running: Running) -> None:
    ids(running.store, "dog")
    with Engine.open(running.store, model=TokenEmbedder()) as other, other._store.lock.held(wait=0):
        assert ids(running.store, "dog")[0] == "0"


def test_many_ask_at_once(running: Running) -> None:
    texts = [f"{a} {b}" for a in ("dog", "cat", "bank", "money") for b in ("sleeps", "barks", "in")]
    alone = [repr(ask(running.store, Search((text,), k=3), alone=True)[0]) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            found = pool.map(lambda text: ask(running.store, Search((text,), k=3)), texts)
            assert [(repr(answer), by) for answer, by in found] == [
                (one, "the helper") for one in alone
            ]


def _line(arguments: list[object]) -> bytes:
    return protocol.encoded({"do": "line", "arguments": arguments, "directory": "/"})


def test_what_is_no_message_is_answered(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(running.place.socket)
        with raw.makefile("rb") as reader:
            for line, fault in (
                (b"\xff\x00\n", "a message is a line of JSON"),
                (b"[" * 100_000 + b"\n", "a message is a line of JSON"),
                (b"[1]\n", "a message is a JSON object"),
                (b"{}\n", "do is one of: hello"),
                (b'{"do": ["search"]}\n', "do is one of: hello"),
                (b'{"do": "search", "with": {"texts": ["a"], "k": 1}}\n', "needs a hello"),
                (b'{"do": "line"}\n', "no command line"),
                (b'{"do": "line", "arguments": 3, "directory": 4}\n', "no command line"),
                (_line(["a", "--json", "-k", 1e999]), "no command line"),
                (_line(["a", "--json", "--store", "a\0b"]), "no command line"),
                (_line(["a", "--json", "--store", "\ud800"]), "no command line"),
            ):
                raw.sendall(line)
                assert fault in json.loads(reader.readline())["fault"]
    found = linked(running.store)
    assert found is not None
    assert found.hello(asdict(Options())) is None
    for given in ({"texts": ["a"]}, {"texts": ["a"], "k": 1, "odd": 2}, 7):
        assert "no question" in found.call({"do": "search", "with": given})["fault"]
    assert (
        "k must be"
        in found.call({"do": "search", "with": {"texts": ["a"], "k": "b"}})["error"]["message"]
    )
    assert "declined" in found.call(
        {"do": "search", "with": {"texts": 5, "k": 1, "combined": True}}
    )
    found.close()
    monkeypatch.setattr(protocol, "MOST_ASKED", 100)
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(running.place.socket)
        raw.sendall(b"x" * 200)
        with raw.makefile("rb") as reader:
            assert "at most 100 bytes" in json.loads(reader.readline())["fault"]
            assert reader.readline() == b""
    monkeypatch.undo()
    assert ids(running.store, "dog")[0] == "0"


def test_who_goes_away_is_not_missed(running: Running) -> None:
    for _ in range(5):
        found = linked(running.store)
        assert found is not None
        assert found.hello(asdict(Options())) is None
        found._socket.sendall(protocol.encoded({"do": "search", "with": {"texts": ["a"], "k": 1}}))
        found.close()
    assert ids(running.store, "dog")[0] == "0"


@pytest.mark.parametrize(
    ("name", "value"), [("model", "other"), ("runtime", "onnx"), ("cross_encoder", "other")]
)
def test_other_options_are_not_answered(running: Running, name: str, value: str) -> None:
    found = linked(running.store)
    assert found is not None
    assert found.hello({**asdict(Options()), name: value}) == "it was started with other options"
    found.close()


def test_another_version_or_environment_is_not_answered(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.serving.link.engine.__version__", "0.0.0")
    running.daemon._surroundings = protocol.surroundings()
    monkeypatch.setattr("engine.serving.server.package", type("other", (), {"__version__": "1"}))
    assert ids(running.store, "dog", by="itself")[0] == "0"
    monkeypatch.undo()
    running.daemon._surroundings = protocol.surroundings()
    assert ids(running.store, "dog")[0] == "0"
    monkeypatch.setenv("HF_HOME", "/elsewhere")
    assert ids(running.store, "dog", by="itself")[0] == "0"
    monkeypatch.undo()
    monkeypatch.setenv("NO_COLOR", "1")
    assert ids(running.store, "dog")[0] == "0"


def test_one_store_by_several_paths(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(running.store)
    monkeypatch.chdir(tmp_path)
    for path in ("s", "./s/", "link", str(tmp_path / "link")):
        assert ids(path, "dog")[0] == "0"


def test_no_other_user_is_served(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert protocol.is_own_peer(ours)
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
        assert not protocol.is_own_peer(ours)
        monkeypatch.undo()
    monkeypatch.setattr(
        protocol, "is_own_peer", lambda _: threading.current_thread() is threading.main_thread()
    )
    assert ids(running.store, "dog", by="itself")[0] == "0"
    monkeypatch.undo()
    os.chmod(running.place.directory, 0o755)
    try:
        assert linked(running.store) is None
        with (
            pytest.raises(StorageError, match="no other user may enter"),
            claimed(running.store + "2"),
        ):
            pass
    finally:
        os.chmod(running.place.directory, 0o700)
    os.chmod(running.place.socket, 0o666)
    assert linked(running.store) is None
    os.chmod(running.place.socket, 0o600)
    assert ids(running.store, "dog")[0] == "0"


def test_one_helper_a_store(running: Running) -> None:
    for _ in range(2):
        with (
            pytest.raises(StorageError, match=rf"runs already \(process {os.getpid()}\)"),
            claimed(running.store),
        ):
            pass
    assert ids(running.store, "dog")[0] == "0"


def test_unused_it_ends(store: str) -> None:
    made = Running(store, idle=0.3)
    ids(store, "dog")
    made.thread.join(30)
    assert made.why == "nothing was asked for 0.3 s"
    assert not os.path.exists(made.place.socket)
    assert ids(store, "dog", by="itself")[0] == "0"
    made.close()


def test_a_socket_that_is_gone_ends_it(running: Running) -> None:
    os.unlink(running.place.socket)
    assert ids(running.store, "dog", by="itself")[0] == "0"
    Path(running.place.socket).touch()
    running.thread.join(30)
    assert running.why.endswith("is gone")
    assert os.path.exists(running.place.socket), "another's file was removed"


def test_a_place_that_cannot_be(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(StorageError, match="too long"), claimed(store) as place:
        made = Engine.open(store, model=TokenEmbedder())
        try:
            Daemon(made, place, Options(), idle=None, surroundings="").run()
        finally:
            made.close()
    assert ids(store, "dog", by="itself")[0] == "0"
    shutil.rmtree(deep / "attendex")
    (deep / "attendex").touch()
    with pytest.raises(StorageError, match="no other user may enter"), claimed(store):
        pass
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with pytest.raises(StorageError, match="No such file or directory"), claimed(store):
        pass


def test_a_helper_that_says_nonsense_is_not_believed(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies: tuple[dict[str, Any], ...] = (
        {"value": [{}], "notes": []},
        {"value": 3},
        {"error": {"kind": "odd"}},
        {},
    )
    for reply in replies:
        monkeypatch.setattr(Daemon, "_answer", lambda *_, _reply=reply, **__: _reply)
        assert ids(running.store, "dog", by="itself")[0] == "0"
    monkeypatch.setattr(Daemon, "_answer", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    assert ids(running.store, "dog", by="itself")[0] == "0"


# The command with the real model, and the helper as a process.


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a store of the real model."""
    pytest.importorskip(PACKAGE)
    path = tmp_path_factory.mktemp("home")
    ModelSource(DEFAULT_MODEL, offline=True).load()  # exported before, so that nobody says so
    with Engine.create(path / "attendex.store", offline=True) as made:
        made.add(
            [
                Document("a thermometer measures temperature", id="t", metadata={"year": 1999}),
                Document(
                    "der Hund bellt – überall", id="d", metadata={"year": 2004, "x": [1, "é"]}
                ),
                Document("money in the bank", id="m"),
                Document("a dog and a cat sleep in the sun", id="c", metadata={"year": 2010}),
            ]
        )
    return path


class Helper:
    """`attendex daemon` in a process of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.child = subprocess.Popen(
            [sys.executable, "-m", "engine.entry", "daemon", *arguments],
            cwd=directory,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.child.stderr is not None
        self.said = self.child.stderr.readline()
        assert "answering for" in self.said, self.said + self.child.stderr.read()

    @property
    def answered(self) -> int:
        found = linked(str(self.directory / "attendex.store"))
        assert found is not None
        with found:
            return int(found.call({"do": "status"})["answered"])

    def wait(self) -> tuple[int, str]:
        """Exit status and last words."""
        assert self.child.stderr is not None
        with self.child.stderr:
            words = self.child.stderr.read()
        return self.child.wait(), words


def environment(**others: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **others}


@pytest.fixture(scope="module")
def helper(home: Path) -> Iterator[Helper]:
    made = Helper(home)
    yield made
    made.child.terminate()
    assert made.wait() == (0, "attendex: ended: it was interrupted\n")
    assert linked(str(home / "attendex.store")) is None


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in the store's directory: status, standard output, standard error."""
    monkeypatch.chdir(home)

    def call(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        status = cli.run(list(arguments))
        return status, *capsys.readouterr()

    return call


ASKED = [
    ["query", "how warm is it?"],
    ["query", "how warm is it?", "-k", "1", "--explain"],
    ["query", "Hund", "--explain", "--table"],
    ["query", "a sleeping pet", "-k", "3", "--table"],
    ["query", "pets", "--where", "year >= 2000 and not x contains 'é'"],
    ["query", "pets", "--where", "year > 3000"],
    ["query", "pets", "--where", "year > 3000", "--table"],
    ["query", "bank", "--mode", "lexical", "--table"],
    ["query", "bank money", "--mode", "dense", "--no-rerank", "--exact"],
    ["query", "bank", "--mass", "0.5", "--passages"],
    ["query", "sleep", "--context", "the cat wants to sleep", "--json"],
    ["query", "sleep", "--context", "nothing of it"],
    ["query", "--like", "t", "--not", "a bank"],
    ["query", "cat - sun + dog", "--arithmetic", "--where", "year > 1"],
    ["query", "heat", "--offline"],
    ["query", "word " * 400, "-k", "1"],
    ["query", "--timings", "heat"],
    ["query", "-", "-k", "1"],
    ["query", "-", "-k", "2", "--table"],
    ["query", "heat", "--html", "pages/page.html", "--overwrite"],
    ["explain", "instrument for heat", "a thermometer measures temperature"],
    ["explain", "instrument for heat", "a thermometer measures temperature", "--table"],
    ["why", "c", "a sleeping pet", "-k", "1"],
    ["why", "t", "money", "--table", "--where", "year > 2000"],
]
REFUSED = [
    ["query", ""],
    ["query", " \t"],
    ["query", "\udcff"],
    ["query", "x", "--where", "a ="],
    ["query", "x", "--where", "yeer = 1"],
    ["query", "x", "--mass", "2"],
    ["query", "x", "--context", ""],
    ["query", "--like", "nobody"],
    ["query", "a - a", "--arithmetic"],
    ["query", "a - ", "--arithmetic"],
    ["why", "nobody", "x"],
    ["explain", "", "x"],
]
OTHERWISE = [
    ["query"],
    ["query", "x", "-k", "0"],
    ["query", "x", "--nonsense"],
    ["query", "x", "--like", "t", "--explain"],
    ["query", "x", "--html", "attendex.store/page.html"],
    ["query", "x", "--runtime", "onnx"],
    ["query", "x", "--model", DEFAULT_MODEL],
    ["query", "x", "--model", "no/such/model"],
    ["query", "x", "--store", "none"],
    ["query", "x", "--store", ""],
]
PATIENT = "import sys; from engine.serving import link; link.PATIENCE_SECONDS = 60.0"
NOT_PLAIN = {"--table", "--timings", "--html", "-"}
STDIN = "heat\n\nanimal \u00e9\n".encode() + b"\xff\n"


def shown(arguments: list[str]) -> str:
    return " ".join(arguments)[:60].replace("\udcff", "?")


def timeless(done: tuple[int, str, str]) -> tuple[int, str, str]:
    return done[0], done[1], re.sub(r"\d+\.\d ms", "# ms", done[2])


@pytest.mark.model
@pytest.mark.parametrize("arguments", ASKED + REFUSED, ids=shown)
def test_the_very_same_output(
    helper: Helper,
    run: Run,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    (home / "pages").mkdir(exist_ok=True)
    page = home / "pages" / "page.html"
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("ATTENDEX_STORE", "../home0/attendex.store")
    before = helper.answered
    there = run(*arguments, stdin=STDIN)
    written = page.read_text() if page.exists() else ""
    assert helper.answered == before + 1
    here = run(arguments[0], "--no-daemon", *arguments[1:], stdin=STDIN)
    assert timeless(there) == timeless(here)
    assert written == (page.read_text() if page.exists() else "")
    assert "internal error" not in there[2]
    assert (there[0] == 0) == (arguments in ASKED and "-" not in arguments)

    told = quick.told(arguments)
    plain = arguments in ASKED and arguments[0] == "query"
    assert (told is not None) == (plain and not NOT_PLAIN & set(arguments))
    if told is not None:
        told.show()
        assert (0, *capsys.readouterr()) == here


@pytest.mark.model
@pytest.mark.parametrize("arguments", OTHERWISE, ids=shown)
def test_what_it_does_not_answer(helper: Helper, run: Run, arguments: list[str]) -> None:
    before = helper.answered
    there = run(*arguments)
    assert quick.told(arguments) is None
    assert there == run(arguments[0], "--no-daemon", *arguments[1:])
    assert helper.answered == before


@pytest.mark.model
def test_the_client_is_light(helper: Helper, home: Path) -> None:
    ending = "; import json; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    for code, never in (
        ("from engine.serving import quick; quick.told(sys.argv[1:]).show()", {*HEAVY, "click"}),
        ("import cli; assert not cli.run(sys.argv[1:])", HEAVY),
    ):
        before = helper.answered
        done = subprocess.run(
            [sys.executable, "-c", f"{PATIENT}; {code}{ending}", "query", "heat", "-k", "1"],
            capture_output=True,
            text=True,
            cwd=home,
            env=environment(),
            check=True,
        )
        hit, loaded = map(json.loads, done.stdout.splitlines())
        assert (hit["id"], set(loaded) & never) == ("t", set())
        assert helper.answered == before + 1


@pytest.mark.model
def test_status_and_stop(home: Path, helper: Helper, run: Run) -> None:
    status, out, _ = run("daemon", "--status")
    found = json.loads(out)
    assert (status, found["process"]) == (0, helper.child.pid)
    assert (found["store"], found["idle_seconds"]) == (str(home / "attendex.store"), 600)
    assert run("daemon", "--status", "--store", "none") == (
        1,
        "",
        "attendex: no daemon of none runs\n",
    )
    assert run("daemon", "--stop", "--store", "none")[0] == 0
    assert run("daemon", "--stop", "--status")[0] == 2
    status, _, err = run("daemon")
    assert (status, f"runs already (process {helper.child.pid})" in err) == (1, True)
    for idle in ("0", "-1", "soon", "5d"):
        status, _, err = run("daemon", "--idle", idle)
        assert (status, "write it as 90s, 10m or 2h" in err) == (2, True)


@pytest.mark.model
def test_a_helper_hung_killed_and_followed(
    home: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(home / "attendex.store", tmp_path / "attendex.store")
    store = str(tmp_path / "attendex.store")
    first = Helper(tmp_path, "--idle", "2h")
    expected = run("query", "heat", "--no-daemon", "--store", store)
    first.child.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(link, "PATIENCE_SECONDS", 0.1)
    assert run("query", "heat", "--store", store) == expected
    status, _, err = run("daemon", "--status", "--store", store)
    assert (status, f"to end it: kill {first.child.pid}" in err) == (1, True)
    first.child.kill()
    first.wait()
    monkeypatch.setattr(link, "PATIENCE_SECONDS", 60.0)
    assert os.path.exists(protocol.place_of(store).socket)
    assert run("query", "heat", "--store", store) == expected
    second = Helper(tmp_path, "--store", store)
    assert run("query", "heat", "--store", store) == expected
    assert second.answered == 1
    assert run("daemon", "--stop", "--store", store)[0] == 0
    assert second.wait() == (0, "attendex: ended: it was told to stop\n")
    assert (
        os.listdir(os.path.dirname(protocol.place_of(store).socket)).count(
            os.path.basename(protocol.place_of(store).socket)
        )
        == 0
    )


@pytest.mark.model
def test_one_is_started_in_the_background(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "attendex.store", tmp_path / "attendex.store")
    (tmp_path / "cli.py").write_text("raise SystemExit('not this one')")  # nor run from here
    store = str(tmp_path / "attendex.store")

    def asked(**others: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-c", f"{PATIENT}; import cli; cli.main()", "query", "heat"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(**others),
            check=True,
        )
        assert done.stderr == ""
        return done.stdout

    alone = asked(ATTENDEX_DAEMON="0")
    assert asked() == alone
    assert linked(store) is None
    assert asked(ATTENDEX_DAEMON="1") == alone
    until(lambda: os.path.exists(protocol.place_of(store).socket))
    assert asked(ATTENDEX_DAEMON="1") == alone
    found = linked(store)
    assert found is not None
    assert found.call({"do": "status"})["answered"] == 1
    process = found.process
    assert process is not None
    assert os.getsid(process) == process
    log = Path(protocol.place_of(store).log)
    assert log.read_text() == f"attendex: answering for {store}\n"
    assert found.call({"do": "stop"}) == {"ok": True}
    found.close()
    until(lambda: "told to stop" in log.read_text())
    client.start(store, Options(), offline=True)
    time.sleep(0.1)
    assert "told to stop" in log.read_text(), "started twice within a minute"
