"""Ready vectors: from a matrix, from documents, from a .npy file beside a table."""

from __future__ import annotations

import csv
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cli
from engine import Document, Engine
from engine.arrays import Float32Array
from engine.errors import DimensionError, InvalidInputError
from engine.ingest import Ingest
from engine.intake import Intake
from engine.settings import IndexSpec, Metric
from engine.text.readers import ReadOptions
from engine.types import SkipReason
from tests.words import WordEmbedder

WIDTH = 8
HUGE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1" * 30 + b", 8)}"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Engine]:
    with Engine.create(tmp_path / "s", model=WordEmbedder(WIDTH)) as made:
        yield made


def matrix(n: int) -> Float32Array:
    return np.random.default_rng(n).standard_normal((n, WIDTH)).astype(np.float32)


def nearest(engine: Engine, row: Float32Array) -> tuple[str, float | None]:
    hit = engine.search_vectors(row[None], k=1)[0].hits[0]
    return hit.id, hit.similarity


def test_a_matrix_with_ids_texts_and_metadata(small: Engine) -> None:
    rows, ids = matrix(20), [f"i{n}" for n in range(20)]
    before = rows.copy()
    texts = [f"text {n}" for n in range(20)]
    report = small.add_vectors(rows, ids=ids, texts=texts, metadata=[{"n": n} for n in range(20)])
    np.testing.assert_array_equal(rows, before)
    assert (report.added, report.embedded, report.failed) == (20, 0, 0)
    for n in (0, 7, 19):
        found, similarity = nearest(small, rows[n])
        assert found == f"i{n}"
        assert similarity == pytest.approx(1.0, abs=1e-6)
    assert [(d.text, d.metadata) for d in small.get(["i7"])] == [("text 7", {"n": 7})]
    assert small.add_vectors(rows, ids=ids, texts=texts).replaced == 20, "their metadata went"
    assert small.add_vectors(rows, ids=ids, texts=texts).unchanged == 20
    assert small.add_vectors(rows + 1, ids=ids, texts=texts).replaced == 20
    assert small.verify().problems == ()


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", ">f4"])
def test_any_real_dtype(small: Engine, dtype: str) -> None:
    rows = np.round(matrix(5) * 8).astype(dtype)
    small.add_vectors(rows, ids=list("abcde"))
    assert [nearest(small, row.astype(np.float32))[0] for row in rows] == list("abcde")
    assert [d.text for d in small.get(["a"])] == [""]


def test_a_list_of_lists_and_a_matrix_that_is_not_contiguous(small: Engine) -> None:
    rows = matrix(6)
    small.add_vectors(rows[:2].tolist(), ids=["a", "b"])
    small.add_vectors(np.asfortranarray(rows)[2:6:2], ids=["c", "d"])
    assert [nearest(small, row)[0] for row in rows[[0, 1, 2, 4]]] == ["a", "b", "c", "d"]


def test_rows_that_cannot_be_compared_are_named_and_the_others_go_in(small: Engine) -> None:
    rows = matrix(5)
    rows[1] = 0
    rows[2, 3] = np.nan
    report = small.add_vectors(rows, ids=["a", "b", "c", "", "e"])
    assert report.added == 2
    assert report.skipped == {SkipReason.VECTOR: 2, SkipReason.INVALID: 1}
    assert [str(refusal) for refusal in report.refusals] == [
        "row 1: the vector of id 'b' is all zeros and has no direction",
        "row 2: the vector of id 'c' holds NaN or infinity",
        "row 3: its id '' is no usable text",
    ]


def test_inner_products_keep_their_lengths(tmp_path: Path) -> None:
    spec = IndexSpec(metric=Metric.IP)
    with Engine.create(tmp_path / "ip", model=WordEmbedder(WIDTH), index=spec) as engine:
        rows = matrix(3)
        rows[1] = 0
        assert engine.add_vectors(rows, ids=["a", "b", "c"]).added == 3
        assert nearest(engine, rows[2])[1] == pytest.approx(float(rows[2] @ rows[2]), rel=1e-6)


def test_lists_and_matrix_must_be_in_step(small: Engine) -> None:
    rows = matrix(3)
    with pytest.raises(InvalidInputError, match="there are 3 vectors and 2 ids; give one for each"):
        small.add_vectors(rows, ids=["a", "b"])
    with pytest.raises(InvalidInputError, match="there are 3 vectors and 1 texts"):
        small.add_vectors(rows, ids=["a", "b", "c"], texts=["one"])
    with pytest.raises(InvalidInputError, match="ids must be a list"):
        small.add_vectors(rows, ids="abc")
    with pytest.raises(DimensionError) as error:
        small.add_vectors(rows[:, :5], ids=["a", "b", "c"])
    assert (error.value.expected, error.value.actual) == (WIDTH, 5)
    for wrong in (rows[0], [["a"]], None, [[1.0], [1.0, 2.0]]):
        with pytest.raises(InvalidInputError, match="the matrix"):
            small.add_vectors(wrong, ids=["a"])
    assert small.stats().documents == 0


def test_an_array_that_is_filled_again_and_again(small: Engine) -> None:
    rows = matrix(5)
    buffer = np.empty(WIDTH, np.float32)

    def documents() -> Iterator[Document]:
        for n, row in enumerate(rows):
            buffer[:] = row
            yield Document(f"text {n}", id=str(n), vector=buffer)

    small.add(documents())
    assert [nearest(small, row)[0] for row in rows] == ["0", "1", "2", "3", "4"]


def test_lists_tensors_and_metadata_that_are_filled_again(small: Engine) -> None:
    rows = matrix(4)
    listed, label = [0.0] * WIDTH, {"n": 0}
    tensor = torch.zeros(WIDTH)

    def documents() -> Iterator[Document]:
        for n, row in enumerate(rows):
            listed[:] = row.tolist()
            tensor[:] = torch.from_numpy(row)
            label["n"] = n
            own: Any = listed if n % 2 else tensor
            yield Document("a text", id=str(n), vector=own, metadata=label)

    assert small.add(documents()).added == 4
    assert [nearest(small, row)[0] for row in rows] == ["0", "1", "2", "3"]
    assert [d.metadata for d in small.get(["0", "3"])] == [{"n": 0}, {"n": 3}]


def test_ids_are_a_list_and_none_is_no_id(small: Engine) -> None:
    rows = matrix(2)
    wrong: Any
    for wrong in ({"a", "b"}, {"a": 1, "b": 2}, (i for i in "ab")):
        with pytest.raises(InvalidInputError, match="ids must be a list"):
            small.add_vectors(rows, ids=wrong)
    wrong = [None, "b"]
    report = small.add_vectors(rows, ids=wrong)
    assert (report.added, report.skipped) == (1, {SkipReason.INVALID: 1})


def test_a_file_that_grows_while_it_is_read(small: Engine, tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", [("a", "one"), ("b", "two")])
    np.save(tmp_path / "v.npy", matrix(2))
    intake = Intake([str(path)], base=tmp_path, vectors=str(tmp_path / "v.npy"))
    with path.open("a") as file:
        file.write("c,three\n")
    report = small.ingest(intake)
    assert (report.added, report.failed) == (2, 1)
    assert "the file grew meanwhile" in str(report.refusals[0])


def test_a_blank_text_with_a_vector_and_no_id_is_named_by_the_vector(small: Engine) -> None:
    rows = matrix(2)
    report = small.add([Document(" ", vector=rows[0]), Document(" ", vector=rows[1])])
    assert report.added == 2
    assert small.add([Document(" ", vector=rows[0])]).unchanged == 1
    assert small.add([Document("a text", vector=rows[0])]).added == 1
    report = small.add([Document("a text", vector=rows[1])])
    assert (report.added, report.replaced) == (0, 1), "a text names itself, whatever its vector"


def table(path: Path, rows: list[tuple[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "text"), *rows])
    return path


def test_a_table_with_a_npy_file_beside_it(small: Engine, tmp_path: Path) -> None:
    rows = matrix(4)
    np.save(tmp_path / "v.npy", rows)
    path = table(tmp_path / "t.csv", [("a", "one"), ("b", ""), ("c", "three"), ("d", "four")])
    report = small.add_files([str(path)], vectors=str(tmp_path / "v.npy"))
    assert (report.added, report.embedded) == (4, 0)
    assert [nearest(small, row)[0] for row in rows] == ["a", "b", "c", "d"]


def test_a_row_that_cannot_be_read_keeps_its_place(small: Engine, tmp_path: Path) -> None:
    rows = matrix(3)
    np.save(tmp_path / "v.npy", rows)
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": "a", "text": "one"}\n{oops\n{"id": "c", "text": "three"}\n')
    report = small.add_files([str(path)], vectors=str(tmp_path / "v.npy"))
    assert (report.added, report.failed) == (2, 1)
    assert [nearest(small, rows[n])[0] for n in (0, 2)] == ["a", "c"]


def test_lines_have_a_vector_each_blank_ones_too(small: Engine, tmp_path: Path) -> None:
    rows = matrix(3)
    np.save(tmp_path / "v.npy", rows)
    (tmp_path / "t.txt").write_text("one\n\nthree\n")
    assert small.add_files([str(tmp_path / "t.txt")], vectors=str(tmp_path / "v.npy")).added == 3
    assert [nearest(small, row)[0] for row in rows] == ["t.txt:1", "t.txt:2", "t.txt:3"]


def test_vectors_out_of_step_with_their_file_are_refused_before_anything(
    small: Engine, tmp_path: Path
) -> None:
    path = table(tmp_path / "t.csv", [("a", "one"), ("b", "two")])
    other = table(tmp_path / "u.csv", [("c", "three")])
    np.save(tmp_path / "three.npy", matrix(3))
    np.savez(tmp_path / "many.npz", matrix(2))
    np.save(tmp_path / "flat.npy", matrix(2)[0])
    np.save(tmp_path / "pickled.npy", np.array([{}, {}], dtype=object))
    np.save(tmp_path / "wide.npy", np.ones((2, WIDTH + 1)))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "three.npy").read_bytes()[:-4])

    def failure(vectors: str, *paths: Path, options: ReadOptions | None = None) -> str:
        with pytest.raises(InvalidInputError) as error:
            given = [str(one) for one in paths or (path,)]
            small.add_files(given, options=options, vectors=str(tmp_path / vectors))
        return str(error.value).replace(f"{tmp_path}/", "")

    assert failure("three.npy") == (
        "t.csv has 2 rows and three.npy 3 vectors: they must be in step, row by row"
    )
    assert failure("many.npz") == (
        "the vectors many.npz cannot be read: it is an archive of arrays; save them as one .npy"
    )
    assert failure("t.csv") == "the vectors t.csv cannot be read: it is no .npy file"
    assert "on two axes" in failure("flat.npy")
    assert failure("no.npy") == "the vectors no.npy cannot be read: No such file or directory"
    for n, head in enumerate((HUGE, b"(" * 5000, b"-" * 9000 + b"1", b"")):
        size = len(head).to_bytes(2, "little")
        (tmp_path / f"h{n}.npy").write_bytes(b"\x93NUMPY\x01\x00" + size + head)
    for name in ("pickled.npy", "cut.npy", *(f"h{n}.npy" for n in range(4))):
        said = f"the vectors {name} cannot be read: it is no whole .npy file of numbers ("
        assert failure(name).startswith(said)
    assert "9" in failure("wide.npy")
    assert "give that file alone" in failure("three.npy", path, other)
    assert "no such file" in failure("three.npy", tmp_path / "gone.csv")
    assert "not both" in failure("three.npy", options=ReadOptions(vector_column="v"))
    assert small.stats().documents == 0


@pytest.mark.model
def test_vectors_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], minilm: object
) -> None:
    path = table(tmp_path / "t.csv", [("a", "one"), ("b", "two")])
    rows = np.eye(384, dtype=np.float32)[:2]
    np.save(tmp_path / "v.npy", rows)
    store = str(tmp_path / "s")
    call = ["index", str(path), "--vectors", str(tmp_path / "v.npy"), "--store", store, "--offline"]
    assert cli.run(call) == 0
    assert '"added": 2' in capsys.readouterr().out
    with Engine.open(store) as engine:
        assert nearest(engine, rows[1]) == ("b", 1.0)
    np.save(tmp_path / "v.npy", rows[:, :7])
    assert cli.run(call) == 2
    assert "7" in capsys.readouterr().err


def test_a_document_with_a_vector_needs_no_text(small: Engine, tmp_path: Path) -> None:
    rows = matrix(5)
    assert small.add([Document(id="x", vector=rows[0])]).added == 1
    (tmp_path / "c.jsonl").write_text(
        json.dumps({"id": "y", "v": rows[1].tolist()})
        + "\n"
        + json.dumps({"id": "z", "text": "a text", "v": rows[2].tolist()})
    )
    options = ReadOptions(vector_column="v")
    assert small.add_files([tmp_path / "c.jsonl"], options=options).added == 2
    (tmp_path / "t.csv").write_text("id,year\nt,1999\n")
    np.save(tmp_path / "t.npy", rows[3:4])
    assert small.add_files([tmp_path / "t.csv"], vectors=tmp_path / "t.npy").added == 1
    (tmp_path / "u.jsonl").write_text('{"id": "u"}\n')
    np.save(tmp_path / "u.npy", rows[4:])
    assert small.add_files([tmp_path / "u.jsonl"], vectors=tmp_path / "u.npy").added == 1
    assert [nearest(small, row)[0] for row in rows] == ["x", "y", "z", "t", "u"]
    assert [d.text for d in small.get(["x", "y", "z", "t", "u"])] == ["", "", "a text", "", ""]
    assert small.get(["t"])[0].metadata == {"year": 1999}


def test_an_export_is_not_indexed_but_imported(small: Engine, tmp_path: Path) -> None:
    small.add(["one"])
    small.export_file(tmp_path / "x.jsonl")
    report = small.add_files([tmp_path / "x.jsonl"])
    assert (report.documents, report.failed) == (0, 1)
    assert "attendex import" in str(report.refusals[0])


def test_the_collector_of_cycles_is_as_it_was(
    small: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    plain = Ingest._prepare

    def watched(self: Ingest, batch: Any) -> Any:
        seen.append(gc.isenabled())
        if len(seen) == 4:
            raise KeyboardInterrupt
        return plain(self, batch)

    monkeypatch.setattr(Ingest, "_prepare", watched)
    small.add_vectors(matrix(3), ids=["a", "b", "c"])
    assert gc.isenabled()
    small.add(["a text to embed", Document(id="d", vector=matrix(1)[0])])
    assert gc.isenabled()
    gc.disable()
    try:
        small.add_vectors(matrix(3), ids=["a", "b", "c"])
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(KeyboardInterrupt):
        small.add_vectors(matrix(3), ids=["a", "b", "c"])
    assert gc.isenabled()
    assert seen == [False, True, False, False]
