"""The bfloat16 scan of batches, on the CPU: answers are those of the exact scan, bit for bit."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import gpu
from engine import vectors
from engine.arrays import BoolArray, Float32Array
from engine.index import batch, contract, half, scorer
from engine.index.flat import FlatIndex
from engine.index.snapshot import Snapshot
from engine.settings import Metric

CPU = torch.device("cpu")
D = 24


def built(rows: Float32Array) -> FlatIndex:
    return FlatIndex.build([(np.arange(len(rows), dtype=np.int64) * 3 + 2, rows)], rows.shape[1])


def unit(n: int, d: int = D, seed: int = 0) -> Float32Array:
    rng = np.random.default_rng(seed)
    return vectors.unit_rows(rng.standard_normal((n, d)).astype(np.float32))


def assert_exact(
    index: FlatIndex,
    queries: Float32Array,
    k: int,
    metric: Metric = Metric.IP,
    keep: BoolArray | None = None,
) -> None:
    """Ids, order and similarities of a full float64 scan, to the last bit."""
    found = batch.exact_many(index, queries, k, metric, keep=keep, on=CPU, halved=True)
    assert len(found) == len(queries)
    places = np.arange(len(index.ids)) if keep is None else np.flatnonzero(keep)
    for query, one in zip(queries, found, strict=True):
        scores = vectors.similarities(index.vectors[places], query, metric)
        order = np.lexsort((index.ids[places], -scores))[:k]
        assert one.ids.tolist() == index.ids[places][order].tolist()
        assert one.similarities.tolist() == scores[order].tolist()


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """How many queries each bfloat16 and each float32 scan was asked."""
    asked: dict[str, list[int]] = {"half": [], "float32": []}
    halved, full = half.nearest_many, scorer.nearest_many

    def by_half(index: Any, copy: Any, queries: Any, k: int, keep: Any) -> Any:
        asked["half"].append(len(queries))
        return halved(index, copy, queries, k, keep)

    def by_float32(index: Any, queries: Any, k: int, keep: Any, on: Any = None) -> Any:
        asked["float32"].append(len(queries))
        return full(index, queries, k, keep, on)

    monkeypatch.setattr(half, "nearest_many", by_half)
    monkeypatch.setattr(scorer, "nearest_many", by_float32)
    return asked


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("k", [1, 10, 60])
def test_unit_vectors_are_decided_in_half(
    metric: Metric, k: int, scans: dict[str, list[int]]
) -> None:
    assert_exact(built(unit(6000)), unit(9, seed=1), k, metric)
    assert scans["half"][0] == 9
    assert scans["float32"] == []


@pytest.mark.parametrize("k", [5999, 6000, 60_001])
def test_more_than_there_are_is_all_there_are(k: int) -> None:
    index = built(unit(6000))
    assert_exact(index, unit(2, seed=1), k)
    assert len(batch.exact_many(index, unit(2), k, Metric.IP, halved=True)[1].ids) == min(k, 6000)


def test_no_query_and_k_of_zero() -> None:
    index = built(unit(3000))
    assert batch.exact_many(index, unit(2)[:0], 5, Metric.IP, halved=True) == []
    for one in batch.exact_many(index, unit(2), 0, Metric.IP, halved=True):
        assert one.ids.tolist() == []


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.95])
def test_only_kept_rows_are_answered(share: float, scans: dict[str, list[int]]) -> None:
    keep = np.random.default_rng(3).random(7000) < share
    assert_exact(built(unit(7000)), unit(5, seed=1), 10, keep=keep)
    assert scans == {"half": [5] if share > 0.1 else [], "float32": []}


@pytest.mark.parametrize("size", [1e-42, 1e-38, 1e-30, 1e-3, 1e17, 1e30, 3.3e38])
def test_large_and_tiny_lengths(size: float, scans: dict[str, list[int]]) -> None:
    rows = (unit(3000).astype(np.float64) * size).astype(np.float32)
    rows[:50] *= np.float32(0.5)
    assert_exact(built(rows), unit(3, seed=1), 5)
    assert_exact(built(rows), (unit(3, seed=1) * 1e15).astype(np.float32), 5)


def test_numbers_that_round_to_infinity_are_left_to_float32(scans: dict[str, list[int]]) -> None:
    greatest = np.finfo(np.float32).max
    rows = unit(3000)
    queries = unit(12, seed=1)
    queries[1] = greatest
    assert_exact(built(rows), queries, 5)
    assert scans == {"half": [11], "float32": []}
    rows[7] = greatest
    assert np.isinf(half.errors(half.copy_of(built(rows), CPU), queries)).all()
    assert_exact(built(rows), queries, 5)
    assert scans == {"half": [11], "float32": [12]}


def test_sums_that_can_overflow_are_left_to_the_exact_scan(scans: dict[str, list[int]]) -> None:
    """The best row's sum passes through infinity."""
    rows = unit(3000, 3)
    rows[0] = (0, 1e15, 0)
    rows[1] = (1e19, 1.01e19, 0)
    queries = np.array([[-1e20, 1e20, 0], [1, 0, 0]], np.float32)
    index = built(rows)
    errors = half.errors(half.copy_of(index, CPU), queries)
    assert np.isinf(errors).tolist() == [True, False]
    assert_exact(index, queries, 1)
    assert scans["half"][0] == 1


def test_negative_scores_only() -> None:
    rows = -np.abs(unit(4000))
    assert_exact(built(rows), np.abs(unit(4, seed=1)), 10)
    assert_exact(built(rows), np.abs(unit(4, seed=1)), 10, keep=np.arange(4000) % 3 > 0)


def test_duplicates_are_tied_by_id(scans: dict[str, list[int]]) -> None:
    rows = unit(200)[np.random.default_rng(2).integers(0, 200, 6000)]
    assert_exact(built(rows), unit(4, seed=1), 10)
    assert scans["float32"] == []


def test_more_candidates_are_taken_where_bfloat16_sees_ties(scans: dict[str, list[int]]) -> None:
    """Ninety rows about as near as the nearest: 72 candidates prove nothing, 288 do."""
    rows, query = unit(6000, 64), unit(1, 64, seed=1)
    noise = np.random.default_rng(2).standard_normal((90, 64)) * 1e-5
    rows[100:190] = vectors.unit_rows((query + noise).astype(np.float32))
    assert_exact(built(rows), np.concatenate([query, unit(2, 64, seed=3)]), 10)
    assert scans == {"half": [3, 1], "float32": []}


def test_what_half_never_decides_is_decided_in_float32(scans: dict[str, list[int]]) -> None:
    query = unit(1, 64, seed=1)
    noise = np.random.default_rng(2).standard_normal((6000, 64)) * 1e-4
    rows = vectors.unit_rows((query + noise).astype(np.float32))
    index = built(rows)
    assert_exact(index, query, 10)
    assert scans == {"half": [1, 1], "float32": []}
    assert_exact(index, np.repeat(query, 9, axis=0), 10)
    assert scans == {"half": [1, 1, 9, 9], "float32": [9]}


def test_rows_pass_in_blocks_where_they_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half, "_space", lambda n, d, on: None)
    monkeypatch.setattr(half, "_BYTES_A_BLOCK", 2 * D * 700)
    monkeypatch.setattr(scorer, "_ROWS_A_BLOCK", 300)
    index = built(unit(6001))
    copy = half.copy_of(index, CPU)
    assert copy.rows is None
    blocks = [(at, len(part)) for at, part in half._rounded_blocks(index, copy)]
    assert blocks == [(at, min(700, 6001 - at)) for at in range(0, 6001, 700)]
    keep = np.random.default_rng(3).random(6001) < 0.7
    for k in (1, 10, 60):
        assert_exact(index, unit(5, seed=1), k)
        assert_exact(index, unit(5, seed=1), k, keep=keep)


def test_the_copy_is_made_once_and_goes_with_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = half._made
    monkeypatch.setattr(half, "_made", lambda index, on: made.append(1) or make(index, on))  # type: ignore[func-returns-value]
    gc.collect()
    before = len(half._copies)
    index = built(unit(3000))
    for seed in (1, 2, 3):
        assert_exact(index, unit(2, seed=seed), 5)
    assert made == [1]
    copy = half.copy_of(index, CPU)
    assert copy.rows is not None
    np.testing.assert_array_equal(
        copy.rows.float().numpy(), torch.from_numpy(unit(3000)).bfloat16().float().numpy()
    )
    assert len(half._copies) == before + 1
    del index
    gc.collect()
    assert len(half._copies) == before


@pytest.mark.parametrize("metric", list(Metric))
def test_the_bound_is_measured_and_holds(metric: Metric) -> None:
    rows, queries = unit(2000, 100), unit(20, 100, seed=1)
    if metric is Metric.IP:
        rows *= np.random.default_rng(4).lognormal(0, 3, (2000, 1)).astype(np.float32)
    index = built(rows)
    copy = half.copy_of(index, CPU)
    wide = rows.astype(np.float64)
    rounded = torch.from_numpy(rows).bfloat16().double().numpy()
    assert copy.residual == pytest.approx(np.linalg.norm(wide - rounded, axis=1).max(), rel=1e-12)
    assert copy.longest == pytest.approx(np.linalg.norm(rounded, axis=1).max(), rel=1e-12)
    errors = half.errors(copy, queries)
    assert (errors < 2.0**-7 * index.longest).all()
    for query, error, (scores, places) in zip(
        queries, errors, half.nearest_many(index, copy, queries, 2000, None), strict=True
    ):
        assert sorted(places.tolist()) == list(range(2000))
        off = np.abs(scores - wide[places] @ query.astype(np.float64))
        assert 0 < off.max() <= error


def test_the_bound_is_nearly_reached_where_all_rounding_goes_one_way() -> None:
    """Every number of row and query lies half a step above its neighbour: half again would
    be too small a bound."""
    number = np.float32(1 + 2.0**-8)
    rows, query = np.full((1, 64), number), np.full((1, 64), number)
    index = built(rows)
    copy = half.copy_of(index, CPU)
    ((scores, _),) = half.nearest_many(index, copy, query, 1, None)
    off = abs(64 * float(number) ** 2 - float(scores[0]))
    (error,) = half.errors(copy, query)
    assert 0.99 * error < off <= error


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_the_precision_of_the_process_changes_nothing(precision: str) -> None:
    rows, queries = unit(3000), unit(4, seed=1)
    before = torch.get_float32_matmul_precision()
    assert scorer.whole_kind() is torch.float32
    torch.set_float32_matmul_precision(precision)
    try:
        assert scorer.whole_kind() is torch.float64
        assert_exact(built(rows), queries, 5)
        full = scorer.nearest_many(built(rows), queries, 5, None, CPU)
    finally:
        torch.set_float32_matmul_precision(before)
    assert scorer.whole_kind() is torch.float32
    for query, (scores, places) in zip(queries, full, strict=True):
        assert scores.dtype == np.float32
        exact = vectors.similarities(rows[places], query, Metric.IP)
        assert scores.tolist() == exact.astype(np.float32).tolist()


def test_a_precision_that_torch_cannot_tell_is_taken_for_reduced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mixed() -> str:
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    assert scorer.whole_kind() is torch.float64


def test_queries_may_be_read_only() -> None:
    queries = unit(3, seed=1)
    queries.flags.writeable = False
    assert_exact(built(unit(3000)), queries, 5)


def test_the_callers_autocast_does_not_reach_the_scan() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert_exact(built(unit(3000)), unit(3, seed=1), 5)


def test_a_cpu_scans_in_float32_unless_told(scans: dict[str, list[int]]) -> None:
    assert not half.fast_on(CPU)
    snapshot = Snapshot.of(built(unit(half.SMALLEST)), Metric.COSINE, 1, None)
    snapshot.search_many(unit(4, seed=1), 5)
    assert scans == {"half": [], "float32": []}
    snapshot.search_many(unit(5, seed=1), 5)
    if scorer.device() == CPU:
        assert scans == {"half": [], "float32": [5]}


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 3000),
    k=st.integers(1, 40),
    d=st.integers(1, 40),
    shape=st.sampled_from(
        ["unit", "duplicates", "near ties", "large", "tiny", "negative", "mixed"]
    ),
    share=st.sampled_from([None, 0.2, 0.9]),
)
def test_adversarial_vectors_are_exact(
    seed: int, n: int, k: int, d: int, shape: str, share: float | None
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d)).astype(np.float32)
    queries = rng.standard_normal((3, d)).astype(np.float32)
    match shape:
        case "unit":
            rows = vectors.unit_rows(rows)
        case "duplicates":
            rows = rows[rng.integers(0, max(1, n // 10), n)]
        case "near ties":
            rows = (rows[:1] + rng.standard_normal((n, d)) * 1e-3).astype(np.float32)
        case "large":
            rows *= np.float32(1e17)
        case "tiny":
            rows *= np.float32(1e-37)
        case "negative":
            rows, queries = -np.abs(rows), np.abs(queries)
        case "mixed":
            rows *= (10.0 ** rng.uniform(-20, 20, (n, 1))).astype(np.float32)
    keep = None if share is None else rng.random(n) < share
    assert_exact(built(rows), queries, k, keep=keep)


def test_the_proof_needs_twice_the_error() -> None:
    scores = np.array([1.0, 0.9, 0.5, 0.3], np.float32)
    places = np.arange(4)
    assert contract.proven(scores, places, 2, 0.3) is None
    sure = contract.proven(scores, places, 2, 0.25)
    assert sure is not None
    assert sure.tolist() == [0, 1, 2]


def test_the_benchmark_runs_on_a_cpu() -> None:
    done = CliRunner().invoke(gpu.main, ["--rows", "5000", "--queries", "8", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert "recall@10 against float64 on 8 queries: 1.0000" in done.output
    assert "ids and similarities the same as float32's" in done.output
    assert "8 queries, bf16, the scan alone, streamed" in done.output
