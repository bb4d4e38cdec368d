"""Models behind an HTTP endpoint: a server of this process, whose faults a test chooses."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
from engine import Document, Embedder, Engine
from engine.embedding import endpoint
from engine.embedding.endpoint import HttpEmbedder, key_variable
from engine.errors import (
    InvalidInputError,
    ModelError,
    ModelMismatchError,
    ModelUnavailableError,
)
from engine.models import ModelSource
from tests.words import WordEmbedder

pytest.importorskip("httpx2")

KEY = "sk-secret-123"
WIDTH = 64
Answer = tuple[int, dict[str, str], bytes]


class Server(ThreadingHTTPServer):
    """Answers with word counts, numbered from the last to the first, or with what is queued."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.faults: list[Answer | None] = []
        self.reply: Callable[[dict[str, Any]], Any] = self.embeddings
        self.words = WordEmbedder(WIDTH)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def embeddings(self, given: dict[str, Any]) -> Any:
        rows = self.words.embed_queries(given["input"]).tolist()
        data = [{"index": n, "embedding": row, "object": "x"} for n, row in enumerate(rows)]
        return {"data": data[::-1], "model": given["model"]}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append({"path": self.path, **given})
        self.server.keys.append(self.headers.get("Authorization"))
        status, headers, body = 200, dict[str, str](), b""
        if self.server.faults:
            fault = self.server.faults.pop(0)
            if fault is None:
                return  # the connection is closed without an answer
            status, headers, body = fault
        else:
            reply = self.server.reply(given)
            body = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(endpoint, "_loaded", {})
    with Server() as made:
        monkeypatch.delenv(key_variable(made.url), raising=False)
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def embedder(server: Server, **options: Any) -> HttpEmbedder:
    return HttpEmbedder(server.url, "words-1", **{"dimension": WIDTH, "backoff": 0.0} | options)


def test_vectors_are_those_of_the_server_in_the_order_of_the_texts(server: Server) -> None:
    model = embedder(server, dimension=None)
    assert isinstance(model, Embedder)
    assert (model.dimension, model.name) == (WIDTH, f"openai:words-1@{server.url}")
    assert [one["input"] for one in server.asked] == [["attendex"]]
    texts = ["red apple", "blue sky", "red sky red"]
    for rows in (model.embed_documents(texts), model.embed_queries(texts)):
        np.testing.assert_array_equal(rows, server.words.embed_queries(texts))
        assert rows.dtype == np.float32
    assert server.asked[-1] == {"path": "/v1/embeddings", "model": "words-1", "input": texts}
    assert model.embed_documents([]).shape == (0, WIDTH)
    assert len(server.asked) == 3


def test_requests_hold_so_many_texts_and_characters(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "CHARACTERS", 10)
    texts = ["a", "b", "c", "d" * 8, "e" * 30, "f", "g" * 10]
    rows = embedder(server, batch=2).embed_documents(texts)
    sizes = [[len(text) for text in one["input"]] for one in server.asked]
    assert sizes == [[1, 1], [1, 8], [30], [1], [10]]
    np.testing.assert_array_equal(rows, server.words.embed_queries(texts))


def test_a_store_remembers_its_endpoint(server: Server, tmp_path: Path) -> None:
    name = f"openai:words-1@{server.url}/"
    with Engine.create(tmp_path / "s", model=name) as engine:
        engine.add([Document("red apple", id="a"), Document("blue sky", id="b")])
        held = engine.stats()
        assert (held.model, held.runtime, held.dimension) == (name[:-1], "HTTP", WIDTH)
    before = len(server.asked)
    with Engine.open(tmp_path / "s") as engine:
        assert engine.stats().runtime == "HTTP"
        assert len(server.asked) == before
        assert engine.search("apple", k=1).hits[0].id == "a"
        assert [one["input"] for one in server.asked[before:]] == [["apple"]]
    with pytest.raises(ModelMismatchError, match=r"openai:words-2@"):
        Engine.open(tmp_path / "s", model=f"openai:words-2@{server.url}")
    with Engine.open(tmp_path / "s", offline=True) as engine:
        assert engine.search("apple", mode="lexical").hits[0].id == "a"
        assert engine.search("apple", k=1).hits[0].id == "a"  # it was asked before
        with pytest.raises(ModelUnavailableError, match="this is offline"):
            engine.search("sky")
    elsewhere = f"openai:words-1@{server.url}/moved"
    Engine.open(tmp_path / "s", model=elsewhere).close()
    with Engine.open(tmp_path / "s") as engine:
        assert engine.stats().model == elsewhere
        engine.search("sky")
    assert server.asked[-1]["path"] == "/v1/moved/embeddings"


def test_what_one_server_made_of_a_query_is_not_taken_for_anothers(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may serve a "default", each another."""
    monkeypatch.setenv("ATTENDEX_CACHE", str(tmp_path / "cache"))
    for name, url in (("a", server.url), ("b", f"{server.url}/other")):
        with Engine.create(tmp_path / name, model=f"openai:words-1@{url}") as engine:
            engine.add(["red apple"])
    del server.asked[:]
    for name in ("a", "b", "b"):
        with Engine.open(tmp_path / name) as engine:
            engine.search("another fruit", mode="dense")
    paths = [one["path"] for one in server.asked]
    assert paths == ["/v1/embeddings", "/v1/other/embeddings"]


def test_the_command_line(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("red apple\nblue sky\n", encoding="utf-8")
    store = ["--store", str(tmp_path / "s")]
    model = ["--model", f"openai:words-1@{server.url}"]
    asked = ["index", str(tmp_path / "a.txt"), *store, *model]
    assert cli.run([*asked, "--offline"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"attendex: openai:words-1@{server.url} is asked over the network")
    assert said.count("\n") == 1
    assert server.asked == []
    assert cli.run(asked) == 0
    assert cli.run(["query", "apple", "-k", "1", *store]) == 0
    assert '"red apple"' in capsys.readouterr().out
    server.reply = lambda _: {"error": "none"}
    assert cli.run(["query", "clouds", *store]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_key_goes_to_its_host_alone_and_is_never_shown(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert key_variable("https://api.openai.com/v1") == "ATTENDEX_KEY_API_OPENAI_COM"
    assert key_variable("https://api-openai.com/v1") == "ATTENDEX_KEY_API__OPENAI_COM"
    monkeypatch.setenv("ATTENDEX_KEY_API_OPENAI_COM", "another")
    embedder(server).embed_documents(["a"])
    assert server.keys == [None]
    assert key_variable(server.url) == "ATTENDEX_KEY_127_0_0_1"
    monkeypatch.setenv("ATTENDEX_KEY_127_0_0_1", KEY)
    with Engine.create(tmp_path / "s", model=f"openai:m@{server.url}") as engine:
        engine.add(["a"])
        assert KEY not in repr(engine.stats())
    assert set(server.keys[1:]) == {f"Bearer {KEY}"}
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*.db*"))
    server.faults = [(400, {}, json.dumps({"error": {"message": f"no\n{KEY}!"}}).encode())]
    with pytest.raises(ModelError, match=r"answered with status 400 \(no …!\)$"):
        embedder(server).embed_documents(["a"])
    away = HttpEmbedder("http://host.invalid/v1", "m", dimension=2)
    monkeypatch.setenv(key_variable("http://host.invalid/v1"), KEY)
    with pytest.raises(ModelError, match="not sent over plain http") as error:
        away.embed_documents(["a"])
    assert KEY not in str(error.value)
    monkeypatch.setenv("ATTENDEX_KEY_127_0_0_1", "sk\x01")
    with pytest.raises(ModelError, match="holds characters that no key has"):
        embedder(server).embed_documents(["a"])


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_refused(server: Server, status: int) -> None:
    server.faults = [(status, {}, b"")]
    with pytest.raises(ModelError, match=rf"status {status}.* variable ATTENDEX_KEY_127_0_0_1$"):
        embedder(server).embed_documents(["a"])
    assert len(server.asked) == 1


def test_what_is_refused_for_the_moment_is_asked_again(server: Server) -> None:
    broken = None
    server.faults = [(429, {}, b""), (503, {}, b"<html>"), broken, (500, {}, b"")]
    rows = embedder(server).embed_documents(["red"])
    np.testing.assert_array_equal(rows, server.words.embed_queries(["red"]))
    assert len(server.asked) == 5
    server.faults = [(503, {}, b'{"error": "full"}')] * 3
    with pytest.raises(ModelUnavailableError, match=r"3 times, at last with status 503 \(full\)"):
        embedder(server, tries=3).embed_documents(["red"])
    assert server.faults == []
    server.faults = [None, None, None]
    with pytest.raises(ModelUnavailableError, match="cannot be reached"):
        embedder(server, tries=2).embed_documents(["red"])
    assert len(server.faults) == 1


def test_it_waits_as_long_as_it_is_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=20), usegmt=True)
    said = ["7", then, past, "soon"]
    server.faults = [(429, {"Retry-After": value}, b"") for value in said]
    embedder(server, backoff=2.0).embed_documents(["a"])
    waits = [wait for wait in waits if wait != 0.01]
    assert waits[0] == 7.0
    assert 17 < waits[1] <= 20
    assert waits[2] == 0.0
    assert 8.0 <= waits[3] <= 16.0
    server.faults = [(429, {"Retry-After": "3600"}, b"")]
    with pytest.raises(ModelUnavailableError, match="refused once, at last with status 429"):
        embedder(server).embed_documents(["a"])


def test_a_timeout(server: Server) -> None:
    waiting = threading.Event()
    server.reply = lambda given: waiting.wait(5) and None
    with pytest.raises(ModelUnavailableError, match="cannot be reached: timed out|Timeout"):
        embedder(server, timeout=0.05, tries=2).embed_documents(["a"])
    waiting.set()
    assert len(server.asked) == 2


def one(vector: object, index: object = 0) -> dict[str, Any]:
    return {"data": [{"index": index, "embedding": vector}]}


FULL = [1.0] * WIDTH


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"<html>", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"\xff", "is no JSON"),
        ({}, "without embeddings"),
        ([], "without embeddings"),
        ({"data": None}, "without embeddings"),
        ({"data": [{"embedding": FULL}]}, "without embeddings"),
        ({"data": []}, "gave 0 vectors for 1 texts"),
        ({"data": [*one(FULL)["data"], *one(FULL)["data"]]}, "gave 2 vectors for 1 texts"),
        (one(FULL, 1), "or misnumbered them"),
        (one([], 0), "no list of numbers"),
        (one("AAAA"), "no list of numbers"),
        (one([*FULL[1:], "1"]), "no list of numbers"),
        (one([*FULL[1:], None]), "no list of numbers"),
        (one(FULL[1:]), f"of dimension {WIDTH - 1}, and they were of {WIDTH}"),
        (one([*FULL[1:], float("nan")]), "not finite"),
        (one([*FULL[1:], float("inf")]), "not finite"),
        (one([*FULL[1:], 1e39]), "not finite"),
        (one([*FULL[1:], 10**400]), "not finite"),
    ],
)
def test_a_reply_that_is_none(server: Server, reply: object, said: str) -> None:
    server.reply = lambda _: reply
    with pytest.raises(ModelError, match=said) as error:
        embedder(server).embed_documents(["a"])
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"openai:words-1@{server.url} gave")


def test_vectors_of_several_widths(server: Server) -> None:
    server.reply = lambda _: {"data": one([1.0])["data"] + one([1.0, 2.0], 1)["data"]}
    with pytest.raises(ModelError, match="several dimensions"):
        embedder(server).embed_documents(["a", "b"])


def test_a_redirect_is_not_followed(server: Server) -> None:
    server.faults = [(307, {"Location": f"{server.url}/elsewhere"}, b"")]
    with pytest.raises(ModelError, match="answered with status 307$"):
        embedder(server).embed_documents(["a"])
    assert len(server.asked) == 1


def test_nobody_is_there() -> None:
    with Server() as gone:
        url = gone.url
    started = time.perf_counter()
    with pytest.raises(ModelUnavailableError, match=rf"openai:m@{url} cannot be reached: .+"):
        HttpEmbedder(url, "m", backoff=30.0)
    assert time.perf_counter() - started < 30


def test_names(server: Server) -> None:
    assert endpoint.parse("openai:m") == ("m", "https://api.openai.com/v1")
    assert endpoint.parse("openai:@cf/baai/bge@https://h:8/v1/") == (
        "@cf/baai/bge",
        "https://h:8/v1",
    )
    for name in ("openai:", "openai:@https://h/v1", "openai: m@https://h"):
        with pytest.raises(InvalidInputError, match="is no model of an endpoint"):
            endpoint.parse(name)
    for url in (
        "https://",
        "https://me:sk-1@h/v1",
        "https://h/v1?key=sk-1",
        "http://h:x",
        "http://[",
    ):
        with pytest.raises(InvalidInputError, match="an endpoint is a URL like") as error:
            endpoint.parse(f"openai:m@{url}")
        assert "sk-1" not in str(error.value)
    with pytest.raises(InvalidInputError, match="a batch and tries of at least 1"):
        embedder(server, batch=0)
    with pytest.raises(ModelError, match="int8 is for sentence-transformers models"):
        ModelSource(f"openai:m@{server.url}", precision="int8").load()
    assert embedder(server).fingerprint != embedder(server, dimension=2).fingerprint
    assert embedder(server).fingerprint == endpoint.fingerprint("words-1", WIDTH)


def test_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "find_spec", lambda _: None)
    with pytest.raises(ModelUnavailableError, match=r"pip install 'attendex\[http\]'"):
        HttpEmbedder("https://h/v1", "m", dimension=2)
