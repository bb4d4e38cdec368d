"""Whatever is read, asked and given: an answer or one of the engine's errors, never anything else.

`make fuzz` runs the same with many more examples.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pypdf import PdfWriter

import cli
from engine import Document, Engine, EngineError, IndexSpec
from engine.settings import Metric
from engine.text.terms import match_expression
from tests.words import WordEmbedder

EXAMPLES = int(os.environ.get("FUZZ", "20"))
fuzzed = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine.create(tmp_path_factory.mktemp("fuzz") / "s", model=WordEmbedder()) as engine:
        engine.add(
            [
                Document(f"text number{n} of dogs", id=f"d{n}", metadata={"n": n, "tags": ["a", n]})
                for n in range(20)
            ]
        )
        engine.rebuild()
        yield engine


@contextmanager
def fresh(**options: Any) -> Iterator[tuple[Engine, Path]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Engine.create(folder / "s", model=WordEmbedder(64), **options) as engine:
            yield engine, folder


def _pdf() -> bytes:
    held = io.BytesIO()
    writer = PdfWriter()
    writer.add_blank_page(50, 50)
    writer.add_metadata({"/Title": "a title"})
    writer.write(held)
    return held.getvalue()


def _parquet() -> bytes:
    pa: Any = importlib.import_module("pyarrow")
    pq: Any = importlib.import_module("pyarrow.parquet")
    held = io.BytesIO()
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["a dog", "a cat"], "n": [1, 2]}), held)
    return held.getvalue()


ROWS = [{"id": "a", "text": "a dog", "tags": ["x", None]}, {"id": "b", "text": "ein Bär", "n": 1.5}]
WHOLE = {
    ".txt": "a dog\r\nein Bär\n\n日本語\n".encode(),
    ".md": "# Title\n\nA paragraph.\n".encode("utf-16"),
    ".csv": b'id,text,n\na,"a ""quoted""\ndog",1\nb,cat,2\n',
    ".tsv": b"id\ttext\na\ta dog\nb\ta cat\n",
    ".jsonl": "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode(),
    ".json": json.dumps(ROWS).encode(),
    ".html": b"<!doctype html><meta charset=latin1><title>t</title><p>a <b>dog</b><script>x",
    ".parquet": _parquet(),
    ".pdf": _pdf(),
}
WHOLE |= {f"{suffix}.gz": gzip.compress(content) for suffix, content in WHOLE.items()}


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file with bytes changed, taken out, repeated and put in."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(content)))
        length = draw(st.integers(0, 40))
        match draw(st.sampled_from(["change", "cut", "repeat", "put", "end"])):
            case "change":
                content[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del content[at : at + length]
            case "repeat":
                content[at:at] = content[at : at + length]
            case "put":
                odd = [b"\0", b"\xff\xfe", b'"', b"\r", b"{", b"]", b"\x80", "\u202e".encode()]
                content[at:at] = draw(st.sampled_from(odd) | st.binary(max_size=8))
            case "end":
                del content[at:]
    return bytes(content)


@pytest.mark.parametrize("suffix", list(WHOLE))
@fuzzed
@given(data=st.data())
def test_damaged_files(suffix: str, data: st.DataObject) -> None:
    """All that is read comes back; what is not read is told; the file beside it goes in."""
    content = data.draw(damaged(WHOLE[suffix]))
    with fresh() as (engine, folder):
        (folder / f"a{suffix}").write_bytes(content)
        (folder / "good.txt").write_text("an elephant\n")
        try:
            report = engine.add_files([folder / f"a{suffix}", folder / "good.txt"])
        except EngineError as error:
            assert str(error)
            return
        found = engine.search("elephant", k=1, mode="lexical")
        assert found.hits[0].text == "an elephant"
        assert engine.stats().documents == report.added
        assert engine.verify().problems == ()


@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "texts"])
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
@fuzzed
@given(data=st.data())
def test_damaged_exports(suffix: str, vectors: bool, data: st.DataObject) -> None:
    with fresh() as (engine, folder):
        engine.add([Document("a dog", id="a", metadata={"n": 1}), Document("a cat", id="b")])
        path = folder / f"out{suffix}"
        engine.export_file(path, vectors=vectors)
        path.write_bytes(data.draw(damaged(path.read_bytes())))
        with Engine.create(folder / "again", model=WordEmbedder(64)) as again:
            try:
                again.import_file(path)
            except EngineError as error:
                assert str(error)
            assert again.verify().problems == ()


TOKENS = [
    *("and", "or", "not", "in", "contains", "is", "null", "true", "false", "like", "AND", "Not"),
    *("(", ")", ",", "=", "!=", "<", "<=", ">", ">=", "==", "'", '"', "`", "''", "[", "]", ";"),
    *("n", "tags", "n.m", "`odd name`", "missing", "id", "_", "é", "1", "-1", "1e3", ".5", "1e999"),
    *("'a'", "'it''s'", "9" * 40, "0x1", "--", "/*", "\0", "\n", "🙂", "\ud800", "nan", "inf"),
]


@fuzzed
@given(st.lists(st.sampled_from(TOKENS), max_size=12), st.sampled_from([" ", ""]))
def test_filters_of_any_tokens(small: Engine, tokens: list[str], between: str) -> None:
    try:
        found = small.search("dogs", k=50, where=between.join(tokens))
    except EngineError as error:
        assert len(str(error).splitlines()) <= 3
        return
    assert {hit.id for hit in found.hits} <= {f"d{n}" for n in range(20)}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@fuzzed
@given(st.dictionaries(st.sampled_from(["n", "tags", "x"]) | st.text(), json_values, max_size=3))
def test_filters_of_any_mapping(small: Engine, where: dict[str, Any]) -> None:
    try:
        small.search("dogs", where=where)
    except EngineError as error:
        assert str(error)


documents = st.builds(
    Document,
    text=st.text(max_size=60) | st.text("ab \n\u0301\u200d\ud800\0", max_size=10),
    id=st.none() | st.text(max_size=5),
    metadata=st.dictionaries(st.text(max_size=3), json_values, max_size=3),
)


@fuzzed
@given(st.lists(documents, max_size=8), st.text(max_size=20))
def test_any_documents_and_any_query(given_: list[Document], query: str) -> None:
    """What went in is found by the words it holds; what did not is counted."""
    with fresh() as (engine, _):
        report = engine.add(given_)
        assert report.documents + sum(report.skipped.values()) == len(given_)
        assert engine.verify().problems == ()
        for mode in ("lexical", "dense", "hybrid"):
            try:
                found = engine.search(query, k=50, mode=mode)
            except EngineError as error:
                assert str(error)
                continue
            assert len({hit.id for hit in found.hits}) == len(found.hits) <= report.documents
        for document in given_:
            if document.id and match_expression(document.text) and not _is_odd(document):
                held = engine.get([document.id])[0] if report.documents == len(given_) else None
                if held is not None and held.text == document.text:
                    found = engine.search(document.text, k=50, mode="lexical")
                    assert document.id in {hit.id for hit in found.hits}


def _is_odd(document: Document) -> bool:
    return any("\ud800" <= one <= "\udfff" for one in document.text + (document.id or ""))


numbers = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1e38, 3.4e38, 1e-45, 1e-38])


@pytest.mark.parametrize("metric", list(Metric))
@fuzzed
@given(data=st.data())
def test_any_vectors(metric: Metric, data: st.DataObject) -> None:
    """Exactly the usable rows are found, scores are numbers, and the order is theirs."""
    count = data.draw(st.integers(1, 6))
    rows = np.array(
        [data.draw(st.lists(numbers, min_size=64, max_size=64)) for _ in range(count)], np.float32
    )
    with fresh(index=IndexSpec(metric=metric)) as (engine, _):
        report = engine.add_vectors(rows, ids=[str(n) for n in range(count)])
        finite = np.isfinite(rows).all(axis=1)
        usable = finite & rows.any(axis=1) if metric is Metric.COSINE else finite
        assert report.added == int(usable.sum())
        (found,) = engine.search_vectors(np.ones((1, 64)), k=10)
        assert {hit.id for hit in found.hits} == {str(n) for n in np.flatnonzero(usable)}
        scores = [hit.score for hit in found.hits]
        assert np.isfinite(scores).all()
        assert scores == sorted(scores, reverse=True)
        if found.hits:
            assert sum(hit.weight or 0.0 for hit in found.hits) == pytest.approx(1)


arguments = st.lists(
    st.sampled_from(
        [
            *("query", "explain", "why", "get", "status", "delete", "verify", "-k", "1", "0", "-1"),
            *("--where", "n > 3", "n >", "--mode", "lexical", "dense", "--explain", "--json", "d3"),
            *(
                "--table",
                "--mass",
                "0.5",
                "2",
                "--like",
                "--not",
                "--arithmetic",
                "dogs",
                "--",
                "-",
            ),
            *("--context", "", " ", "\0", "é", "--passages", "--timings", "--no-rerank", "--help"),
        ]
    ),
    max_size=7,
)


@pytest.fixture(scope="module")
def asked(small: Engine) -> Callable[[list[str]], tuple[int, str]]:
    def run(given_: list[str]) -> tuple[int, str]:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setenv("ATTENDEX_STORE", str(small._store.path))
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"dogs\n")))
            status = cli.run(given_)
        return status, err.getvalue()

    return run


@fuzzed
@given(given_=arguments)
def test_any_command_line(asked: Callable[[list[str]], tuple[int, str]], given_: list[str]) -> None:
    status, told = asked(given_)
    assert status in (0, 1, 2, 4), told
    assert "internal error:" not in told
    assert "Traceback" not in told
    if status:
        assert told
