"""A model in int8: asked for once, remembered by the store, never mixed with float32."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

import cli
from engine import Engine
from engine.embedding import exports
from engine.embedding.sentence_transformer import SentenceTransformerEmbedder
from engine.errors import (
    InvalidInputError,
    ModelError,
    ModelMismatchError,
    ModelUnavailableError,
)
from engine.models import ModelSource
from engine.settings import DEFAULT_MODEL, Precision
from tests.words import WordEmbedder

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from engine.embedding import export, onnx, quantised  # noqa: E402

TEXTS = ["the bank of the river", "money in the bank", "a dog barks at night", "rivers and lakes"]


@pytest.fixture(scope="module")
def full(minilm: SentenceTransformerEmbedder) -> exports.Export:
    found = exports.find(minilm.fingerprint) or export.make(minilm)
    assert not isinstance(found, str), found
    return found


@pytest.fixture(scope="module")
def in_int8(minilm: SentenceTransformerEmbedder, full: exports.Export) -> onnx.OnnxEmbedder:
    made = quantised.make(minilm.name, minilm.fingerprint, full)
    assert not isinstance(made, str), made
    return onnx.load(minilm.name, Precision.INT8.marked(minilm.fingerprint), made)


def test_products_of_a_matrix_are_those_of_integers(tmp_path: Path) -> None:
    """Against the formula in float64: a scale for each row of x and each column of W."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 8)).astype(np.float32) * [[[1], [50], [1e-3]]]
    x = x.astype(np.float32)
    x[1, 2] = 0
    w = rng.standard_normal((8, 5)).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            helper.make_node("MatMul", ["x", "w"], ["z"]),
        ],
        "one",
        [value("x", TensorProto.FLOAT, ["a", "b", 8])],
        [value("y", TensorProto.FLOAT, ["a", "b", 5]), value("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, str(tmp_path / "full.onnx"))
    assert quantised._write(tmp_path / "full.onnx", tmp_path / "int8.onnx") == 2
    session = onnxruntime.InferenceSession(
        str(tmp_path / "int8.onnx"), providers=["CPUExecutionProvider"]
    )
    y, z = session.run(None, {"x": x})
    most = np.abs(x).max(-1, keepdims=True).astype(np.float64)
    step = np.abs(w).max(0).astype(np.float64) / 63
    rows = np.rint(127 * x / np.where(most > 0, most, 1))
    expected = rows @ np.rint(w / step) * step * most / 127
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6 * most.max())
    np.testing.assert_array_equal(y, z)
    assert (y[1, 2] == 0).all()
    np.testing.assert_allclose(y[0, 2], x[0, 2] @ w, atol=1e-4)


@pytest.mark.model
def test_what_int8_loses_is_measured_and_kept(
    full: exports.Export, in_int8: onnx.OnnxEmbedder
) -> None:
    found = exports.find(in_int8.fingerprint)
    assert found is not None
    assert found.shape == full.shape
    assert found.cosine is not None
    mean, least = found.cosine
    assert 0.99 < mean < 0.9999
    assert 0.97 < least < mean
    other = onnx.OnnxEmbedder(in_int8.name, "float32", full)
    rows, given = other.embed_documents(exports.TEXTS), in_int8.embed_documents(exports.TEXTS)
    cosines = np.einsum("ij,ij->i", rows, given)
    assert (cosines.mean(), cosines.min()) == pytest.approx((mean, least), abs=1e-5)
    assert full.cosine is None


@pytest.mark.model
def test_a_vector_does_not_depend_on_the_texts_beside_it(in_int8: onnx.OnnxEmbedder) -> None:
    together = in_int8.embed_documents(list(exports.TEXTS))
    alone = np.concatenate([in_int8.embed_documents([text]) for text in exports.TEXTS])
    np.testing.assert_allclose(together, alone, atol=2e-3)
    assert np.einsum("ij,ij->i", together, alone).min() > 0.9999


@pytest.mark.model
def test_a_store_keeps_to_its_precision(in_int8: onnx.OnnxEmbedder, tmp_path: Path) -> None:
    with Engine.create(tmp_path / "s", offline=True, precision="int8") as engine:
        engine.add(TEXTS)
        held = engine.stats()
        assert (held.precision, held.fingerprint) == ("int8", in_int8.fingerprint)
        kept = exports.find(in_int8.fingerprint)
        assert kept is not None
        assert held.cosine == kept.cosine is not None
    with Engine.open(tmp_path / "s") as engine:
        again = engine.stats()
        assert (again.precision, again.cosine) == ("int8", held.cosine)
        query = in_int8.embed_queries(["river bank"])[0].astype(np.float64)
        rows = in_int8.embed_documents(TEXTS).astype(np.float64)
        hits = engine.search("river bank", mode="dense", rerank=False).hits
        best = {TEXTS[n]: float(rows[n] @ query) for n in range(len(TEXTS))}
        for hit in hits:
            assert hit.similarity == pytest.approx(best[hit.text], abs=1e-4)
        words = engine.search("river bank", explain=True).hits[0].explanation
        assert words is not None
    for asked in ({"precision": "float32"}, {"precision": Precision.FLOAT32}):
        with pytest.raises(ModelMismatchError, match=r"MiniLM-L6-v2 in int8, and .* in float32"):
            Engine.open(tmp_path / "s", **asked)
    Engine.open(tmp_path / "s", precision="int8", model=DEFAULT_MODEL, offline=True).close()
    with pytest.raises(InvalidInputError, match="give one of them"):
        Engine.open(tmp_path / "s", half=True)
    with pytest.raises(InvalidInputError, match="run by onnxruntime"):
        Engine.open(tmp_path / "s", runtime="sentence-transformers")


@pytest.mark.model
def test_vectors_of_two_precisions_are_not_mixed(
    in_int8: onnx.OnnxEmbedder, tmp_path: Path
) -> None:
    with Engine.create(tmp_path / "s", offline=True) as engine:
        engine.add(TEXTS)
        assert (engine.stats().precision, engine.stats().cosine) == ("float32", None)
    with pytest.raises(ModelMismatchError, match=r"in float32, and .* in int8"):
        Engine.create(tmp_path / "s", exist_ok=True, precision="int8")
    with Engine.create(tmp_path / "t", offline=True, precision="int8") as engine:
        engine.add(TEXTS)
        engine.export_file(tmp_path / "t.jsonl")
    with (
        Engine.open(tmp_path / "s") as engine,
        pytest.raises(ModelMismatchError),
    ):
        engine.import_file(tmp_path / "t.jsonl")


@pytest.mark.model
def test_the_commands(
    in_int8: onnx.OnnxEmbedder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    store = ["--store", str(tmp_path / "s")]
    asked = ["index", str(tmp_path / "a.txt"), *store, "--offline"]
    assert cli.run([*asked, "--precision", "int8"]) == 0
    assert cli.run([*asked]) == 0
    assert cli.run([*asked, "--precision", "float32"]) == 4
    assert "in int8, and the model given" in capsys.readouterr().err
    assert cli.run(["export", str(tmp_path / "e.jsonl"), *store]) == 0
    copy = ["--store", str(tmp_path / "copy"), "--precision"]
    assert cli.run(["import", str(tmp_path / "e.jsonl"), *copy, "float32"]) == 4
    assert not (tmp_path / "copy").exists()
    assert cli.run(["import", str(tmp_path / "e.jsonl"), *copy, "int8"]) == 0
    capsys.readouterr()
    assert cli.run(["status", "--json", "--store", str(tmp_path / "copy")]) == 0
    held = json.loads(capsys.readouterr().out)
    assert (held["precision"], held["fingerprint"]) == ("int8", in_int8.fingerprint)
    assert cli.run(["status", "--table", *store]) == 0
    shown = capsys.readouterr().out
    mean, least = held["cosine"]
    assert f"int8 (cosine to float32 {mean:.4f} on average, {least:.4f} at least)" in shown


@pytest.mark.model
def test_the_copy_is_made_and_told_of_once(
    full: exports.Export,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("ATTENDEX_CACHE", str(tmp_path))
    home = exports.home(full.directory.name)
    home.parent.mkdir(parents=True)
    home.symlink_to(full.directory)
    for _ in range(2):
        ModelSource(DEFAULT_MODEL, offline=True, precision="int8").load()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "in int8, once" in said[0]
    assert "cosine to those in float32 of 0.99" in said[1]


@pytest.mark.model
def test_a_copy_that_loses_too_much_is_refused(
    full: exports.Export,
    minilm: SentenceTransformerEmbedder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ATTENDEX_CACHE", str(tmp_path))
    monkeypatch.setattr(quantised, "LEAST_COSINE", 0.9999)
    made = quantised.make(minilm.name, minilm.fingerprint, full)
    assert isinstance(made, str)
    assert "on average, too little" in made
    assert exports.find(Precision.INT8.marked(minilm.fingerprint)) is None


def test_another_architecture_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTENDEX_CACHE", str(tmp_path))
    (tmp_path / "full").mkdir()
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", [value], [])
    save(helper.make_model(graph), str(tmp_path / "full" / exports.MODEL))
    shape = exports.Shape(1, None, None, None, "", "", 0, False)
    made = quantised.make("static", "f", exports.Export(tmp_path / "full", shape, 0.0))
    assert made == "it has no matrix products with weights"


def test_what_has_no_int8(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="int8 is for sentence-transformers models .* words is"):
        Engine.create(tmp_path / "s", model=WordEmbedder(), precision="int8")
    with pytest.raises(ModelError, match="int8 is for sentence-transformers models .* usem3 is"):
        Engine.create(tmp_path / "s", model="usem3", precision="int8")
    with pytest.raises(InvalidInputError, match="unknown precision 'int4'; choose one of: float32"):
        Engine.create(tmp_path / "s", precision="int4")
    assert not (tmp_path / "s").exists()


@pytest.mark.model
def test_without_its_extra_there_is_no_int8(
    minilm: SentenceTransformerEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "find_spec", lambda _: None)
    with pytest.raises(ModelUnavailableError, match=r"in int8 needs .* 'attendex\[onnx\]'"):
        ModelSource(DEFAULT_MODEL, offline=True, precision="int8").load()
