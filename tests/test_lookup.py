"""What is known of a query's text without asking the model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Engine
from engine.arrays import Float32Array
from engine.embedding import remembered
from engine.embedding.plain import PlainEmbedder
from engine.embedding.remembered import Embedded
from engine.errors import ModelUnavailableError
from engine.models import ModelSource
from engine.types import Words
from tests.words import WordEmbedder


class Symmetric(WordEmbedder):
    """Says that queries and documents are alike, and counts the queries it is asked."""

    symmetric = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def embed_queries(self, texts: Sequence[str]) -> Float32Array:
        self.asked += texts
        return super().embed_queries(texts)


def test_an_indexed_text_has_the_vector_of_its_passage(tmp_path: Path) -> None:
    model = Symmetric()
    with Engine.create(tmp_path / "s", model=model) as engine:
        engine.add(["a dog barks", "the cat sleeps"])
        found = engine.search_many(["a dog barks", "a cat", "the cat sleeps"])
        assert model.asked == ["a cat"]
        assert [result.hits[0].text for result in found] == ["a dog barks", *2 * ["the cat sleeps"]]
        assert found[0].hits[0].similarity == pytest.approx(1, abs=1e-6)
        assert engine.combine(plus=["a dog barks"], k=1).hits[0].text == "the cat sleeps"
    assert model.asked == ["a cat"]


def test_the_texts_of_other_models_are_embedded(tmp_path: Path) -> None:
    model = Symmetric()
    model.symmetric = False
    with Engine.create(tmp_path / "s", model=model) as engine:
        engine.add(["a dog barks"])
        engine.search("a dog barks")
    assert model.asked == ["a dog barks"]


def test_functions_are_symmetric_where_there_is_one_of_them() -> None:
    def encode(texts: list[str]) -> list[list[float]]:
        return [[1.0] for _ in texts]

    assert PlainEmbedder("a", 1, encode, fingerprint="a").symmetric
    assert not PlainEmbedder("a", 1, encode, fingerprint="a", encode_query=list).symmetric


def test_an_indexed_text_ranks_as_if_embedded(model_store: Path) -> None:
    """Its words come from the store, in 8 bit: scores move by less than 1e-2, ids do not."""
    text = "a dog barks at night"
    with Engine.open(model_store) as engine:
        stored = engine.search(text, explain=True)
        engine._store.settings = replace(engine._store.settings, symmetric=False)
        embedded = engine.search(text, explain=True)
    assert [hit.id for hit in stored.hits] == [hit.id for hit in embedded.hits]
    np.testing.assert_allclose(
        [hit.score for hit in stored.hits], [hit.score for hit in embedded.hits], atol=1e-2
    )
    ours, theirs = stored.hits[0].explanation, embedded.hits[0].explanation
    assert ours is not None
    assert theirs is not None
    assert [one.text for one in ours.words_a] == [one.text for one in theirs.words_a]


@pytest.fixture(scope="module")
def model_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lookup") / "s"
    with Engine.create(path, offline=True) as engine:
        assert engine._store.settings.symmetric
        engine.add(
            ["a dog barks at night", "cats sleep by day", "thermometers measure heat", "money"]
        )
    return path


def test_a_query_asked_before_needs_no_model(
    model_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTENDEX_CACHE", str(tmp_path))
    asked = "an instrument for temperature"
    with Engine.open(model_store) as engine:
        first = engine.search(asked, explain=True)
        inside = engine.search(asked, context=f"{asked} is what I want")

    def refuse(self: ModelSource, name: str) -> None:
        raise ModelUnavailableError(f"{name} is not to be loaded")

    monkeypatch.setattr(ModelSource, "_load", refuse)
    with Engine.open(model_store) as engine:
        again = engine.search(asked, explain=True)
        assert (again.hits, again.notes) == (first.hits, first.notes)
        assert engine.search("cats sleep by day").hits[0].similarity == pytest.approx(1, abs=1e-6)
        with pytest.raises(ModelUnavailableError):
            engine.search("something else")
        with pytest.raises(ModelUnavailableError):
            engine.search(asked, context=f"{asked} is what I want")  # the model was warm then
    assert inside.hits


def test_no_other_text_or_way_is_taken_for_one(tmp_path: Path) -> None:
    paths = {
        remembered.path_of(*parts, words=words)
        for parts in (
            ("m", "f", "a", None),
            ("m", "f", "a", ""),
            ("m", "f", "", "a"),
            ("m", "fa", "", None),
            ("n", "f", "a", None),
        )
        for words in (True, False)
    }
    assert len(paths) == 10


WORDS = Words(np.array([[0, 1], [2, 5]]), np.eye(2, 3, dtype=np.float32))


@pytest.mark.parametrize("words", [None, WORDS], ids=["no words", "words"])
def test_what_is_kept_comes_back(words: Words | None, tmp_path: Path) -> None:
    path = tmp_path / "q" / "one.npz"
    made = Embedded(np.arange(3, dtype=np.float32), words, tokens=7, limit=None)
    remembered.write(path, made)
    back = remembered.read(path, 3)
    assert back is not None
    assert back[2:] == (7, None)
    assert back.vector.tolist() == [0, 1, 2]
    assert (back.words is None) == (words is None)
    if words is not None and back.words is not None:
        assert back.words.spans.tolist() == words.spans.tolist()
        assert back.words.vectors.tolist() == words.vectors.tolist()
    assert remembered.read(path, 4) is None
    assert [one.name for one in path.parent.iterdir()] == ["one.npz"]


def test_what_is_damaged_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "one.npz"
    remembered.write(path, Embedded(np.arange(3, dtype=np.float32), WORDS, 7, 100))
    whole = path.read_bytes()
    at = whole.index(np.float32(2).tobytes())
    for damaged in (
        b"",
        whole[: len(whole) // 2],
        b"no archive",
        whole[:at] + b"\1" + whole[at + 1 :],
    ):
        path.write_bytes(damaged)
        assert remembered.read(path, 3) is None


def test_no_damage_is_an_error(tmp_path: Path) -> None:
    """A byte anywhere, any other value: what was kept comes back, or nothing does."""
    path = tmp_path / "one.npz"
    remembered.write(path, Embedded(np.arange(3, dtype=np.float32), WORDS, 7, 100))
    whole, rng = path.read_bytes(), np.random.default_rng(3)
    found = set()
    for at in range(len(whole)):
        for value in {255, int(rng.integers(256))} - {whole[at]}:
            path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            back = remembered.read(path, 3)
            found.add(None if back is None else tuple(back.vector.tolist()))
    assert found == {None, (0.0, 1.0, 2.0)}


@pytest.mark.parametrize(
    "arrays",
    [
        {"vector": np.array(["a", "b", "c"])},
        {"spans": np.zeros((2, 3), np.int64)},
        {"numbers": np.array([1.0, np.nan, 0.0])},
        {"rows": np.array([[b"a"], [b"b"]])},
    ],
    ids=lambda arrays: next(iter(arrays)),
)
def test_arrays_of_another_kind_are_not_there(arrays: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "one.npz"
    remembered.write(path, Embedded(np.arange(3, dtype=np.float32), WORDS, 7, 100))
    with np.load(path) as held:
        np.savez(path, **{**held, **arrays})
    assert remembered.read(path, 3) is None


def test_the_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MOST_BYTES", 20_000)
    paths = [tmp_path / f"{n:03d}.npz" for n in range(40)]
    for n, path in enumerate(paths):
        remembered.write(path, Embedded(np.zeros(300, np.float32), None, 1, None))
        if path.exists():
            os.utime(path, (n, n))
        if n > 2 and paths[0].exists():
            assert remembered.read(paths[0], 300) is not None
    left = {path for path in paths if path.exists()}
    assert sum(path.stat().st_size for path in left) <= 20_000
    assert {paths[0], paths[-1]} <= left
    assert paths[1] not in left


def test_a_cache_that_cannot_be_kept_is_none(
    model_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATTENDEX_CACHE", str(tmp_path / "file"))
    with Engine.open(model_store) as engine:
        assert engine.search("an instrument for heat", k=1).hits
