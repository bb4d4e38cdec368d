"""Export, import, backup: what comes back is what was there, bit for bit."""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import signal
import sqlite3
import subprocess
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
from engine.arrays import Float32Array
from engine.errors import InvalidInputError, ModelMismatchError, ModelUnavailableError, StorageError
from engine.portable import jsonl
from engine.settings import IndexSpec, Metric
from engine.transfer import ExportFile
from engine.types import EndOfSource, Incoming, Item, SkipReason
from tests.crash import operations
from tests.words import WordEmbedder

SUFFIXES = ["jsonl", "jsonl.gz", "parquet"]


def content(store: Path) -> list[Any]:
    """What is exported of a store, and how many of its sources are pending."""
    return [*operations.content(store, words=False), operations.pending(store)]


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
                Document("caf\u0065\u0301", id="decomposed"),
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
        assert again.add(["caf\u00e9"]).embedded == 0, "the same text, composed"
        assert again.add(["a dog"]).embedded == 0, "the store knows the text and its vector"
        assert again.export_file(str(tmp_path / f"y.{suffix}")) == 12


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_texts_alone_are_embedded_anew(full: Engine, tmp_path: Path, suffix: str) -> None:
    assert full.export_file(str(tmp_path / f"x.{suffix}"), vectors=False) == 10
    with Engine.create(tmp_path / "back", model=embedder()) as back:
        report = back.import_file(str(tmp_path / f"x.{suffix}"))
        assert (report.added, report.failed) == (9, 0), "a blank text has nothing to embed"
        for document in full.get(["dog", "long", "id \n 汉", "f1"]):
            assert back.get([document.id]) == [document]
        assert back.stats().pending == ()


def test_importing_again_changes_nothing(full: Engine, tmp_path: Path) -> None:
    full.export_file(str(tmp_path / "x.jsonl"))
    before = content(tmp_path / "full")
    report = full.import_file(str(tmp_path / "x.jsonl"))
    assert (report.unchanged, report.added, report.replaced) == (10, 0, 0)
    assert content(tmp_path / "full") == before


def test_an_export_is_json_that_others_can_read(full: Engine, tmp_path: Path) -> None:
    full.export_file(str(tmp_path / "x.jsonl"), where="n > 0")
    header, row, end = map(json.loads, (tmp_path / "x.jsonl").read_text().rstrip("\n").split("\n"))
    assert header == {
        "attendex_export": 1,
        "model": "words",
        "custom": True,
        "fingerprint": "words-24-6",
        "dimension": 24,
        "metric": "cosine",
        "pending": [],
    }
    assert end == {"attendex_end": 1}
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
        ids = operations.engine_ids(path / "a")
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
        with pytest.raises(ModelMismatchError, match="import it without vectors"):
            other.import_file(path)
        assert other.stats().documents == 0
        assert other.import_file(path, vectors=False).added == 9
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
    header, *rows, _ = rows_of(path)
    rows[0]["passages"][0]["vector"][3] = 7.0
    rows[1]["passages"][0]["end"] = 10_000
    rows[2]["passages"][0]["vector"] = [1.0]
    rows[3]["passages"] = []
    del rows[4]["passages"]
    rows[5]["passages"][0]["own"] = 1
    rows[6]["metadata"] = [1]
    rows[7]["id"] = None
    rows[8]["source"] = "\ud800"
    wrong: list[Any] = [
        {"end": float("nan")},
        {"start": -1},
        {"tokens": 1 << 63},
        {"tokens": True},
        {"vector": [10**400] + [0] * 23},
        {"vector": [1e300] + [0] * 23},
        {"vector": ["1"] * 24},
        {"vector": [[1.0]] * 24},
        {"vector": [float("nan")] * 24},
        {"vector": [True] * 24},
        {"vector": [0.2] * 24},
        {"vector": None},
    ]
    last = rows.pop()
    for change in wrong:
        rows.append(last | {"passages": [last["passages"][0] | change]})
    lines = [json.dumps(row) for row in (header, *rows)]
    other = json.dumps(header | {"fingerprint": "another"})
    path.write_text("\n".join(["", *lines, "{oops", "[]", other, json.dumps(last)]))
    with ExportFile(str(path)) as exported, Engine.create_for(tmp_path / "b", exported) as back:
        report = back.import_file(exported)
    assert report.added == 0
    assert sum(report.skipped.values()) == 9 + len(wrong) + 3
    assert report.skipped[SkipReason.VECTOR] == 7
    said = {str(r).split(": ", 1)[1] for r in report.refusals}
    assert "the vector of id 'dog' is not of unit length, as cosine stores keep them" in said
    assert "the passages of id 'long' lie outside its text" in said
    assert "id 'own' has no passage" in said
    assert "has no passages, though the header tells of vectors" in said
    assert "has passages that cannot be read" in said


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
    assert report.added == 10 or suffix == "jsonl.gz"
    (refusal,) = report.refusals
    assert ("is cut off" if suffix == "jsonl" else "cannot be read, nor what follows") in str(
        refusal
    )


def test_an_export_cut_between_two_lines_is_not_whole(full: Engine, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    full.export_file(str(path))
    lines = path.read_text().rstrip("\n").split("\n")
    for kept, said in ((lines[:5], "is cut off"), ([*lines[:5], lines[-1]], "held 10 documents")):
        path.write_text("\n".join(kept))
        report = full.import_file(path)
        assert (report.unchanged, report.failed) == (4, 1)
        assert said in str(report.refusals[0])


def test_a_gzip_damaged_in_its_middle(full: Engine, tmp_path: Path) -> None:
    full.add_vectors(np.eye(24), ids=[f"e{n}" for n in range(24)])
    path = tmp_path / "x.jsonl.gz"
    full.export_file(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    path.write_bytes(data)
    report = full.import_file(path)
    assert report.failed == 1
    assert "cannot be read, nor what follows" in str(report.refusals[0])


def test_rows_without_a_source_need_none(full: Engine, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": "p", "text": "plain", "metadata": {}}\n')
    assert full.import_file(path).added == 1
    table = pa.table({"id": ["q"], "text": ["plain"], "metadata": ["{}"]})
    pq.write_table(table, tmp_path / "x.parquet")
    assert full.import_file(tmp_path / "x.parquet").added == 1
    assert [d.source for d in full.get(["p", "q"])] == [None, None]
    path.write_text("")
    report = full.import_file(path)
    assert (report.documents, report.notes) == (0, (f"{path} holds no documents",))


def test_pending_sources_stay_pending(full: Engine, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        full.ingest(interrupted("/g"))
    assert full.stats().pending == ("/g",)
    for suffix in SUFFIXES:
        path = tmp_path / f"x.{suffix}"
        full.export_file(path)
        with ExportFile(path) as exported, Engine.create_for(tmp_path / suffix, exported) as made:
            made.import_file(exported)
            assert made.stats().pending == ("/g",)
            made.import_file(path)
            assert made.stats().pending == ("/g",), "an import finishes nothing"
    full.ingest([EndOfSource("/g")])
    full.import_file(tmp_path / "x.jsonl")
    assert full.stats().pending == ()


def interrupted(source: str) -> Iterator[Item]:
    for n in range(2000):
        yield Incoming(f"{source}:{n}", Document(f"line {n}", id=f"{source}{n}"), source)
    raise KeyboardInterrupt


def test_texts_that_are_missing_are_told_of(
    full: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full.export_file(tmp_path / "x.jsonl", vectors=False)
    assert "1 documents have a vector and no text" in caplog.text


SOUND = {
    "attendex_export": 1,
    "model": "words",
    "custom": True,
    "fingerprint": "words-24-6",
    "dimension": 24,
    "metric": "cosine",
}


def test_hostile_parquet_spoils_no_other_row(full: Engine, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    full.export_file(path)
    sound = pq.read_table(path)
    rows = sound.to_pylist()
    rows[0]["passages"][0]["vector"] = None
    rows[2]["passages"] = [None]
    rows[3]["passages"] = None
    changed = pa.Table.from_pylist(rows, schema=sound.schema)
    nanoseconds = pa.array([1 << 62] * len(rows), pa.timestamp("ns"))
    pq.write_table(changed.append_column("more", nanoseconds), path)
    with ExportFile(path) as exported, Engine.create_for(tmp_path / "b", exported) as made:
        report = made.import_file(exported)
        assert (report.added, report.failed) == (7, 3)
        kept = [row["id"] for n, row in enumerate(rows) if n not in (0, 2, 3)]
        assert made.get(kept) == full.get(kept)
        assert made.verify().problems == ()
    twice = sound.schema.field("passages").type.value_type
    wide = pa.list_(pa.struct([*list(twice)[:-1], ("vector", pa.list_(pa.float32(), 48))]))
    for row in rows:
        for part in row["passages"] or ():
            if part is not None:
                part["vector"] = [0.5] * 48
    schema = sound.schema.set(4, pa.field("passages", wide)).with_metadata(sound.schema.metadata)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    with ExportFile(path) as exported, Engine.create_for(tmp_path / "c", exported) as made:
        assert made.import_file(exported).added == 0
    bad = pa.array([b"\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"id": bad, "text": ["t"], "metadata": ["{}"]}), path)
    report = full.import_file(path)
    assert (report.documents, report.failed) == (0, 1)


def test_a_passage_may_be_a_part_of_its_text(full: Engine, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    full.export_file(path, where="n > 0")
    header, row, end = rows_of(path)
    row["passages"][0]["end"] = 1
    path.write_text("\n".join(map(json.dumps, (header, row, end))))
    with Engine.create(tmp_path / "b", model=embedder()) as made:
        made.import_file(path)
        assert [document.text for document in made.get(["dog"])] == ["a dog"]
        (hit,) = made.search("a").hits
        assert (hit.text, hit.start, hit.end) == ("a", 0, 1)


def test_a_file_that_appears_meanwhile_is_left_alone(
    full: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x.jsonl"
    plain = jsonl.write

    def slow(*arguments: Any) -> int:
        target.write_text("mine")
        return plain(*arguments)

    monkeypatch.setattr(jsonl, "write", slow)
    with pytest.raises(InvalidInputError, match="exists now"):
        full.export_file(target)
    assert target.read_text() == "mine"
    target.chmod(0o600)
    full.export_file(target, overwrite=True)
    assert target.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_filter_on_an_empty_store_exports_nothing(tmp_path: Path) -> None:
    with Engine.create(tmp_path / "e", model=embedder()) as engine:
        assert engine.export_file(tmp_path / "x.jsonl", where="n > 0") == 0


def test_an_export_through_a_pipe(full: Engine, tmp_path: Path) -> None:
    full.export_file(tmp_path / "x.jsonl")
    os.mkfifo(tmp_path / "pipe")
    data = (tmp_path / "x.jsonl").read_bytes()
    thread = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(data))
    thread.start()
    assert full.import_file(tmp_path / "pipe", format="jsonl").unchanged == 10
    thread.join()


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
    for header in (
        {"attendex_export": 1},
        SOUND | {"attendex_export": "9"},
        SOUND | {"attendex_export": 0.5},
        SOUND | {"dimension": -3},
        SOUND | {"dimension": 0},
        SOUND | {"dimension": 1 << 31},
        SOUND | {"dimension": True},
        SOUND | {"model": "\ud800"},
        SOUND | {"pending": 3},
        SOUND | {"metric": "l2"},
    ):
        assert failure("x.jsonl", json.dumps(header)) == "x.jsonl has a damaged header"
    for held in ("[]", '"x"', "null", "[" * 100_000, "{"):
        schema = pa.schema([("id", pa.string())], metadata={"attendex_export": held})
        pq.write_table(pa.table({"id": ["a"]}, schema=schema), tmp_path / "h.parquet")
        assert failure("h.parquet") == "h.parquet has a damaged header"
    assert "does not begin with JSON" in failure("x.jsonl", "PAR1")
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
        with pytest.raises(InvalidInputError, match="there is no directory"):
            write(str(path / "below.jsonl"))
        write(str(path), overwrite=True)
        assert path.read_bytes() != b"mine"
        path.write_text("mine")


def test_neither_the_store_nor_what_is_no_file_is_written_over(
    full: Engine, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    before = content(tmp_path / "full")
    for target, said in (
        (tmp_path / "pipe.jsonl", "is no file but a device or a pipe"),
        (tmp_path / "full" / "store.db", "lies in the store itself"),
        (tmp_path / "link" / "x.jsonl", "lies in the store itself"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            full.export_file(target, format="jsonl", overwrite=True)
        with pytest.raises(InvalidInputError, match=said):
            full.backup(target, overwrite=True)
    assert content(tmp_path / "full") == before
    (tmp_path / "there.jsonl").write_text("")
    (tmp_path / "to.jsonl").symlink_to(tmp_path / "there.jsonl")
    full.export_file(tmp_path / "to.jsonl", overwrite=True)
    assert (tmp_path / "to.jsonl").is_symlink()
    assert full.import_file(tmp_path / "there.jsonl").unchanged == 10
    for wrong in (None, "", 3, "a\0b"):
        for call in (full.export_file, full.backup, full.import_file):
            with pytest.raises(InvalidInputError, match="named by a text or a Path"):
                call(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="needs a file"):
        full.backup("-")


def test_what_a_killed_export_left_behind_goes_with_the_next(full: Engine, tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    old, new, alive = (
        tmp_path / f".x.jsonl.{pid}.{n}" for n, pid in enumerate((gone.pid, gone.pid, os.getpid()))
    )
    for path in (old, new, alive):
        path.write_text("half")
    for path in (old, alive):
        os.utime(path, (0, 0))
    full.export_file(tmp_path / "x.jsonl")
    assert [path.exists() for path in (old, new, alive)] == [False, True, True]


def test_no_room_for_a_backup_names_the_backup(full: Engine, tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limit[1]))
    try:
        for write, name in ((full.backup, "b.db"), (full.export_file, "x.jsonl")):
            with pytest.raises(StorageError, match=rf"{name} cannot be written"):
                write(tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full"]


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
    assert len(lines) == 10
    assert json.loads(lines[0])["id"] == "dog"
