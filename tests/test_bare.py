"""A word asked for among words: blended with the model's own table, and only there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from engine import AttentionReranker, Document, Engine, search
from engine.arrays import Float32Array
from engine.embedding.bare import SHARE_PIECES, SHARE_WHOLE, BareWord, is_word
from engine.ranking.contract import RerankInput
from engine.settings import IndexSpec, Metric
from tests.tokens import HandEmbedder

ANGLES = {"car": 0.0, "auto": 0.2, "cart": 1.5, "cab": 0.6}


class Tabled(HandEmbedder):
    """A table in which each word is a direction in a plane; a word of capitals has two pieces."""

    def table_rows(self, words: Sequence[str]) -> Float32Array | None:
        angles = [ANGLES.get(word.lower(), 3.0) for word in words]
        return np.array([[7 * np.cos(a), 7 * np.sin(a)] for a in angles], np.float32)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [1 + text.isupper() for text in texts]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Engine]:
    with Engine.create(tmp_path / "s", model=Tabled()) as engine:
        yield engine


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("car", True),
        (" Car\n", True),
        ("cafe\u0301", True),
        ("машина", True),
        ("a car", False),
        ("don't", False),
        ("POL-358", False),
        ("x2", False),
        ("睡觉", False),
        ("학교", False),
        ("", False),
        ("…", False),
    ],
)
def test_what_is_a_word(text: str, expected: bool) -> None:
    assert is_word(text) is expected


@pytest.mark.parametrize(("query", "share"), [("car", SHARE_WHOLE), ("CAR", SHARE_PIECES)])
def test_words_are_ranked_by_the_table_too(store: Engine, query: str, share: float) -> None:
    words = ["auto", "cart", "cab", "car"]
    store.add([Document(word, word) for word in words])
    found = store.search(query, mode="dense", explain=True)
    assert found.legs == ("dense", "attention", "word")
    plain = {word: 1.0 if word == "car" else 0.5 * 0.2 if word[0] == "c" else 0.0 for word in words}
    before = np.array([plain[word] for word in words])
    near = np.array([np.cos(ANGLES[word]) for word in words])
    level = before.mean() + (near - near.mean()) * before.std() / near.std()
    expected = dict(zip(words, (1 - share) * before + share * level, strict=True))
    assert {hit.id: hit.score for hit in found.hits} == pytest.approx(expected, abs=5e-3)
    for hit in found.hits:
        assert hit.explanation is not None
        assert sum(hit.explanation.parts.values()) == pytest.approx(hit.score, abs=1e-5)
    assert [hit.id for hit in found.hits][:2] == (
        ["car", "auto"] if share > 0.5 else ["car", "cab"]
    )


def test_only_one_word_among_words(store: Engine) -> None:
    store.add(["auto", "cart", "cab", "car"])
    for query in ("car cab", "POL-358", "車"):
        assert "word" not in store.search(query).legs
    assert "word" not in store.search("car", context="the car").legs
    assert "word" not in store.search("car", rerank=False).legs
    store.add(["a car of mine", "a cab ride", "the cart there", "an auto here"])
    assert "word" in store.search("car").legs
    store.add(["no car at all"])
    assert "word" not in store.search("car").legs


def test_inner_products_and_other_models_are_left_alone(tmp_path: Path) -> None:
    spec = IndexSpec(metric=Metric.IP)
    with Engine.create(tmp_path / "ip", model=Tabled(), index=spec) as engine:
        engine.add(["car", "auto"])
        assert "word" not in engine.search("car").legs
    assert BareWord("car", HandEmbedder).cosines(["car", "auto"]) is None


def test_more_words_are_ranked_than_texts(store: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the vectors `auto` is no better than any other word; the table knows it."""
    letters = "abcdefghij"
    store.add([f"c{a}{b}x" for a in letters for b in letters] + ["auto"])
    monkeypatch.setattr(search, "WORDS", 100)
    assert "auto" not in [hit.text for hit in store.search("car", k=3, mode="dense").hits]
    monkeypatch.setattr(search, "WORDS", 200)
    assert store.search("car", k=3, mode="dense").hits[0].text == "auto"


def test_words_keep_the_level_of_their_scores() -> None:
    similarities = np.array([0.9, 0.5, 0.4, 0.3])
    given = RerankInput(
        np.ones(1, np.float32),
        np.ones((4, 1), np.float32),
        similarities,
        bare=np.array([np.nan, 0.1, 0.3, 0.2]),
        bare_share=1.0,
    )
    (found,) = AttentionReranker().rerank([given], 4)
    scores = np.empty(4)
    scores[found.order] = found.scores
    assert scores == pytest.approx([0.9, 0.3, 0.5, 0.4])
    assert list(found.parts) == ["cosine", "word"]
    (lone,) = AttentionReranker().rerank(
        [
            RerankInput(
                given.query, given.vectors, similarities, bare=np.array([0.1] + [np.nan] * 3)
            )
        ],
        4,
    )
    assert lone.scores.tolist() == [0.9, 0.5, 0.4, 0.3]


@pytest.mark.model
def test_both_runtimes_have_one_table(minilm: object) -> None:
    pytest.importorskip("onnxruntime")
    from engine.embedding.onnx import OnnxEmbedder
    from engine.embedding.sentence_transformer import SentenceTransformerEmbedder
    from engine.models import ModelSource
    from engine.settings import DEFAULT_MODEL, Runtime

    made = ModelSource(DEFAULT_MODEL, offline=True, runtime=Runtime.ONNX).load()
    assert isinstance(made, OnnxEmbedder)
    assert isinstance(minilm, SentenceTransformerEmbedder)
    words = ["happy", "Happy", "gloomily", "glad", "carburetor"]
    rows, others = minilm.table_rows(words), made.table_rows(words)
    assert rows is not None
    assert others is not None
    assert np.array_equal(rows, others)
    assert np.array_equal(rows[0], rows[1])
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert unit[0] @ unit[3] > 0.4 > unit[0] @ unit[4]
