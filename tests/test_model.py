"""The real model: where it is found, what it is known by, and what its vectors are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from engine import Document, Engine
from engine.embedding import locate as places
from engine.embedding.base import Embedder
from engine.embedding.fingerprint import fingerprint
from engine.embedding.locate import Origin, locate
from engine.embedding.sentence_transformer import SentenceTransformerEmbedder, load
from engine.embedding.tokenized import length_batches
from engine.errors import ModelError, ModelUnavailableError
from engine.settings import DEFAULT_MODEL
from tests.conftest import DATA

pytestmark = pytest.mark.model


@pytest.fixture
def model_copy(minilm: object, tmp_path: Path) -> Path:
    return Path(shutil.copytree(locate(DEFAULT_MODEL, offline=True).path, tmp_path / "moved"))


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty hub cache of our own."""
    cache = tmp_path / "hub"
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(cache))
    monkeypatch.setattr(places, "_cache_directories", lambda: [str(cache)])
    return cache


def test_the_default_comes_from_the_package(no_cache: Path) -> None:
    for name in (DEFAULT_MODEL, "all-MiniLM-L6-v2"):
        found = locate(name, offline=True)
        assert (found.name, found.origin) == (DEFAULT_MODEL, Origin.PACKAGE)


def test_the_cache_comes_before_the_package(no_cache: Path, model_copy: Path) -> None:
    repository = no_cache / "models--sentence-transformers--all-MiniLM-L6-v2"
    snapshot = repository / "snapshots" / ("0" * 40)
    shutil.copytree(model_copy, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert locate(DEFAULT_MODEL, offline=True).path == snapshot
    (snapshot / "model.safetensors").unlink()
    assert locate(DEFAULT_MODEL, offline=True).origin is Origin.PACKAGE


def test_tampered_package_weights_are_refused(
    no_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "PACKAGE_WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(ModelError, match="is not the published all-MiniLM-L6-v2"):
        locate(DEFAULT_MODEL, offline=True)


def test_nothing_is_fetched_offline(no_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with pytest.raises(ModelUnavailableError, match="nothing is fetched offline"):
        locate("some/model", offline=True, on_notice=said.append)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelUnavailableError, match="nothing is fetched offline"):
        locate("some/model", on_notice=said.append)
    assert said == []


def test_a_notice_comes_before_fetching(no_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def fetch(name: str, hint: str) -> Path:
        order.append(f"fetch {name}")
        return no_cache

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(places, "_fetch", fetch)
    found = locate("some/model", on_notice=lambda _: order.append("notice"))
    assert order == ["notice", "fetch some/model"]
    assert found.origin is Origin.HUB


def test_a_path_that_is_gone_and_a_name_that_is_none(no_cache: Path) -> None:
    with pytest.raises(ModelUnavailableError, match="if it was moved"):
        locate("/no/such/model")
    with pytest.raises(ModelUnavailableError, match="is no model name"):
        locate("bad name!")


def test_the_fingerprint_follows_the_weights_not_the_place(
    minilm: SentenceTransformerEmbedder, model_copy: Path
) -> None:
    assert fingerprint(model_copy) == minilm.fingerprint
    (model_copy / "README.md").write_text("renamed")
    config = model_copy / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"_name_or_path": "other"}))
    assert fingerprint(model_copy) == minilm.fingerprint


def test_a_resaved_copy_is_the_same_model(
    minilm: SentenceTransformerEmbedder, tmp_path: Path
) -> None:
    minilm.model.save_pretrained(str(tmp_path / "resaved"))
    assert fingerprint(tmp_path / "resaved") == minilm.fingerprint


def edit(path: Path, **values: object) -> None:
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(old | values))


@pytest.mark.parametrize("change", ["weights", "pooling", "prompts", "length", "normalise", "case"])
def test_what_changes_vectors_changes_the_fingerprint(
    minilm: SentenceTransformerEmbedder, model_copy: Path, change: str
) -> None:
    match change:
        case "weights":
            with (model_copy / "model.safetensors").open("r+b") as handle:
                handle.seek(-3, 2)
                handle.write(b"\x01")
        case "pooling":
            edit(
                model_copy / "1_Pooling" / "config.json",
                pooling_mode_cls_token=True,
                pooling_mode_mean_tokens=False,
            )
        case "prompts":
            edit(model_copy / "config_sentence_transformers.json", prompts={"query": "q: "})
        case "length":
            edit(model_copy / "sentence_bert_config.json", max_seq_length=128)
        case "normalise":
            modules = json.loads((model_copy / "modules.json").read_text())
            (model_copy / "modules.json").write_text(json.dumps(modules[:2]))
        case "case":
            tokenizer = json.loads((model_copy / "tokenizer.json").read_text())
            tokenizer["normalizer"]["lowercase"] = False
            (model_copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert fingerprint(model_copy) != minilm.fingerprint


def test_damaged_weights_are_an_error(model_copy: Path) -> None:
    weights = model_copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot be read"):
        fingerprint(model_copy)


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError):
        load(locate(str(tmp_path / "empty")), "x")


def test_adapter(minilm: SentenceTransformerEmbedder) -> None:
    assert isinstance(minilm, Embedder)
    assert (minilm.dimension, minilm.max_tokens) == (384, 254)
    assert minilm.count_tokens(["hello world", "", "unbelievably"]) == [2, 0, 5]
    text = "Ünïcode 漢字 👋 e\u0301"
    spans = minilm.token_spans(text)
    assert [text[s:e] for s, e in spans][:1] == ["Ünïcode"[: spans[0][1]]]
    assert all(s < e <= len(text) for s, e in spans)


def test_prompts_are_honoured(model_copy: Path) -> None:
    edit(
        model_copy / "config_sentence_transformers.json",
        prompts={"query": "search for this: ", "document": ""},
    )
    prompted = load(locate(str(model_copy)), fingerprint(model_copy))
    plain = prompted.model.encode(["search for this: a dog", "a dog"], prompt="")
    np.testing.assert_allclose(prompted.embed_queries(["a dog"])[0], plain[0], atol=1e-6)
    np.testing.assert_allclose(prompted.embed_documents(["a dog"])[0], plain[1], atol=1e-6)
    assert prompted.max_tokens == 254 - prompted.count_tokens(["search for this: "])[0]


def test_a_text_finds_itself_with_similarity_one(
    minilm: SentenceTransformerEmbedder, tmp_path: Path
) -> None:
    with Engine.create(tmp_path / "s", model=minilm) as engine:
        engine.add(["a small boat", "the stock market fell", "test test " * 50])
        hit = engine.search("a small boat", k=1).hits[0]
        assert hit.text == "a small boat"
        assert hit.similarity == pytest.approx(1.0, abs=1e-6)
        assert (hit.similarity or 2.0) <= 1.0


def test_batch_size_does_not_change_vectors(minilm: SentenceTransformerEmbedder) -> None:
    alone = minilm.embed_documents(["test test"])
    together = minilm.embed_documents(["test test"] * 64 + ["a longer text " * 20])
    np.testing.assert_allclose(together[:64], np.repeat(alone, 64, axis=0), atol=1e-6)


def test_batches_are_of_like_length_and_within_the_budget() -> None:
    counts = [5, 100, 7, 6, 98, 1, 3000]
    batches = list(length_batches(counts, 210))
    assert batches == [[6], [1, 4], [2, 3, 0, 5]]
    assert sorted(n for batch in batches for n in batch) == list(range(7))


def test_out_of_memory_halves_the_batch(
    minilm: SentenceTransformerEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"text number {i}" for i in range(9)]
    expected = minilm.embed_documents(texts)
    plain = minilm.model.encode_document
    sizes: list[int] = []

    def encode(batch: list[str], **options: object) -> object:
        sizes.append(len(batch))
        if len(batch) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return plain(batch, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(minilm.model, "encode_document", encode)
    np.testing.assert_allclose(minilm.embed_documents(texts), expected, atol=1e-6)
    assert max(sizes) == 9
    assert sizes[:4] == [9, 4, 2, 2]

    def never(batch: list[str], **_: object) -> object:
        raise MemoryError

    monkeypatch.setattr(minilm.model, "encode_document", never)
    with pytest.raises(ModelError, match="not enough memory to embed one text"):
        minilm.embed_documents(texts)


@pytest.mark.data
def test_similarities_equal_a_float64_reference(
    minilm: SentenceTransformerEmbedder, tmp_path: Path
) -> None:
    lines = (DATA / "wordnet" / "synsets.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    texts = [row[4] for row in rows[1:] if row[1] == "noun"][::400][:200]
    with Engine.create(tmp_path / "s", model=minilm) as engine:
        engine.add([Document(text, id=str(n)) for n, text in enumerate(texts)])
        queries = ["instrument for measuring temperature", "a large wild cat", "money"]
        wide = minilm.embed_documents(texts).astype(np.float64)
        wide /= np.linalg.norm(wide, axis=1, keepdims=True)
        for query in queries:
            q = minilm.embed_queries([query])[0].astype(np.float64)
            reference = wide @ (q / np.linalg.norm(q))
            hits = engine.search(query, k=len(texts), mode="dense", rerank=False).hits
            found = np.array([hit.similarity for hit in hits])
            order = [int(hit.id) for hit in hits]
            assert sorted(order) == list(range(len(texts)))
            np.testing.assert_allclose(found, reference[order], atol=1e-5)
            np.testing.assert_allclose(np.sort(reference)[::-1], found, atol=1e-5)


def test_half_precision_is_for_a_gpu(
    minilm: SentenceTransformerEmbedder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    located = locate(DEFAULT_MODEL, offline=True)
    texts = ["a dog barks", "the bank of the river", "thermometer"]
    plain = minilm.embed_documents(texts)
    on_cpu = SentenceTransformerEmbedder(located, minilm.fingerprint, half=True)
    assert "half precision is for a GPU" in caplog.text
    np.testing.assert_array_equal(on_cpu.embed_documents(texts), plain)
    monkeypatch.setattr("engine.embedding.sentence_transformer.GPU", "cpu")
    half = SentenceTransformerEmbedder(located, minilm.fingerprint, half=True)
    found = half.embed_documents(texts)
    assert found.dtype == np.float32
    difference = np.linalg.norm(found - plain, axis=1)
    assert (difference > 0).all()
    assert (difference < 5e-3).all()
    _, (words,) = half.embed_with_words(["a dog"], query=False)
    assert words.spans.tolist() == [[0, 1], [2, 5]]
    assert words.vectors.dtype == np.float32
