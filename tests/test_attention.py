"""Attention against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine import AttentionReranker
from engine.arrays import Float32Array
from engine.errors import InvalidInputError
from engine.ranking.attention import attend, attend_sequence, masked_softmax, scores
from engine.ranking.confidence import temperature_of
from engine.ranking.contract import RerankInput
from engine.vectors import unit_rows

F64 = torch.float64


def test_inner_product_counts_what_two_people_share() -> None:
    """Four attributes each, one-hot: the inner product is the number of equal attributes."""
    people = [(0, 0, 0, 0), (0, 1, 1, 1), (2, 0, 0, 2)]
    one_hot = torch.from_numpy(np.array([np.eye(3)[list(p)].ravel() for p in people]))
    expected = torch.tensor([[4, 1, 2], [1, 4, 0], [2, 0, 4]], dtype=F64)
    assert torch.equal(scores(one_hot, one_hot), expected)


def test_scores_are_the_matrix_product() -> None:
    left = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    right = torch.tensor([[7.0, 8], [9, 10], [11, 12]])
    assert scores(left, right.T).tolist() == [[58, 64], [139, 154]]
    assert scores(left, right.T, temperature=2.0).tolist() == [[29, 32], [69.5, 77]]


def test_attention_worked_by_hand() -> None:
    """Scores ln 1 and ln 3 give weights 1/4 and 3/4, and the context follows."""
    query = torch.tensor([[1.0, 0.0]], dtype=F64)
    keys = torch.tensor([[0.0, 5.0], [math.log(3), 2.0]], dtype=F64)
    values = torch.tensor([[4.0, 0.0], [8.0, 4.0]], dtype=F64)
    context, weights = attend(query, keys, values)
    torch.testing.assert_close(weights, torch.tensor([[0.25, 0.75]], dtype=F64))
    torch.testing.assert_close(context, torch.tensor([[7.0, 3.0]], dtype=F64))


def test_agreement_matrix_through_softmax() -> None:
    logits = torch.tensor([[4.0, 1, 2], [1, 4, 0], [2, 0, 4]], dtype=F64)
    weights = masked_softmax(logits)
    first = [math.exp(x) / (math.exp(4) + math.exp(1) + math.exp(2)) for x in (4, 1, 2)]
    torch.testing.assert_close(weights[0], torch.tensor(first, dtype=F64))
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, dtype=F64))


def test_sequence_to_sequence_shapes_and_values() -> None:
    """[1,B,H] * [S,B,H] -> [S,B] -> softmax over S -> [B,1,S] @ [B,S,H] -> [B,1,H]."""
    steps, batch, width = 5, 3, 4
    generator = torch.Generator().manual_seed(7)
    state = torch.randn(1, batch, width, generator=generator, dtype=F64)
    sequence = torch.randn(steps, batch, width, generator=generator, dtype=F64)
    products = (state * sequence).sum(-1)
    assert products.shape == (steps, batch)
    weights = torch.softmax(products, dim=0)
    context, found = attend_sequence(state, sequence)
    assert context.shape == (batch, 1, width)
    assert found.shape == (batch, 1, steps)
    torch.testing.assert_close(found[:, 0, :].T, weights)
    for b in range(batch):
        expected = torch.stack([weights[s, b] * sequence[s, b] for s in range(steps)]).sum(0)
        torch.testing.assert_close(context[b, 0], expected)


@given(
    keys=st.integers(1, 6),
    padding=st.integers(0, 5),
    filler=st.floats(-1e30, 1e30),
    temperature=st.sampled_from([0.025, 0.05, 1.0, 10.0]),
    seed=st.integers(0, 1000),
)
def test_padding_never_changes_a_result(
    keys: int, padding: int, filler: float, temperature: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(2, 3, generator=generator, dtype=F64)
    k = torch.randn(keys, 3, generator=generator, dtype=F64)
    v = torch.randn(keys, 2, generator=generator, dtype=F64)
    plain = attend(q, k, v, temperature)
    pad_k = torch.cat([k, torch.full((padding, 3), filler, dtype=F64)])
    pad_v = torch.cat([v, torch.full((padding, 2), filler, dtype=F64)])
    mask = torch.arange(keys + padding) < keys
    padded = attend(q, pad_k, pad_v, temperature, mask)
    torch.testing.assert_close(padded.context, plain.context)
    torch.testing.assert_close(padded.weights[:, :keys], plain.weights)
    assert not padded.weights[:, keys:].any()
    torch.testing.assert_close(padded.weights.sum(-1), torch.ones(2, dtype=F64))


def test_padded_sequence_equals_the_short_one() -> None:
    generator = torch.Generator().manual_seed(3)
    state = torch.randn(1, 2, 4, generator=generator)
    sequence = torch.randn(6, 2, 4, generator=generator)
    mask = torch.tensor([[True, True]] * 4 + [[False, False]] * 2)
    torch.testing.assert_close(
        attend_sequence(state, sequence, mask=mask).context,
        attend_sequence(state, sequence[:4]).context,
    )


def test_all_masked_is_zero_not_nan() -> None:
    context, weights = attend(
        torch.ones(1, 2), torch.ones(3, 2), torch.ones(3, 2), mask=torch.zeros(3, dtype=torch.bool)
    )
    assert weights.tolist() == [[0, 0, 0]]
    assert context.tolist() == [[0, 0]]


def test_cold_softmax_does_not_overflow() -> None:
    weights = masked_softmax(torch.tensor([1e30, 0.0, -1e30]), torch.ones(3, dtype=torch.bool))
    assert weights.tolist() == [1, 0, 0]


def test_square_root_of_width_is_too_warm_for_unit_vectors() -> None:
    """At sqrt(384) the weights of any cosines are all but uniform: entropy ln 100."""
    cosines = torch.linspace(0.2, 0.8, 100, dtype=F64)[None]
    weights = masked_softmax(cosines / math.sqrt(384))
    entropy = -(weights * weights.log()).sum().item()
    assert entropy == pytest.approx(math.log(100), abs=1e-3)
    sharp = masked_softmax(cosines / temperature_of(cosines[0].numpy()))
    assert -(sharp * sharp.log()).sum().item() < 4.4


def test_temperature_is_the_spread_with_a_floor() -> None:
    assert temperature_of(np.array([0.2, 0.4, 0.6])) == pytest.approx(1.3 * 0.16329931618554518)
    assert temperature_of(np.array([0.5, 0.5])) == 0.02
    assert temperature_of(np.array([])) == 0.02


def unit(rows: list[list[float]]) -> Float32Array:
    return unit_rows(np.array(rows, dtype=np.float32))


def candidates(query: list[float], rows: list[list[float]]) -> RerankInput:
    q, v = unit([query])[0], unit(rows)
    return RerankInput(q, v, v.astype(np.float64) @ q.astype(np.float64))


def test_rerank_keeps_the_order_and_weighs_by_softmax() -> None:
    one = candidates([1, 0], [[1, 0], [1, 1], [0, 1]])
    (found,) = AttentionReranker(temperature=0.5).rerank([one], k=2)
    logits = [1 / 0.5, math.sqrt(0.5) / 0.5]
    total = sum(map(math.exp, logits))
    assert found.order.tolist() == [0, 1]
    assert found.weights == pytest.approx([math.exp(x) / total for x in logits])
    assert found.context == pytest.approx(found.weights @ one.vectors[:2])
    assert found.scores.tolist() == one.similarities[:2].tolist()


def test_rerank_takes_its_temperature_from_all_candidates() -> None:
    one = candidates([1, 0], [[1, 0], [1, 1], [0, 1]])
    (found,) = AttentionReranker().rerank([one], k=1)
    assert found.temperature == pytest.approx(1.3 * float(np.std(one.similarities)))
    assert found.weights.tolist() == [1.0]


def test_rerank_does_not_depend_on_the_batch() -> None:
    short = candidates([1, 2], [[1, 1]])
    long = candidates([2, 1], [[1, 0], [1, 3], [0, 1], [-1, 0]])
    none = RerankInput(short.query, short.vectors[:0], short.similarities[:0])
    together = AttentionReranker().rerank([short, long, none], k=3)
    for batch, alone in zip(together, (short, long, none), strict=True):
        (single,) = AttentionReranker().rerank([alone], k=3)
        np.testing.assert_allclose(batch.weights, single.weights, rtol=1e-12)
        np.testing.assert_allclose(batch.context, single.context, rtol=1e-12)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_must_be_positive(temperature: float) -> None:
    with pytest.raises(InvalidInputError, match="temperature"):
        AttentionReranker(temperature=temperature)
