"""The model in onnxruntime: the same vectors, and never anything else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine import Document, Engine, SearchResult
from engine.embedding import exports
from engine.embedding.sentence_transformer import SentenceTransformerEmbedder
from engine.errors import InvalidInputError, ModelError
from engine.models import ModelSource
from engine.settings import DEFAULT_MODEL
from tests.conftest import DATA

pytestmark = pytest.mark.model

pytest.importorskip("onnxruntime")
graphs: Any = pytest.importorskip("onnx")

from engine.embedding import export, onnx  # noqa: E402

SENTENCE = "the old bank by the muddy river was sold, 1999; crème brûlée 水 день don't POL-358"
WORDS = SENTENCE.split()
TEXTS = [
    " ".join(WORDS[n % len(WORDS)] for n in range(start, start + count))
    for start, count in enumerate((1, 2, 3, 5, 8, 13, 40, 100, 250, 254, 260, 900))
] + [
    *exports.TEXTS,
    "ไทยไม่มีช่องว่าง",
    "हिन्दी में बैंक",
    "Ελληνικά — τράπεζα",
    "한국어 은행",
    "﷽ \u200d\ufeff a\u0301",
]


@pytest.fixture(scope="module")
def exported(minilm: SentenceTransformerEmbedder) -> exports.Export:
    found = exports.find(minilm.fingerprint) or export.make(minilm)
    assert not isinstance(found, str), found
    return found


@pytest.fixture(scope="module")
def by_onnx(minilm: SentenceTransformerEmbedder, exported: exports.Export) -> onnx.OnnxEmbedder:
    return onnx.load(minilm.name, minilm.fingerprint, exported)


@pytest.mark.parametrize("query", [True, False])
def test_vectors_and_words_are_those_of_the_model(
    minilm: SentenceTransformerEmbedder, by_onnx: onnx.OnnxEmbedder, query: bool
) -> None:
    rows, words = minilm.embed_with_words(TEXTS, query=query)
    others, found = by_onnx.embed_with_words(TEXTS, query=query)
    np.testing.assert_allclose(others, rows, atol=1e-6)
    assert (np.einsum("ij,ij->i", rows, others) > 0.99999).all()
    for one, other in zip(words, found, strict=True):
        np.testing.assert_array_equal(one.spans, other.spans)
        np.testing.assert_allclose(other.vectors, one.vectors, atol=1e-5)
    plain = by_onnx.embed_queries(TEXTS) if query else by_onnx.embed_documents(TEXTS)
    np.testing.assert_allclose(plain, rows, atol=1e-6)
    assert by_onnx.count_tokens(TEXTS) == minilm.count_tokens(TEXTS)
    assert (by_onnx.max_tokens, by_onnx.dimension) == (minilm.max_tokens, minilm.dimension)


def test_an_export_is_found_by_fingerprint_alone(
    minilm: SentenceTransformerEmbedder, exported: exports.Export
) -> None:
    found = exports.find(minilm.fingerprint)
    assert found is not None
    assert (found.shape, found.directory) == (exported.shape, exported.directory)
    assert 0 < found.difference < export.TOLERANCE
    assert exports.find("0" * 64) is None


def test_attention_is_written_out_in_the_graph_alone(
    minilm: SentenceTransformerEmbedder, exported: exports.Export, tmp_path: Path
) -> None:
    """As torch's own function it is traced to a guard against rows of nothing but padding."""
    transformer: Any = minilm.model[0]
    config = transformer.auto_model.config
    assert config._attn_implementation == "sdpa"
    with export._attention_written_out(minilm.model):
        assert config._attn_implementation == "eager"
    assert config._attn_implementation == "sdpa", "as it was"
    with export._attention_written_out(torch.nn.Linear(1, 1)):
        pass
    kinds = [
        node.op_type for node in graphs.load(str(exported.directory / exports.MODEL)).graph.node
    ]
    assert kinds.count("Softmax") == 6
    assert "IsNaN" not in kinds


@pytest.mark.parametrize("damage", ["graph", "tokenizer", "record", "gone", "format"])
def test_a_damaged_export_is_none(
    minilm: SentenceTransformerEmbedder,
    exported: exports.Export,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
) -> None:
    monkeypatch.setenv("ATTENDEX_CACHE", str(tmp_path))
    there = exports.home(minilm.fingerprint)
    shutil.copytree(exported.directory, there)
    assert exports.find(minilm.fingerprint) is not None
    record = there / "export.json"
    if damage == "record":
        record.write_text("{", encoding="utf-8")
    elif damage == "gone":
        (there / exports.TOKENIZER).unlink()
    elif damage == "format":
        record.write_text(json.dumps(json.loads(record.read_text()) | {"format": 0}))
    else:
        path = there / (exports.MODEL if damage == "graph" else exports.TOKENIZER)
        held = bytearray(path.read_bytes())
        held[len(held) // 2] ^= 1
        path.write_bytes(held)
    assert exports.find(minilm.fingerprint) is None


def test_a_graph_that_differs_is_not_trusted(
    minilm: SentenceTransformerEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTENDEX_CACHE", str(tmp_path))
    monkeypatch.setattr(export, "TOLERANCE", 1e-12)
    made = export.make(minilm)
    assert isinstance(made, str)
    assert "differ from the model's by" in made
    assert exports.find(minilm.fingerprint) is None
    assert exports.refusal(minilm.fingerprint) == made
    assert [path.name for path in exports.home(minilm.fingerprint).iterdir()] == ["export.json"]
    found = ModelSource(DEFAULT_MODEL, offline=True).load()
    assert isinstance(found, SentenceTransformerEmbedder)
    with pytest.raises(ModelError, match="cannot be exported"):
        ModelSource(DEFAULT_MODEL, offline=True, runtime="onnx").load()


def test_where_nothing_can_be_kept_the_model_itself_serves(
    minilm: SentenceTransformerEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ATTENDEX_CACHE", str(tmp_path / "file"))
    made = export.make(minilm)
    assert isinstance(made, str)
    assert made.startswith(f"it cannot be kept in {tmp_path / 'file'}")
    found = ModelSource(DEFAULT_MODEL, offline=True).load()
    assert isinstance(found, SentenceTransformerEmbedder)


def test_an_export_made_meanwhile_is_kept(
    minilm: SentenceTransformerEmbedder,
    exported: exports.Export,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ATTENDEX_CACHE", str(tmp_path))
    there = exports.home(minilm.fingerprint)
    abandoned = there.parent / ".abandoned"
    abandoned.mkdir(parents=True)
    os.utime(abandoned, (1, 1))

    def write(_: Path) -> str:
        shutil.copytree(exported.directory, there)
        return "too late"

    found = exports.publish(minilm.fingerprint, write)
    assert isinstance(found, exports.Export)
    assert found.directory == there
    assert [path.name for path in there.parent.iterdir()] == [there.name]


def test_runtimes_answer_alike(exported: exports.Export, tmp_path: Path) -> None:
    texts = ["the bank of the river", "money in the bank", "a dog barks", "rivers and lakes"]
    with Engine.create(tmp_path / "s", offline=True, runtime="onnx") as engine:
        engine.add(texts)
        assert engine.stats().runtime == "onnxruntime on cpu"
        one = engine.search("river bank", explain=True)
    with Engine.open(tmp_path / "s", runtime="sentence-transformers") as engine:
        assert engine.stats().runtime == "sentence-transformers"
        other = engine.search("river bank", explain=True)
    assert [hit.id for hit in one.hits] == [hit.id for hit in other.hits]
    np.testing.assert_allclose(
        [hit.score for hit in one.hits], [hit.score for hit in other.hits], atol=1e-5
    )


@pytest.mark.data
def test_runtimes_rank_alike(exported: exports.Export, tmp_path: Path) -> None:
    """The ten first of sixty of Cranfield's queries among three hundred of its documents.

    Rankings by words are compared over one store: words are kept in int8, where the last digit of
    a state may turn a rounding, and with it two hits whose scores differ by some 1e-5.
    """
    rng = np.random.default_rng(0)
    folder = DATA / "cranfield"
    lines = (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(lines[n]) for n in rng.choice(len(lines), 300, replace=False)]
    documents = [Document(row["text"], id=row["_id"]) for row in rows if row["text"]]
    asked = (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    queries = [json.loads(asked[n])["text"] for n in rng.choice(len(asked), 60, replace=False)]
    with Engine.create(tmp_path / "s", offline=True, runtime="onnx") as engine:
        engine.add(documents)
        assert engine.stats().runtime == exports.NAME
        ranked = engine.search_many(queries)
        dense = engine.search_many(queries, mode="dense", rerank=False)
    with Engine.open(tmp_path / "s", runtime="sentence-transformers") as engine:
        same_top_ten(ranked, engine.search_many(queries))
        assert engine.stats().runtime.startswith("sentence-transformers")
    with Engine.create(
        tmp_path / "t", offline=True, runtime="sentence-transformers", tokens=False
    ) as engine:
        engine.add(documents)
        same_top_ten(dense, engine.search_many(queries, mode="dense", rerank=False))


def same_top_ten(one: list[SearchResult], other: list[SearchResult]) -> None:
    assert len(one) == len(other) == 60
    for mine, theirs in zip(one, other, strict=True):
        assert len(mine.hits) == 10
        assert [hit.id for hit in mine.hits] == [hit.id for hit in theirs.hits]
        scores = np.array([[hit.score for hit in result.hits] for result in (mine, theirs)])
        np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)


def test_a_fresh_process_answers_without_torch(exported: exports.Export, tmp_path: Path) -> None:
    with Engine.create(tmp_path / "s", offline=True) as engine:
        engine.add(["the bank of the river", "money in the bank"])
    code = (
        "import sys, cli; cli.run(sys.argv[1:]);"
        "print(sorted({'torch', 'sentence_transformers', 'transformers'} & set(sys.modules)))"
    )
    asked = ["query", "river", "-k", "1", "--explain", "--store", str(tmp_path / "s")]
    done = subprocess.run(
        [sys.executable, "-c", code, *asked], capture_output=True, text=True, check=True
    )
    hit, modules = done.stdout.splitlines()
    assert json.loads(hit)["text"] == "the bank of the river"
    assert json.loads(hit)["legs"] == ["dense", "attention", "lexical"]
    assert modules == "[]"


def test_nothing_is_told_to_anybody(exported: exports.Export, tmp_path: Path) -> None:
    """onnxruntime keeps what it would report in the home directory's cache."""
    code = (
        "from engine.models import ModelSource\n"
        "model = ModelSource('sentence-transformers/all-MiniLM-L6-v2', offline=True).load()\n"
        "print(model.runtime, model.embed_queries(['bank']).shape)"
    )
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("XDG_")},
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split("\n")[0] == "onnxruntime on cpu (1, 384)"
    assert [path for path in tmp_path.rglob("*") if "Microsoft" in path.parts] == []


def test_an_unknown_runtime() -> None:
    with pytest.raises(InvalidInputError, match="unknown runtime 'gpu'; choose one of: auto"):
        ModelSource(DEFAULT_MODEL, runtime="gpu")
