"""Every kind of index, metric, filter and state of a store, against a float64 scan of its rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from engine import Engine, IndexSpec, vectors
from engine.arrays import Float32Array, Float64Array
from engine.index import quantised, tuning
from engine.index.flat import FlatIndex
from engine.index.quantised import QuantisedIndex
from engine.settings import Metric
from tests.words import WordEmbedder

D = 32
N = 2000
K = 10
TARGET = 0.9
MODEL = WordEmbedder(D)
FILTERS: dict[str, tuple[str | None, Callable[[int], bool]]] = {
    "no filter": (None, lambda n: True),
    "few": ("n = 7", lambda n: n == 7),
    "half": ("n < 50", lambda n: n < 50),
    "all": ("n >= 0", lambda n: True),
    "none": ("n < 0", lambda n: False),
}
TUNED: dict[str, dict[str, Any]] = {
    "flat": {"kind": "flat"},
    "quantised": {"kind": "flat"},
    "hnsw": {"kind": "hnsw"},
    "ivf": {"kind": "ivf"},
    "factory": {"factory": "PCA24,IVF24,PQ12x4fs,Refine(SQ8)"},
}
EXACT = ("flat", "quantised")


@dataclass
class Twin:
    """The rows committed, in order of insertion: a replaced one is a new one."""

    metric: Metric
    rows: dict[str, tuple[Float32Array, int]] = field(default_factory=dict)

    def add(self, ids: list[str], rows: Float32Array) -> None:
        for id_, row in zip(ids, vectors.prepare(rows, self.metric), strict=True):
            self.rows.pop(id_, None)
            self.rows[id_] = row, number(id_)

    def only(self, allowed: Callable[[int], bool]) -> tuple[list[str], Float64Array]:
        """The ids and rows that a filter leaves."""
        own = [(id_, row) for id_, (row, n) in self.rows.items() if allowed(n)]
        rows = np.array([row for _, row in own], np.float64).reshape(len(own), D)
        return [id_ for id_, _ in own], rows

    def nearest(
        self, held: tuple[list[str], Float64Array], query: Float32Array, k: int
    ) -> list[tuple[str, float]]:
        ids, rows = held
        scores = (rows * query.astype(np.float64)).sum(axis=1)
        if self.metric is Metric.COSINE:
            scores = scores.clip(-1, 1)
        best = np.argsort(-scores, kind="stable")[:k]
        return [(ids[at], float(scores[at])) for at in best]


def number(id_: str) -> int:
    return int(id_[1:]) % 100


def some(n: int, metric: Metric, seed: int) -> Float32Array:
    """Rows around sixty centres, one in twelve the same as another; for `ip` of many lengths."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(77).standard_normal((60, D))
    rows = centres[rng.integers(0, 60, n)] + 0.6 * rng.standard_normal((n, D))
    if metric is Metric.IP:
        rows *= rng.lognormal(0, 0.3, (n, 1))
    rows[::12] = rows[rng.integers(0, n, len(rows[::12]))]
    return rows.astype(np.float32)


def add(engine: Engine, twin: Twin, ids: list[str], rows: Float32Array) -> None:
    engine.add_vectors(rows, ids=ids, metadata=[{"n": number(id_)} for id_ in ids])
    twin.add(ids, rows)


def delete(engine: Engine, twin: Twin, ids: list[str]) -> None:
    assert engine.delete(ids) == len(ids)
    for id_ in ids:
        del twin.rows[id_]


def names(letter: str, *some: int) -> list[str]:
    return [f"{letter}{n}" for n in range(*some)]


def with_delta(engine: Engine, twin: Twin) -> None:
    rows = some(60, twin.metric, 5)
    rows[:9] = next(iter(twin.rows.values()))[0]
    add(engine, twin, names("d", 60), rows)


def with_dead(engine: Engine, twin: Twin) -> None:
    delete(engine, twin, names("b", 3, N, 17))


def with_both(engine: Engine, twin: Twin) -> None:
    with_delta(engine, twin)
    with_dead(engine, twin)
    delete(engine, twin, names("d", 0, 60, 7))


def with_replaced(engine: Engine, twin: Twin) -> None:
    with_delta(engine, twin)
    add(engine, twin, names("b", 0, N, 40), some(N // 40, twin.metric, 6))
    add(engine, twin, names("d", 0, 60, 5), some(12, twin.metric, 7))


STATES: dict[str, Callable[[Engine, Twin], None]] = {
    "base": lambda engine, twin: None,
    "delta": with_delta,
    "dead": with_dead,
    "both": with_both,
    "replaced": with_replaced,
}
COUNTS = {
    "base": (0, N),
    "delta": (0, 2060),
    "dead": (118, 1882),
    "both": (127, 1933),
    "replaced": (62, 2060),
}
"""Rows deleted since the base was published, and rows alive."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Searches of so few rows wait for threads longer than they work."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Metric], Path]:
    """Tuned stores of N rows, each made once."""
    made: dict[tuple[str, Metric], Path] = {}

    def store(kind: str, metric: Metric) -> Path:
        if (kind, metric) not in made:
            path = tmp_path_factory.mktemp("crossed") / "s"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(quantised, "SMALLEST", 9**9 if kind == "flat" else 1000)
                patch.setattr(tuning, "CHOOSING", 150)
                patch.setattr(tuning, "REPORTING", 150)
                patch.setattr(tuning, "_TIMED", 3)
                spec = IndexSpec(metric=metric)
                with Engine.create(path, model=MODEL, index=spec) as engine:
                    add(engine, Twin(metric), names("b", N), some(N, metric, 0))
                    engine.tune(recall=TARGET, **TUNED[kind])
            made[kind, metric] = path
        return made[kind, metric]

    return store


def pairs(engine: Engine, queries: Float32Array, **options: Any) -> list[list[tuple[str, float]]]:
    found = engine.search_vectors(queries, rerank=False, **options)
    return [[(hit.id, hit.score) for hit in one.hits] for one in found]


def assert_equal(found: list[tuple[str, float]], truth: list[tuple[str, float]]) -> None:
    assert [id_ for id_, _ in found] == [id_ for id_, _ in truth]
    np.testing.assert_allclose([s for _, s in found], [s for _, s in truth], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("kind", TUNED)
def test_the_answer_is_the_twins(
    kind: str,
    metric: Metric,
    state: str,
    stores: Callable[[str, Metric], Path],
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    shutil.copytree(stores(kind, metric), path)
    twin = Twin(metric)
    twin.add(names("b", N), some(N, metric, 0))
    with Engine.open(path, model=MODEL) as engine:
        STATES[state](engine, twin)
        stats = engine.stats()
        assert (stats.indexed, stats.dead, stats.passages) == (N, *COUNTS[state])
        assert len(twin.rows) == stats.passages
        asked = np.random.default_rng(3).choice(N, 12, replace=False)
        raw = some(N, metric, 0)[asked]
        queries = vectors.prepare(raw.copy(), metric)
        for where, allowed in FILTERS.values():
            held = twin.only(allowed)
            truths = [twin.nearest(held, query, K) for query in queries]
            exactly = pairs(engine, raw, k=K, where=where, exact=True)
            together = pairs(engine, raw, k=K, where=where)
            for row, query in enumerate(queries):
                assert_equal(exactly[row], truths[row])
                (alone,) = pairs(engine, raw[row][None], k=K, where=where)
                for found in (alone, together[row]):
                    if where is not None or kind in EXACT:
                        assert_equal(found, truths[row])
                        continue
                    ids = [id_ for id_, _ in found]
                    assert len(ids) == len(set(ids)) == K
                    every = twin.nearest(held, query, 9999)
                    assert_equal(found, [pair for pair in every if pair[0] in ids])
            every = twin.nearest(held, queries[0], 9999)
            assert len(every) == sum(allowed(n) for _, n in twin.rows.values())
            assert_equal(pairs(engine, raw[:1], k=9999, where=where)[0], every)
        with engine._store.reading() as view:
            snapshot = engine._open_index().snapshot(view)
        assert isinstance(snapshot.base, FlatIndex if kind == "flat" else QuantisedIndex)
        assert (len(snapshot.deltas) > 0) == (state not in ("base", "dead"))
        assert (snapshot.approximate is None) == (kind in EXACT)
        if snapshot.approximate is not None:
            assert stats.recall is not None
            assert recall(engine, twin, some(N, metric, 0)[::10]) >= stats.recall[1] >= TARGET


def recall(engine: Engine, twin: Twin, queries: Float32Array) -> float:
    """The share found of the nearest rows to many queries that resemble the rows."""
    held, hits = twin.only(lambda n: True), 0
    found = pairs(engine, queries, k=K)
    for query, answer in zip(vectors.prepare(queries.copy(), twin.metric), found, strict=True):
        truth = twin.nearest(held, query, K)
        hits += len({id_ for id_, _ in truth} & {id_ for id_, _ in answer})
    return hits / (K * len(queries))
