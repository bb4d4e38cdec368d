"""The ranking's formulas against twins in float64 and numbers worked out by hand."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine import AttentionReranker
from engine.arrays import Float32Array, Float64Array, IdArray
from engine.embedding.locate import locate
from engine.errors import InvalidInputError, ModelError, ModelUnavailableError
from engine.ranking.confidence import effective_number, holding, softmax
from engine.ranking.contract import RerankInput, WordInput
from engine.ranking.fusion import reciprocal_ranks
from engine.ranking.matches import word_matches
from engine.settings import DEFAULT_MODEL
from engine.vectors import unit_rows


def cuts_of(sizes: list[int]) -> IdArray:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)


def unit(rows: int, width: int, seed: int) -> Float32Array:
    return unit_rows(np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32))


def matches_twin(
    query: Float32Array, texts: Float32Array, sizes: list[int], temperature: float
) -> Float64Array:
    """Text by text and word by word, in float64, by the definition."""
    out = np.zeros((len(query), len(sizes)))
    start = 0
    for text, size in enumerate(sizes):
        rows = texts[start : start + size].astype(np.float64)
        start += size
        for word, vector in enumerate(query.astype(np.float64)):
            shared = rows @ vector
            powers = np.exp(shared / temperature)
            out[word, text] = (powers @ shared) / powers.sum() if size else 0.0
    return out


@given(
    sizes=st.lists(st.integers(0, 6), max_size=6),
    words=st.integers(0, 4),
    temperature=st.sampled_from([0.025, 0.05, 0.1, 1.0]),
    seed=st.integers(0, 1000),
)
def test_word_matches_equal_their_twin(
    sizes: list[int], words: int, temperature: float, seed: int
) -> None:
    query, texts = unit(words, 5, seed), unit(sum(sizes), 5, seed + 1)
    found = word_matches(query, texts, cuts_of(sizes), temperature)
    assert found.shape == (words, len(sizes))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, matches_twin(query, texts, sizes, temperature), atol=1e-5)


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_no_temperature_overflows_or_vanishes(direction: float) -> None:
    query = np.array([[1.0, 0.0]], np.float32)
    texts = np.array([[direction, 0.0]] * 3, np.float32)
    found = word_matches(query, texts, cuts_of([2, 0, 1]), 0.025)
    assert found.tolist() == [[direction, 0.0, direction]]


def test_a_text_of_thousands_of_words_is_summed_without_loss() -> None:
    query, texts = unit(3, 16, 1), unit(20_000, 16, 2)
    found = word_matches(query, texts, cuts_of([20_000]), 0.1)
    np.testing.assert_allclose(found, matches_twin(query, texts, [20_000], 0.1), atol=1e-6)


def test_matches_do_not_depend_on_the_other_texts() -> None:
    query, texts, sizes = unit(4, 128, 3), unit(330, 128, 4), [7, 0, 150, 1, 172]
    together, cuts = word_matches(query, texts, cuts_of(sizes), 0.1), cuts_of(sizes)
    for n, size in enumerate(sizes):
        alone = word_matches(query, texts[cuts[n] : cuts[n + 1]], cuts_of([size]), 0.1)
        np.testing.assert_allclose(together[:, n], alone[:, 0], atol=1e-7)


def rerank_input(
    similarities: list[float],
    *,
    lexical: list[float] | None = None,
    words: WordInput | None = None,
) -> RerankInput:
    return RerankInput(
        query=np.array([1, 0], np.float32),
        vectors=np.eye(len(similarities), dtype=np.float32),
        similarities=np.array(similarities),
        lexical=None if lexical is None else np.array(lexical),
        words=words,
    )


def two_words() -> WordInput:
    """Two query words, weighing 3/4 and 1/4, and three texts of 2, 0 and 1 words."""
    a, b = [1.0, 0.0], [0.0, 1.0]
    return WordInput(
        query=np.array([a, b], np.float32),
        weights=np.array([0.75, 0.25]),
        texts=np.array([a, b, b], np.float32),
        cuts=cuts_of([2, 0, 1]),
    )


def test_rerank_by_hand() -> None:
    """At temperature 1 / ln 3 cosines of 1 and 0 weigh 3/4 and 1/4: the first text answers either
    word by 3/4, the third answers only the second, by 1; the second text keeps its cosine.
    """
    one = rerank_input([0.2, 0.6, 0.4], lexical=[1.0, 0.0, 4.0], words=two_words())
    reranker = AttentionReranker(temperature=1.0, attention_temperature=1 / math.log(3))
    (found,) = reranker.rerank([one], k=2)
    cosine, attention, lexical = [0.2, 0.6, 0.4], [0.75, 0.6, 0.25], [0.25, 0.0, 1.0]
    score = [
        0.9 * (0.5 * c + 0.5 * a) + 0.1 * x
        for c, a, x in zip(cosine, attention, lexical, strict=True)
    ]
    assert score == pytest.approx([0.4525, 0.54, 0.3925])
    assert found.order.tolist() == [1, 0]
    assert found.scores == pytest.approx([0.54, 0.4525], abs=1e-6)
    assert list(found.parts) == ["cosine", "attention", "lexical"]
    assert found.parts["cosine"] == pytest.approx([0.27, 0.09])
    assert found.parts["attention"] == pytest.approx([0.27, 0.3375], abs=1e-6)
    assert found.parts["lexical"] == pytest.approx([0.0, 0.025])
    first = math.exp(0.54) / (math.exp(0.54) + math.exp(0.4525))
    assert found.weights == pytest.approx([first, 1 - first], abs=1e-6)
    assert found.context == pytest.approx([1 - first, first, 0.0], abs=1e-6)
    assert found.attention_temperature == 1 / math.log(3)


def test_shares_are_the_caller_s() -> None:
    one = rerank_input([0.2, 0.6, 0.4], lexical=[1.0, 0.0, 4.0], words=two_words())
    reranker = AttentionReranker(mix=0.8, lexical_share=0.3, attention_temperature=1 / math.log(3))
    (found,) = reranker.rerank([one], k=3)
    assert found.order.tolist() == [0, 2, 1]
    assert found.scores == pytest.approx(
        [0.7 * 0.64 + 0.3 * 0.25, 0.7 * 0.28 + 0.3, 0.7 * 0.6], abs=1e-6
    )


@pytest.mark.parametrize("lexical", [None, [0.0, 0.0]])
def test_without_words_and_without_a_lexical_leg_it_is_the_cosine(
    lexical: list[float] | None,
) -> None:
    (found,) = AttentionReranker().rerank([rerank_input([0.2, 0.6], lexical=lexical)], k=5)
    assert found.order.tolist() == [1, 0]
    assert found.scores.tolist() == [0.6, 0.2]
    assert list(found.parts) == ["cosine"]


def test_without_words_the_lexical_leg_counts_a_tenth() -> None:
    one = rerank_input([0.5, 0.46], lexical=[1.0, 2.0])
    (found,) = AttentionReranker().rerank([one], k=2)
    assert found.order.tolist() == [1, 0]
    assert found.scores == pytest.approx([0.9 * 0.46 + 0.1, 0.9 * 0.5 + 0.05])
    assert list(found.parts) == ["cosine", "lexical"]


def test_ties_keep_the_candidates_order() -> None:
    (found,) = AttentionReranker().rerank([rerank_input([0.1, 0.5, 0.5, 0.5])], k=3)
    assert found.order.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "given_",
    [{"mix": -0.1}, {"mix": 1.1}, {"lexical_share": 2.0}, {"attention_temperature": 0.02}],
)
def test_shares_and_temperatures_out_of_range(given_: dict[str, float]) -> None:
    (name,) = given_
    with pytest.raises(InvalidInputError, match=name.split("_")[0]):
        AttentionReranker(**given_)


def test_fusion_by_hand() -> None:
    """7 is first and third, 5 second twice, 9 and 8 once each; 8 and 9 tie, the lower key leads."""
    fused = reciprocal_ranks([[7, 5, 9], [8, 5, 7]])
    assert list(fused) == [7, 5, 8, 9]
    assert fused[7] == pytest.approx(1 / 61 + 1 / 63)
    assert fused[5] == pytest.approx(2 / 62)
    assert fused[8] == pytest.approx(1 / 61)
    assert list(reciprocal_ranks([[9], [8]])) == [8, 9]
    assert reciprocal_ranks([]) == {}


def test_softmax_by_hand() -> None:
    ln3 = math.log(3)
    assert softmax(np.array([ln3, 0.0]), 1.0) == pytest.approx([0.75, 0.25])
    assert softmax(np.array([ln3, 0.0]), 0.5) == pytest.approx([0.9, 0.1])
    assert softmax(np.array([1e300, 1e300, 0.0]), 0.02) == pytest.approx([0.5, 0.5, 0.0])
    assert softmax(np.array([]), 1.0).tolist() == []


def test_the_effective_number_by_hand() -> None:
    assert effective_number(np.full(7, 1 / 7)) == pytest.approx(7.0)
    assert effective_number(np.array([1.0, 0.0])) == pytest.approx(1.0)
    assert effective_number(np.array([0.5, 0.25, 0.25])) == pytest.approx(2**1.5)
    assert effective_number(np.array([])) == 0.0


@pytest.mark.parametrize(
    ("mass", "count"), [(0.1, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.81, 3), (1.0, 4)]
)
def test_how_many_hold_a_share(mass: float, count: int) -> None:
    assert holding(np.array([0.5, 0.3, 0.1, 0.1]), mass) == count
    assert holding(np.array([5.0, 3.0, 1.0, 1.0]), mass) == count
    assert holding(np.array([]), mass) == 0


def tiny_cross_encoder(path: Path, labels: int = 1) -> str:
    """A model of one small random layer, with the tokenizer of the model in the package."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(7)
    config = BertConfig(  # type: ignore[call-arg]
        vocab_size=30522,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=labels,
        initializer_range=1.0,
    )
    BertForSequenceClassification(config).save_pretrained(path)
    located = locate(DEFAULT_MODEL, offline=True).path
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        if (located / name).exists():
            shutil.copy(located / name, path / name)
    return str(path)


@pytest.mark.model
def test_a_cross_encoder_ranks_by_its_own_scores(minilm: object, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from engine.ranking.cross import CrossEncoderReranker

    name = tiny_cross_encoder(tmp_path)
    reranker = CrossEncoderReranker(name, offline=True)
    texts = ["a dog barks", "the bank of the river", "thermometer", "a small boat"]
    one = RerankInput(
        np.ones(2, np.float32), np.eye(4, dtype=np.float32), np.arange(4.0), "heat", texts
    )
    model = AutoModelForSequenceClassification.from_pretrained(name).eval()
    tokenizer = AutoTokenizer.from_pretrained(name)
    with torch.inference_mode():
        expected = [
            torch.sigmoid(model(**tokenizer("heat", text, return_tensors="pt")).logits).item()
            for text in texts
        ]
    (found,) = reranker.rerank([one], k=3)
    order = np.argsort(-np.array(expected), kind="stable")[:3]
    assert len(set(expected)) == 4
    assert found.order.tolist() == order.tolist()
    assert found.scores == pytest.approx(np.array(expected)[order], abs=1e-5)
    assert found.parts == {"cross-encoder": pytest.approx(found.scores)}
    assert found.weights.sum() == pytest.approx(1.0)
    assert found.context == pytest.approx(found.weights @ one.vectors[found.order])


@pytest.mark.model
def test_a_cross_encoder_leaves_vector_queries_by_cosine(minilm: object, tmp_path: Path) -> None:
    from engine.ranking.cross import CrossEncoderReranker

    reranker = CrossEncoderReranker(tiny_cross_encoder(tmp_path), offline=True)
    one = RerankInput(np.ones(2, np.float32), np.eye(2, dtype=np.float32), np.array([0.1, 0.2]))
    (found,) = reranker.rerank([one], k=2)
    assert found.order.tolist() == [1, 0]
    assert list(found.parts) == ["cosine"]


@pytest.mark.model
def test_models_that_are_no_cross_encoders(minilm: object, tmp_path: Path) -> None:
    from engine.ranking.cross import CrossEncoderReranker

    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelUnavailableError, match="cannot be loaded"):
        CrossEncoderReranker(str(tmp_path / "empty"), offline=True)
    three = CrossEncoderReranker(tiny_cross_encoder(tmp_path / "three", labels=3), offline=True)
    one = RerankInput(
        np.ones(1, np.float32), np.eye(2, dtype=np.float32), np.zeros(2), "heat", ["a", "b"]
    )
    with pytest.raises(ModelError, match="no single score"):
        three.rerank([one], k=2)
