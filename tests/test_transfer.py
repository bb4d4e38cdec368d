"""Export, import, backup: what comes back is what was there, bit for bit."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cli
from engine import Document, Engine
from engine.errors import InvalidInputError, ModelMismatchError, ModelUnavailableError, StorageError
from engine.portable import jsonl
from engine.settings import IndexSpec, Metric
from engine.transfer import ExportFile
from engine.types import EndOfSource, Float32Array, Incoming
from tests.test_crash import content
from tests.words import WordEmbedder

SUFFIXES = ["jsonl", "jsonl.gz", "parquet"]


def embedder() -> WordEmbedder:
    return WordEmbedder(24, max_tokens=6)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Engine]:
    """Short and long texts, own vectors, sources, odd characters, nested metadata, deletions."""
    with Engine.create(tmp_path / "full", model=embedder()) as made:
        long = " ".join(f"word{n} and" for n in range(30))
        own = np.random.default_rng(0).standard_normal((3, 24)).astype(np.float32)
        made.add(
            [
                Document("a dog", id="dog", metadata={"n": 1 << 80, "deep": {"x": [1.5, None]}}),
                Document(long, id="long"),
                Document("gone", id="gone"),
                Document("", id="own", vector=own[0]),
                Document("é 汉字 \x00 ‮ 👩‍👩‍👧 \u2028 \r\n", id="id \n 汉", metadata={"": "\x00"}),
            ]
        )
        made.add_vectors(own[1:], ids=["v1", "v2"], texts=["one", "two"])
        rows = [Incoming(f"/f:{n}", Document(f"line {n}", id=f"f{n}"), "/f") for n in range(3)]
        made.ingest([*rows, EndOfSource("/f")])
        made.delete(["gone"])
        yield made


def moved(engine: Engine, path: Path, store: Path) -> Engine:
    engine.export_file(str(path))
    with ExportFile(str(path)) as exported:
        made = Engine.create_for(store, exported)
        made.import_file(exported)
    return made


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_store_goes_out_and_comes_back(full: Engine, tmp_path: Path, suffix: str) -> None:
    made = moved(full, tmp_path / f"x.{suffix}", tmp_path / "back")
    assert content(tmp_path / "back") == content(tmp_path / "full")
    stats, before = made.stats(), full.stats()
    for name in ("documents", "passages", "chunked", "truncated", "sources", "pending", "metric"):
        assert getattr(stats, name) == getattr(before, name), name
    assert made.verify().problems == ()
    with pytest.raises(ModelUnavailableError, match="own embedder 'words'"):
        made.search("dog")
    made.close()
    with Engine.open(tmp_path / "back", model=embedder()) as again:
        assert again.search("a dog").hits == full.search("a dog").hits
        assert again.add(["a dog"]).embedded == 0, "the store knows the text and its vector"
        assert again.export_file(str(tmp_path / f"y.{suffix}")) == 10


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_texts_alone_are_embedded_anew(full: Engine, tmp_path: Path, suffix: str) -> None:
    assert full.export_file(str(tmp_path / f"x.{suffix}"), vectors=False) == 9
    with Engine.create(tmp_path / "back", model=embedder()) as back:
        report = back.import_file(str(tmp_path / f"x.{suffix}"))
        assert (report.added, report.failed) == (8, 0), "a blank text has nothing to embed"
        for document in full.get(["dog", "long", "id \n 汉", "f1"]):
            assert back.get([document.id]) == [document]
        assert back.stats().pending == ()


def test_importing_again_changes_nothing(full: Engine, tmp_path: Path) -> None:
    full.export_file(str(tmp_path / "x.jsonl"))
    before = content(tmp_path / "full")
    report = full.import_file(str(tmp_path / "x.jsonl"))
    assert (report.unchanged, report.added, report.replaced) == (9, 0, 0)
    assert content(tmp_path / "full") == before


def test_an_export_is_json_that_others_can_read(full: Engine, tmp_path: Path) -> None:
    full.export_file(str(tmp_path / "x.jsonl"), where="n > 0")
    header, row = map(json.loads, (tmp_path / "x.jsonl").read_text().rstrip("\n").split("\n"))
    assert header == {
        "attendex_export": 1,
        "model": "words",
        "custom": True,
        "fingerprint": "words-24-6",
        "dimension": 24,
        "metric": "cosine",
    }
    (passage,) = row.pop("passages")
    assert row == {
        "id": "dog",
        "text": "a dog",
        "metadata": {"n": 1 << 80, "deep": {"x": [1.5, None]}},
        "source": None,
    }
    vector = np.array(passage.pop("vector"), np.float32)
    assert passage == {"start": 0, "end": 5, "tokens": 2, "truncated": False, "own": False}
    words = sorted(zlib.crc32(word) % 24 for word in (b"a", b"dog"))
    assert np.flatnonzero(vector).tolist() == words
    np.testing.assert_array_equal(vector[words], np.float32(0.5**0.5))
    full.export_file(str(tmp_path / "x.parquet"), where="n > 0")
    (same,) = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert json.loads(same["metadata"]) == row["metadata"]
    assert np.array(same["passages"][0]["vector"], np.float32).tolist() == vector.tolist()


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(FLOATS, min_size=1, max_size=8))
@settings(max_examples=300)
def test_decimals_are_the_same_floats_again(numbers: list[float]) -> None:
    row: Float32Array = np.array(numbers, np.float32)
    back = np.array(json.loads(jsonl._decimals(row)), np.float32)
    assert back.tobytes() == row.tobytes()


def test_decimals_that_would_round_twice_are_written_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = np.array([0.1], np.float32)
    assert jsonl._decimals(row) == b"[0.1]"
    monkeypatch.setattr("engine.portable.jsonl.orjson.loads", lambda _: [0.25])
    assert jsonl._decimals(row) == b"[0.10000000149011612]"


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.lists(
    st.builds(
        Document,
        text=TEXTS,
        id=TEXTS,
        metadata=st.dictionaries(TEXTS, JSON, max_size=3),
        vector=st.none() | st.lists(FLOATS, min_size=24, max_size=24).filter(any),
    ),
    max_size=8,
)


@given(DOCUMENTS, st.sampled_from(SUFFIXES))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_index_get_export_import_get_is_the_identity(
    tmp_path_factory: pytest.TempPathFactory, documents: list[Document], suffix: str
) -> None:
    path = tmp_path_factory.mktemp("round")
    with Engine.create(path / "a", model=embedder()) as first:
        first.add(documents)
        before = content(path / "a")
        ids = [row[0] for row in before["rows"]]
        with moved(first, path / f"x.{suffix}", path / "b") as second:
            assert second.get(ids) == first.get(ids)
            given = {document.id: document for document in documents}
            for document in second.get(ids):
                assert document.text == given[document.id].text
                assert json.dumps(document.metadata) == json.dumps(given[document.id].metadata)
        assert content(path / "b") == before


def test_another_model_or_metric_is_refused_and_vectors_can_be_left(
    full: Engine, tmp_path: Path
) -> None:
    path = str(tmp_path / "x.jsonl")
    full.export_file(path)
    with Engine.create(tmp_path / "other", model=WordEmbedder(24)) as other:
        with pytest.raises(ModelMismatchError):
            other.import_file(path)
        assert other.stats().documents == 0
        assert other.import_file(path, vectors=False).added == 8
    spec = IndexSpec(metric=Metric.IP)
    with (
        Engine.create(tmp_path / "ip", model=embedder(), index=spec) as ip,
        pytest.raises(InvalidInputError, match=r"holds vectors for cosine, .* compares by ip"),
    ):
        ip.import_file(path)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().rstrip("\n").split("\n")]


def test_damaged_rows_are_named_and_the_others_come_in(full: Engine, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    full.export_file(str(path))
    header, *rows = rows_of(path)
    rows[0]["passages"][0]["vector"][3] = 7.0
    rows[1]["passages"][0]["end"] = 10_000
    rows[2]["passages"][0]["vector"] = [1.0]
    rows[3]["passages"] = []
    del rows[4]["passages"]
    rows[5]["passages"][0]["own"] = 1
    rows[6]["metadata"] = [1]
    rows[7]["id"] = None
    lines = [json.dumps(row) for row in (header, *rows)]
    lines[9] = lines[9].replace('"end": 6', '"end": NaN')
    path.write_text("\n".join([*lines, "", "{oops", "[]"]))
    with ExportFile(str(path)) as exported, Engine.create_for(tmp_path / "b", exported) as back:
        report = back.import_file(exported)
    assert report.added == 0
    assert sum(report.skipped.values()) == 11
    said = {str(r).removeprefix(f"{tmp_path}/") for r in report.refusals}
    assert (
        "x.jsonl:2: the vector of id 'dog' is not of unit length, as cosine stores keep them"
        in said
    )
    assert "x.jsonl:3: the passages of id 'long' lie outside its text" in said
    assert "x.jsonl:5: id 'id \\n 汉' has no passage" in said
    assert "x.jsonl:6: has no passages, though the header tells of vectors" in said
    assert "x.jsonl:7: has passages that cannot be read" in said


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_was_cut_off(full: Engine, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    full.export_file(str(path))
    path.write_bytes(path.read_bytes()[:-20])
    if suffix == "parquet":
        with pytest.raises(InvalidInputError, match="is no parquet that can be read"):
            ExportFile(str(path))
        return
    with ExportFile(str(path)) as exported, Engine.create_for(tmp_path / "b", exported) as back:
        report = back.import_file(exported)
    assert report.failed == 1
    assert report.added == 8 or suffix == "jsonl.gz"


def test_what_is_no_export(full: Engine, tmp_path: Path) -> None:
    def failure(name: str, text: str | None = None, format_: str | None = None) -> str:
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(InvalidInputError) as error:
            full.import_file(str(tmp_path / name), format=format_)
        return str(error.value).removeprefix(f"{tmp_path}/")

    assert failure("no.jsonl") == "no.jsonl cannot be read (No such file or directory)"
    assert failure("x.csv").startswith("x.csv: exports are files of .jsonl, .ndjson, .parquet")
    assert failure("x.parquet.gz").startswith("x.parquet.gz: parquet is compressed in itself")
    assert "is no parquet" in failure("x.txt", "text", "parquet")
    assert "upgrade attendex" in failure("x.jsonl", '{"attendex_export": 2}')
    assert failure("x.jsonl", '{"attendex_export": 1}') == "x.jsonl has a damaged header"
    (tmp_path / "e.jsonl").write_text("")
    with ExportFile(str(tmp_path / "e.jsonl")) as empty:
        assert empty.header is None
        with pytest.raises(InvalidInputError, match="has no vectors"):
            Engine.create_for(tmp_path / "n", empty)


def test_nothing_is_written_over_unless_asked(full: Engine, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("mine")
    (tmp_path / "d.jsonl").mkdir()
    for write in (full.export_file, full.backup):
        with pytest.raises(InvalidInputError, match="exists; name another file"):
            write(str(path))
        assert path.read_text() == "mine"
        with pytest.raises(InvalidInputError, match="is a directory"):
            write(str(tmp_path / "d.jsonl"))
        with pytest.raises(StorageError, match="cannot be written"):
            write(str(path / "below.jsonl"))
        write(str(path), overwrite=True)
        assert path.read_bytes() != b"mine"
        path.write_text("mine")


def test_a_failed_export_leaves_no_file(full: Engine, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no document has the metadata field"):
        full.export_file(str(tmp_path / "x.jsonl"), where="nonsense = 1")
    assert [p.name for p in tmp_path.iterdir()] == ["full"]


def test_a_backup_taken_while_a_writer_works_is_one_generation(tmp_path: Path) -> None:
    with Engine.create(tmp_path / "s", model=embedder()) as engine:
        engine.add([f"before {n}" for n in range(500)])
        stop = threading.Event()

        def write() -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                engine.add([Document(f"turn {turn} row {n}", id=str(n)) for n in range(40)])

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for n in range(5):
                engine.backup(str(tmp_path / f"b{n}"))
        finally:
            stop.set()
            thread.join()
    for n in range(5):
        store = tmp_path / f"restored{n}"
        store.mkdir()
        (tmp_path / f"b{n}").rename(store / "store.db")
        with Engine.open(store, model=embedder()) as restored:
            assert len(restored.search("before 7", k=600).hits) == restored.stats().documents
            assert restored.verify().problems == ()
        with closing(sqlite3.connect(store / "store.db")) as raw:
            turns = raw.execute(
                "SELECT DISTINCT substr(p.text, 1, instr(p.text, ' row')) FROM documents d"
                " JOIN passages p ON p.document_id = d.id WHERE length(d.key) < 4"
            ).fetchall()
        assert len(turns) <= 1, "all forty rows of a turn, or of none"


@pytest.mark.model
def test_export_and_import_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "n.txt").write_text("a dog barks\na cat sleeps\n")
    one, two = ["--store", str(tmp_path / "one")], ["--store", str(tmp_path / "two")]
    assert cli.run(["index", str(tmp_path / "n.txt"), "--offline", *one]) == 0
    capsys.readouterr()
    path = str(tmp_path / "x.jsonl.gz")
    assert cli.run(["export", path, *one]) == 0
    assert json.loads(capsys.readouterr().out) == {"documents": 2, "file": path}
    assert cli.run(["export", path, *one]) == 2
    assert "exists" in capsys.readouterr().err
    assert cli.run(["import", path, *two]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["added"], report["embedded"]) == (2, 0)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert cli.run(["query", "a sleeping pet", "-k", "1", "--offline", *two]) == 0
    assert '"id": "n.txt:2"' in capsys.readouterr().out
    assert cli.run(["backup", str(tmp_path / "b.db"), *one]) == 0
    capsys.readouterr()

    class Stream:
        buffer = io.BytesIO(gzip.decompress(Path(path).read_bytes()))

    monkeypatch.setattr("sys.stdin", Stream())
    assert cli.run(["import", "-", "--store", str(tmp_path / "three")]) == 0
    assert content(tmp_path / "one") == content(tmp_path / "three")
    capsys.readouterr()
    with pa.OSFile(str(tmp_path / "bad.parquet"), "wb"):
        pass
    assert cli.run(["import", str(tmp_path / "bad.parquet"), *two]) == 2
    assert "no parquet" in capsys.readouterr().err


def test_export_to_standard_output(
    full: Engine, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert cli.run(["export", "-", "--no-vectors", "--store", str(tmp_path / "full")]) == 0
    lines = capfdbinary.readouterr().out.splitlines()
    assert len(lines) == 9
    assert json.loads(lines[0])["id"] == "dog"
