"""The index against an exact numpy twin: same ids, same scores, ties by id."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import vectors
from engine.arrays import Float32Array, IdArray
from engine.errors import CorruptionError
from engine.index import contract, flat, scorer
from engine.index.flat import FlatIndex
from engine.index.snapshot import Snapshot
from engine.settings import Metric

DIMENSION = 24


def twin(
    ids: IdArray, rows: Float32Array, query: Float32Array, k: int, metric: Metric
) -> tuple[list[int], list[float]]:
    """Float64 products, sorted by (-score, id)."""
    products = [float(np.dot(r.astype(np.float64), query.astype(np.float64))) for r in rows]
    if metric is Metric.COSINE:
        products = [min(1.0, max(-1.0, p)) for p in products]
    ranked = sorted(zip(products, ids.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1]))
    return [i for _, i in ranked[:k]], [p for p, _ in ranked[:k]]


def collection(n: int, metric: Metric, seed: int = 0, d: int = DIMENSION) -> Any:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d)).astype(np.float32)
    if metric is Metric.IP:
        rows *= rng.lognormal(0, 2, (n, 1)).astype(np.float32)
    ids = np.sort(rng.choice(10 * n + 10, n, replace=False)).astype(np.int64) + 1
    return ids, vectors.prepare(rows, metric) if n else rows


def assert_same(found: contract.Candidates, expected: tuple[list[int], list[float]]) -> None:
    assert found.ids.tolist() == expected[0]
    np.testing.assert_allclose(found.similarities, expected[1], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("n", [0, 1, 2, 38, 71, 500])
def test_flat_search_equals_the_twin(n: int, metric: Metric) -> None:
    ids, rows = collection(n, metric)
    index = FlatIndex.build([(ids, rows)], DIMENSION)
    for query in vectors.prepare(collection(5, metric, seed=9)[1], metric):
        for k in sorted({1, max(1, n - 1), max(1, n), n + 1, 10 * n + 1}):
            found = contract.exact_top(index, query, k, metric)
            assert_same(found, twin(ids, rows, query, k, metric))


def test_k_of_zero_finds_nothing() -> None:
    ids, rows = collection(5, Metric.COSINE)
    index = FlatIndex.build([(ids, rows)], DIMENSION)
    found = contract.exact_top(index, rows[0], 0, Metric.COSINE)
    assert found.ids.tolist() == []
    assert found.similarities.tolist() == []


@pytest.mark.parametrize("metric", list(Metric))
def test_torch_batches_equal_the_twin(metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer, "_ROWS_A_BLOCK", 64)
    ids, rows = collection(700, metric)
    snapshot = Snapshot.of(FlatIndex.build([(ids, rows)], DIMENSION), metric, 1, None)
    queries = vectors.prepare(collection(9, metric, seed=4)[1], metric)
    for k in (1, 7, 699, 700, 701, 7000):
        for query, found in zip(queries, snapshot.search_many(queries, k), strict=True):
            assert_same(found, twin(ids, rows, query, k, metric))


def test_torch_blocks_answer_positions_and_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer, "_ROWS_A_BLOCK", 10)
    ids, rows = collection(95, Metric.IP)
    index = FlatIndex.build([(ids, rows)], DIMENSION)
    queries = rows[:3]
    keep = np.arange(95) % 3 == 0
    for query, (scores, positions) in zip(
        queries, scorer.nearest_many(index, queries, 12, keep, torch.device("cpu")), strict=True
    ):
        expected = np.where(keep, rows @ query, -np.inf)
        assert positions.tolist() == np.argsort(-expected)[:12].tolist()
        np.testing.assert_allclose(scores, np.sort(expected)[::-1][:12], rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 63, 2000, 2016, 5001])
@pytest.mark.parametrize("block", [300, 1031, 6000])
@pytest.mark.parametrize("k", [1, 7, 31])
def test_the_greatest_of_groups_are_the_greatest(rows: int, block: int, k: int) -> None:
    rng = np.random.default_rng(rows)
    scores = rng.permutation(6 * rows).reshape(6, rows).astype(np.float32)
    scores[1] = np.sort(scores[1])
    scores[2, : rows // 2] = -np.inf
    scores[3] = -np.sort(-scores[3])
    scores[4, -3:] = 1e9 + np.arange(min(3, rows), dtype=np.float32) * 1e6
    best = scorer.Running.of(6, min(k, rows), torch.device("cpu"))
    for start in range(0, rows, block):
        part = np.ascontiguousarray(scores[:, start : start + block].T)
        best = best.joined(torch.from_numpy(part), start)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    for number, (found, places) in enumerate(best.answers()):
        wanted = scores[number, expected[number]]
        assert found.tolist() == wanted.tolist()
        sure = np.isfinite(wanted)
        assert places[sure].tolist() == expected[number][sure].tolist()


def test_what_is_no_number_is_not_overlooked() -> None:
    """It must come out, so that the exact way, which asks for finite scores, takes over."""
    scores = np.zeros((4000, 2), np.float32)
    best = scorer.Running.of(2, 3, torch.device("cpu")).joined(torch.from_numpy(scores), 0)
    scores[3999 - 25, 1] = np.nan
    first, second = best.joined(torch.from_numpy(scores), 4000).answers()
    assert first[0].tolist() == [0, 0, 0]
    assert np.isnan(second[0]).any()


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 300),
    k=st.integers(1, 40),
    shape=st.sampled_from(["duplicates", "near ties", "large norms", "tiny norms", "negative"]),
)
def test_adversarial_vectors_are_exact(seed: int, n: int, k: int, shape: str) -> None:
    """Where float32 cannot tell rows apart, the answer is still that of float64."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, 8)).astype(np.float32)
    query = rng.standard_normal(8).astype(np.float32)
    match shape:
        case "duplicates":
            rows = rows[rng.integers(0, max(1, n // 10), n)]
        case "near ties":
            rows = (rows[:1] + rng.standard_normal((n, 8)) * 1e-7).astype(np.float32)
        case "large norms":
            rows *= np.float32(1e17)
        case "tiny norms":
            rows *= np.float32(1e-30)
        case "negative":
            rows = (-np.abs(rows)).astype(np.float32)
            query = np.abs(query)
    ids = np.arange(n, dtype=np.int64) * 2 + 1
    index = FlatIndex.build([(ids, rows)], 8)
    scores = vectors.similarities(rows, query, Metric.IP)
    order = np.lexsort((ids, -scores))[:k]
    found = contract.exact_top(index, query, k, Metric.IP)
    assert found.ids.tolist() == ids[order].tolist()
    assert found.similarities.tolist() == scores[order].tolist()


def test_the_proof_takes_more_candidates_when_float32_cannot_decide() -> None:
    """A hundred rows within the error bound of the tenth: all are rescored, none is missed."""
    rng = np.random.default_rng(1)
    base = vectors.unit_rows(rng.standard_normal((1, 64)).astype(np.float32))
    near = np.repeat(base, 400, axis=0)
    near += (rng.standard_normal(near.shape) * 3e-8).astype(np.float32)
    far = vectors.unit_rows(rng.standard_normal((4000, 64)).astype(np.float32))
    rows = np.concatenate([near, far])
    ids = np.arange(len(rows), dtype=np.int64)
    asked: list[int] = []

    class Counting(FlatIndex):
        def nearest(self, query: Float32Array, k: int, keep: Any) -> Any:
            asked.append(k)
            return super().nearest(query, k, keep)

    index = Counting.build([(ids, rows)], 64)
    found = contract.exact_top(index, base[0], 10, Metric.IP)
    assert_same(found, twin(ids, rows, base[0], 10, Metric.IP))
    assert asked == [26, 104, 416]


class Perturbed(FlatIndex):
    """Answers with float32 scores as wrong as the bound allows."""

    perturbation: Any = None

    def nearest(self, query: Float32Array, k: int, keep: Any) -> Any:
        scores = self.vectors.astype(np.float64) @ query + self.perturbation
        positions = np.argsort(-scores, kind="stable")[:k]
        return scores[positions].astype(np.float32), positions


def test_the_bound_is_taken_twice() -> None:
    """The best row lies .59 E under the seventeen that are found, whose last is 1.29 E below the
    first: the first may be E too high and the best E too low."""
    query = np.array([1, 0], np.float32)
    error = vectors.float32_error(2, 1.0, 1.0)
    units = [0.0, *[-0.3] * 16, 0.4, *[-1000.0] * 100]
    rows = np.array([[unit * error, 0.0] for unit in units], np.float32)
    rows[-1] = (-1, 0)
    index = Perturbed.build([(np.arange(len(rows)), rows)], 2)
    assert index.longest == 1.0
    index.perturbation = np.zeros(len(rows))
    index.perturbation[0] = 0.99 * error
    index.perturbation[17] = -0.99 * error
    found = contract.exact_top(index, query, 1, Metric.IP)
    assert found.ids.tolist() == [17]


def test_the_error_bound_knows_underflow_and_lengths() -> None:
    assert vectors.float32_error(8, 1e-30, 1e-30) >= 8 * 2.0**-126
    assert vectors.float32_error(384, 2.0, 3.0) >= 384 * 2.0**-24 * 6
    long, short = np.full((1, 2), 5, np.float32), np.ones((1, 2), np.float32)
    index = FlatIndex.build([(np.array([1]), long), (np.array([2]), short)], 2)
    assert index.longest == pytest.approx(math.sqrt(50))


def test_fewer_kept_than_asked_is_fewer() -> None:
    ids, rows = collection(40, Metric.COSINE)
    index = FlatIndex.build([(ids, rows)], DIMENSION)
    keep = np.zeros(40, np.bool_)
    keep[[3, 9]] = True
    scores, positions = index.nearest(rows[3], 5, keep)
    assert positions.tolist() == [3, 9]
    assert len(scores) == 2


def test_cosine_is_never_above_one() -> None:
    rows = vectors.unit_rows(np.random.default_rng(2).standard_normal((500, 7)).astype(np.float32))
    own = [vectors.similarities(row[None], row, Metric.COSINE)[0] for row in rows]
    assert max(own) == 1.0
    assert max(vectors.similarities(row[None], row, Metric.IP)[0] for row in rows) > 1.0


def test_overflowing_products_fall_back_to_the_full_scan() -> None:
    rows = np.array([[1e30, 1.0], [1e30, 2.0], [3.0, 4.0]] * 60, dtype=np.float32)
    ids = np.arange(len(rows), dtype=np.int64)
    index = FlatIndex.build([(ids, rows)], 2)
    query = np.array([1e30, 1.0], dtype=np.float32)
    assert_same(
        contract.exact_top(index, query, 3, Metric.IP), twin(ids, rows, query, 3, Metric.IP)
    )


def test_partial_sums_that_overflow_hide_no_row() -> None:
    """FAISS's own sum of the best row passes through -inf, and the row is missing from its list."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 3)).astype(np.float32)
    rows[0] = (0, 1e15, 0)
    rows[1] = (1e19, 1.01e19, 0)
    query = np.array([-1e20, 1e20, 0], np.float32)
    index = FlatIndex.build([(np.arange(200), rows)], 3)
    found = contract.exact_top(index, query, 1, Metric.IP)
    assert found.ids.tolist() == [1]


def test_the_callers_autocast_does_not_reach_the_scorer() -> None:
    ids, rows = collection(300, Metric.COSINE, d=64)
    index = FlatIndex.build([(ids, rows)], 64)
    with torch.autocast("cpu", torch.bfloat16):
        ((scores, positions),) = scorer.nearest_many(index, rows[:1], 5, None)
    np.testing.assert_allclose(scores, rows[positions] @ rows[0], atol=1e-6)


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("many", [False, True], ids=["faiss", "torch"])
def test_filters_lose_nothing(share: float, metric: Metric, many: bool) -> None:
    """Base, delta, dead rows and allowed ids together equal a scan of what is left."""
    ids, rows = collection(900, metric)
    rng = np.random.default_rng(5)
    snapshot = Snapshot.of(FlatIndex.build([(ids[:600], rows[:600])], DIMENSION), metric, 1, "a")
    dead = np.sort(rng.choice(ids, 50, replace=False))
    snapshot = snapshot.advanced(2, ids[600:750], rows[600:750], dead[:20])
    snapshot = snapshot.advanced(3, ids[750:], rows[750:], dead[20:])
    allowed = np.sort(rng.choice(ids, int(share * len(ids)), replace=False))
    living = np.isin(ids, allowed) & ~np.isin(ids, dead)
    queries = vectors.prepare(collection(4, metric, seed=8)[1], metric)
    for k in (1, 10, 1000):
        if many:
            answers = snapshot.search_many(queries, k, allowed)
        else:
            answers = [snapshot.search(query, k, allowed) for query in queries]
        for query, found in zip(queries, answers, strict=True):
            assert_same(found, twin(ids[living], rows[living], query, k, metric))


def test_dead_rows_are_never_answered() -> None:
    ids, rows = collection(200, Metric.COSINE)
    snapshot = Snapshot.of(FlatIndex.build([(ids, rows)], DIMENSION), Metric.COSINE, 1, None)
    snapshot = snapshot.advanced(2, ids[:0], rows[:0], ids[::2])
    found = snapshot.search(rows[0], 200)
    assert sorted(found.ids.tolist()) == ids[1::2].tolist()


def test_file_is_faiss_own_format_and_maps_back(tmp_path: Path) -> None:
    ids, rows = collection(50, Metric.COSINE)
    blocks = [(ids[:20], rows[:20]), (ids[20:20], rows[20:20]), (ids[20:], rows[20:])]
    longest = flat.write(tmp_path / "i.faiss", blocks, 50, DIMENSION)
    assert longest == FlatIndex.build(blocks, DIMENSION).longest
    plain: Any = faiss.IndexIDMap(faiss.IndexFlatIP(DIMENSION))
    plain.add_with_ids(rows, ids)
    faiss.write_index(plain, str(tmp_path / "theirs.faiss"))
    assert (tmp_path / "i.faiss").read_bytes() == (tmp_path / "theirs.faiss").read_bytes()
    loaded = FlatIndex.load(tmp_path / "i.faiss", longest)
    assert loaded.ids.tolist() == ids.tolist()
    np.testing.assert_array_equal(loaded.vectors, rows)
    assert not loaded.vectors.flags.writeable
    assert loaded.longest == pytest.approx(1.0, abs=1e-6)
    found = contract.exact_top(loaded, rows[7], 3, Metric.COSINE)
    assert_same(found, twin(ids, rows, rows[7], 3, Metric.COSINE))


def test_an_index_of_nothing_is_written_and_read(tmp_path: Path) -> None:
    assert flat.write(tmp_path / "i.faiss", [], 0, DIMENSION) == 0.0
    assert len(FlatIndex.load(tmp_path / "i.faiss", 0.0).ids) == 0


def test_fewer_rows_than_counted_are_no_index(tmp_path: Path) -> None:
    ids, rows = collection(5, Metric.COSINE)
    with pytest.raises(CorruptionError, match="counts 6 passages and holds 5"):
        flat.write(tmp_path / "i.faiss", [(ids, rows)], 6, DIMENSION)


def test_a_file_that_is_no_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / "i.faiss").write_bytes(b"not an index")
    with pytest.raises(CorruptionError, match="cannot be read"):
        FlatIndex.load(tmp_path / "i.faiss", 1.0)
    faiss.write_index(faiss.IndexFlatL2(4), str(tmp_path / "l2.faiss"))
    with pytest.raises(CorruptionError, match="another kind"):
        FlatIndex.load(tmp_path / "l2.faiss", 1.0)


def test_many_commits_make_few_deltas() -> None:
    ids, rows = collection(1000, Metric.COSINE)
    snapshot = Snapshot.of(FlatIndex.build([], DIMENSION), Metric.COSINE, 0, None)
    copied = 0
    for generation, at in enumerate(range(0, 1000, 4), start=1):
        block = slice(at, at + 4)
        snapshot = snapshot.advanced(generation, ids[block], rows[block], ids[:0])
        sizes = [len(delta.ids) for delta in snapshot.deltas]
        assert sum(sizes) == at + 4
        assert all(large > 2 * small for large, small in pairwise(sizes))
        copied += sizes[-1]
    assert snapshot.last_id == ids[-1]
    assert copied < 8 * 1000
    for query in rows[::200]:
        assert_same(snapshot.search(query, 30), twin(ids, rows, query, 30, Metric.COSINE))
    (found,) = snapshot.search_many(rows[:1], 30)
    assert_same(found, twin(ids, rows, rows[0], 30, Metric.COSINE))
    np.testing.assert_array_equal(
        snapshot.vectors(ids[[3, 999, 500]].tolist()), rows[[3, 999, 500]]
    )


def test_vectors_by_id_come_from_base_and_delta() -> None:
    ids, rows = collection(30, Metric.COSINE)
    snapshot = Snapshot.of(FlatIndex.build([(ids[:20], rows[:20])], DIMENSION), Metric.IP, 1, None)
    snapshot = snapshot.advanced(2, ids[20:], rows[20:], ids[:0])
    wanted = [25, 3, 19, 29, 0]
    np.testing.assert_array_equal(snapshot.vectors(ids[wanted].tolist()), rows[wanted])


@pytest.mark.parametrize("d", [100, 8192, 9000, 20_000])
def test_equal_rows_have_equal_scores_wherever_they_stand(d: int) -> None:
    rng = np.random.default_rng(d)
    row, query = rng.standard_normal((2, d)).astype(np.float32)
    for n in (1, 2, 257, 512):
        rows = np.tile(row, (n, 1))
        scores = vectors.similarities(rows, query, Metric.IP)
        assert scores.tolist() == vectors.similarities(rows[:1], query, Metric.IP).tolist() * n
        norms = vectors.row_norms(rows)
        assert norms.tolist() == vectors.row_norms(rows[:1]).tolist() * n
    assert scores[0] == pytest.approx(math.fsum(map(float, row * query.astype(float))), rel=1e-9)
