"""Explanations: every row of attention sums to 1, the shares to the score, spans to the words."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from engine import Engine, Explanation
from engine.embedding.sentence_transformer import SentenceTransformerEmbedder
from engine.errors import InvalidInputError, ModelError
from engine.ranking.explain import explain
from engine.types import Word
from engine.vectors import unit_rows


def test_worked_by_hand() -> None:
    """Cosines 1 and 0 at temperature 1 / ln 3 weigh 3/4 and 1/4."""
    a = (Word("sun", 0, 3), Word("sea", 4, 7))
    b = (Word("sun", 0, 3), Word("sea", 4, 7))
    rows = np.eye(2, dtype=np.float32)
    found = explain(("sun sea", "sun sea"), (a, b), (rows, rows), 0.5, temperature=1 / math.log(3))
    assert found.attention[0] == pytest.approx((0.75, 0.25))
    assert found.match == pytest.approx((0.75, 0.75))
    assert found.share == pytest.approx((0.375, 0.375))
    assert found.attention_score == pytest.approx(0.75)
    assert found.heat == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize(("left", "right"), [(0, 3), (3, 0), (0, 0)])
def test_no_words_no_nan(left: int, right: int) -> None:
    words = [Word("w", 0, 1)] * 3
    rows = np.eye(3, dtype=np.float32)
    found = explain(
        ("a", "b"), (words[:left], words[:right]), (rows[:left], rows[:right]), similarity=0.0
    )
    assert found.attention_score == 0.0
    assert all(math.isfinite(x) for x in (*found.match, *found.heat))


def check(found: Explanation) -> None:
    for row in found.attention:
        assert sum(row) == pytest.approx(1.0, abs=1e-5)
    assert sum(found.share) == pytest.approx(found.attention_score, abs=1e-5)
    assert sum(found.heat) == pytest.approx(1.0, abs=1e-5)
    for text, words in ((found.a, found.words_a), (found.b, found.words_b)):
        assert [text[w.start : w.end] for w in words] == [w.text for w in words]


@pytest.mark.model
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("instrument for heat", "a thermometer measures temperature, unbelievably well!"),
        ("café 漢字", "Crème brûlée — 👩‍👩‍👧 naïve 漢"),
        ("x", "word " * 600),
        ("שלום", "e\u0301le\u0300ve \u0000 tab\tend"),
    ],
)
def test_real_words(minilm: object, tmp_path: Path, a: str, b: str) -> None:
    with Engine.create(tmp_path / "s", model=minilm) as engine:  # type: ignore[arg-type]
        found = engine.explain(a, b)
        check(found)
        assert found.similarity == pytest.approx(
            float(
                unit_rows(minilm.embed_queries([a]))[0]  # type: ignore[attr-defined]
                @ unit_rows(minilm.embed_documents([b]))[0]  # type: ignore[attr-defined]
            ),
            abs=1e-5,
        )


@pytest.mark.model
def test_a_word_finds_its_match_and_context_tells_senses_apart(
    minilm: SentenceTransformerEmbedder, tmp_path: Path
) -> None:
    with Engine.create(tmp_path / "s", model=minilm) as engine:
        found = engine.explain("instrument for heat", "a thermometer measures temperature")
        heat = found.attention[1]
        assert [word.text for word in found.words_a] == ["instrument", "heat"]
        assert found.words_b[int(np.argmax(heat))].text == "temperature"
        assert [word.text for word in engine.explain("to be", "or not").words_a] == ["to", "be"]
        money, river = (
            engine.explain("the bank lends money", text)
            for text in ("my bank keeps my savings", "we sat on the bank of the river")
        )
        at = [word.text for word in money.words_a].index("bank")
        assert money.match[at] > river.match[at]


@pytest.mark.model
def test_word_vectors_are_the_mean_of_their_pieces(minilm: SentenceTransformerEmbedder) -> None:
    text = "unbelievably good"
    _, (words,) = minilm.embed_with_words([text], query=False)
    states = minilm.model.encode([text], output_value="token_embeddings")[0].numpy()
    assert [text[start:end] for start, end in words.spans] == ["unbelievably", "good"]
    expected = np.stack([states[1:6].mean(axis=0), states[6]])
    np.testing.assert_allclose(words.vectors, unit_rows(expected), atol=1e-6)


def test_what_cannot_be_explained(engine: Engine) -> None:
    with pytest.raises(InvalidInputError, match="nothing to explain"):
        engine.explain("", "text")
    with pytest.raises(InvalidInputError, match="lone surrogate"):
        engine.explain("text", "\ud800")
    with pytest.raises(ModelError, match="no word vectors"):
        engine.explain("one", "two")
