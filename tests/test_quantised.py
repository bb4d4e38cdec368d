"""The int8 copy: its bound holds, and what it finds is what a float64 scan finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Engine, vectors
from engine.arrays import Float32Array, IdArray
from engine.errors import CorruptionError
from engine.index import contract, quantised
from engine.index.flat import FlatIndex
from engine.index.quantised import QuantisedIndex
from engine.index.snapshot import Snapshot
from engine.settings import Metric
from tests.test_index import assert_same, collection, twin
from tests.words import WordEmbedder

DIMENSIONS = [1, 7, 24, 32, 64, 100, 384, 1056]
"""FAISS takes other ways where the dimension is a multiple of 16 or of 32, and past 1,040 its sums
are not exact."""


def quantise(path: Path, ids: IdArray, rows: Float32Array) -> QuantisedIndex:
    flat = FlatIndex.build([(ids, rows)], rows.shape[1])
    return QuantisedIndex.load(path, flat, quantised.write(path, rows))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("copies") / "copy.faiss"


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_answer_is_the_twins(
    place: Path, metric: Metric, d: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantised, "_ROWS_A_THREAD", 2500 // threads)
    monkeypatch.setattr("os.cpu_count", lambda: threads)
    ids, rows = collection(2500, metric, d=d)
    index = quantise(place, ids, rows)
    for query in vectors.prepare(collection(4, metric, seed=9, d=d)[1], metric):
        exact = rows.astype(np.float64) @ query.astype(np.float64)
        scores, positions = index.nearest(query, 2500, None)
        assert sorted(positions.tolist()) == list(range(2500))
        assert float(np.abs(scores - exact[positions]).max()) <= index.error(query)
        keep = np.arange(2500) % 3 > 0
        for k in (1, 10, 70):
            assert_same(
                contract.exact_top(index, query, k, metric),
                twin(ids, rows, query, k, metric),
            )
            assert_same(
                contract.exact_top(index, query, k, metric, keep=keep),
                twin(ids[keep], rows[keep], query, k, metric),
            )


@pytest.mark.parametrize("d", [100, 384])
def test_the_copy_alone_proves_what_is_nearest(
    place: Path, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, rows = collection(2500, Metric.COSINE, d=d)
    index = quantise(place, ids, rows)
    monkeypatch.setattr(FlatIndex, "nearest", None)
    for query in rows[::500] * np.float32(0.9) + rows[1::500] * np.float32(0.5):
        found = contract.exact_top(index, query, 10, Metric.IP)
        assert_same(found, twin(ids, rows, query, 10, Metric.IP))


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("share", [0.0, 0.002, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("threads", [1, 2])
def test_copy_deltas_dead_and_allowed_together(
    place: Path, share: float, metric: Metric, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantised, "_ROWS_A_THREAD", 2000 // threads)
    monkeypatch.setattr("os.cpu_count", lambda: threads)
    ids, rows = collection(2400, metric, d=32)
    rng = np.random.default_rng(5)
    dead = np.sort(rng.choice(ids, 150, replace=False))
    snapshot = Snapshot.of(quantise(place, ids[:2000], rows[:2000]), metric, 1, "a")
    snapshot = snapshot.advanced(2, ids[2000:2300], rows[2000:2300], dead[:20])
    snapshot = snapshot.advanced(3, ids[2300:], rows[2300:], dead[20:])
    allowed = np.sort(rng.choice(ids, int(share * len(ids)), replace=False))
    living = np.isin(ids, allowed) & ~np.isin(ids, dead)
    for query in vectors.prepare(collection(3, metric, seed=8, d=32)[1], metric):
        for k in (1, 10, 3000):
            found = snapshot.search(query, k, allowed)
            expected = twin(ids[living], rows[living], query, k, metric)
            assert found.ids.tolist() == expected[0]
            np.testing.assert_allclose(found.similarities, expected[1], rtol=1e-9, atol=1e-9)


SHAPES = ["plain", "duplicates", "near ties", "large", "tiny", "negative", "one large row", "zeros"]


@settings(deadline=None, max_examples=120)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 1500),
    k=st.integers(1, 30),
    d=st.sampled_from([3, 8, 32]),
    shape=st.sampled_from(SHAPES),
    share=st.sampled_from([None, 0.001, 0.1, 0.9]),
)
def test_adversarial_rows_are_exact(
    place: Path, seed: int, n: int, k: int, d: int, shape: str, share: float | None
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d)).astype(np.float32)
    query = rng.standard_normal(d).astype(np.float32)
    match shape:
        case "duplicates":
            rows = rows[rng.integers(0, max(1, n // 10), n)]
        case "near ties":
            rows = (rows[:1] + rng.standard_normal((n, d)) * 1e-7).astype(np.float32)
        case "large":
            rows *= np.float32(1e30)
            query *= np.float32(1e7)
        case "tiny":
            rows *= np.float32(1e-38)
        case "negative":
            rows = (-np.abs(rows)).astype(np.float32)
            query = np.abs(query)
        case "one large row":
            rows[n // 2] *= np.float32(1e6)
        case "zeros":
            rows[rng.random(n) < 0.5] = 0
            query *= rng.integers(0, 2)
    ids = np.arange(n, dtype=np.int64) * 2 + 1
    index = quantise(place, ids, rows)
    keep = None if share is None else rng.random(n) < share
    held = slice(None) if keep is None else keep
    found = contract.exact_top(index, query, k, Metric.IP, keep=keep)
    expected = twin(ids[held], rows[held], query, k, Metric.IP)
    assert found.ids.tolist() == expected[0]
    np.testing.assert_allclose(found.similarities, expected[1], rtol=1e-12)


@pytest.mark.parametrize("d", [16, 64, 100])
def test_the_file_is_faiss_own(place: Path, d: int) -> None:
    rows = collection(300, Metric.IP, d=d)[1]
    bounds = quantised.write(place, rows)
    theirs: Any = faiss.IndexScalarQuantizer(
        d, faiss.ScalarQuantizer.QT_8bit_direct_signed, faiss.METRIC_INNER_PRODUCT
    )
    theirs.add(np.rint(rows.astype(np.float64) * bounds.scale).astype(np.float32))
    faiss.write_index(theirs, str(place.with_name("theirs")))
    assert place.read_bytes() == place.with_name("theirs").read_bytes()
    assert bounds.scale == 127 / float(np.abs(rows).max())
    whole = np.rint(rows.astype(np.float64) * bounds.scale)
    lost = np.linalg.norm(rows - whole / bounds.scale, axis=1).max()
    assert bounds.residual == pytest.approx(lost, rel=1e-9)
    assert bounds.longest == pytest.approx(np.linalg.norm(whole, axis=1).max(), rel=1e-12)


def test_a_copy_of_other_rows_is_refused(place: Path) -> None:
    ids, rows = collection(50, Metric.COSINE)
    bounds = quantised.write(place, rows[:49])
    with pytest.raises(CorruptionError, match="another kind"):
        QuantisedIndex.load(place, FlatIndex.build([(ids, rows)], rows.shape[1]), bounds)
    place.write_bytes(b"no index")
    with pytest.raises(CorruptionError, match="cannot be read"):
        QuantisedIndex.load(place, FlatIndex.build([(ids, rows)], rows.shape[1]), bounds)


def test_batches_of_a_copied_index_are_exact(place: Path) -> None:
    ids, rows = collection(3000, Metric.COSINE, d=32)
    snapshot = Snapshot.of(quantise(place, ids, rows), Metric.COSINE, 1, None)
    queries = vectors.prepare(collection(5, Metric.COSINE, seed=3, d=32)[1], Metric.COSINE)
    for query, found in zip(queries, snapshot.search_many(queries, 12), strict=True):
        assert_same(found, twin(ids, rows, query, 12, Metric.COSINE))


def test_stores_have_a_copy_once_they_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quantised, "SMALLEST", 300)
    directory = tmp_path / "s" / "index"
    model = WordEmbedder(64)

    def files() -> list[str]:
        return sorted(path.name for path in directory.iterdir())

    with Engine.create(tmp_path / "s", model=model) as engine:
        engine.add([f"w{i % 7} x{i % 11} y{i}" for i in range(299)])
        assert files() == ["index-1.faiss"]
        engine.add([f"w{i % 7} x{i % 11} z{i}" for i in range(40)])
        engine.rebuild()
        assert files() == ["copy-2.faiss", "index-2.faiss"]
        expected = engine.search("w3 x4 z4", k=20).hits
    for name, what in (("copy-2.faiss", "damaged"), ("copy-2.faiss", "missing")):
        data = (directory / name).read_bytes()
        if what == "damaged":
            (directory / name).write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
        else:
            (directory / name).unlink()
        with Engine.open(tmp_path / "s", model=model) as engine:
            assert len(engine.verify().problems) == 1
            assert engine.search("w3 x4 z4", k=20).hits == expected
            assert f"{name} is {what}" in caplog.text
            assert engine.verify().problems == (), "it was put back"
    with Engine.open(tmp_path / "s", model=model) as engine:
        assert engine.search("w3 x4 z4", k=20).hits == expected


def test_the_smallest_numbers_of_float32_are_within_the_bound(place: Path) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((2500, 2)) * 1e-22).astype(np.float32)
    ids = np.arange(2500, dtype=np.int64) + 1
    index = quantise(place, ids, rows)
    for _ in range(200):
        q = rng.standard_normal(2)
        fifth = np.sort(rows.astype(np.float64) @ q)[::-1][4]
        query = (q * (5.5 * 2.0**-149 / fifth)).astype(np.float32)
        exact = rows.astype(np.float64) @ query.astype(np.float64)
        scores, positions = index.nearest(query, 2500, None)
        assert float(np.abs(scores - exact[positions]).max()) <= index.error(query)
        found = contract.exact_top(index, query, 5, Metric.IP)
        order = vectors.best_first(exact, ids)[:5]
        assert found.ids.tolist() == ids[order].tolist()


def test_past_1040_dimensions_the_sums_own_error_is_in_the_bound(place: Path) -> None:
    rows = np.full((40, 4096), 0.5, np.float32)
    rows[::2] *= np.float32(0.999)
    index = quantise(place, np.arange(40, dtype=np.int64), rows)
    query = np.full(4096, 0.25, np.float32)
    exact = rows.astype(np.float64) @ query.astype(np.float64)
    scores, positions = index.nearest(query, 40, None)
    assert float(np.abs(scores - exact[positions]).max()) <= index.error(query)
    whole, t = quantised._rounded(query)
    bounds = index._bounds
    summed = vectors.float32_error(4096, float(np.linalg.norm(whole)), bounds.longest)
    assert index.error(query) >= summed / t / bounds.scale
