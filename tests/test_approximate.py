"""Approximate indexes: what they miss is measured, and only they ever miss."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
from engine import Engine, IndexSpec, approximation, vectors
from engine.arrays import Float32Array
from engine.commands import keeping
from engine.errors import CorruptionError, InvalidInputError, StorageError
from engine.index import native, tuning
from engine.index.approximate import ApproximateIndex, Plan
from engine.index.contract import exact_top
from engine.index.flat import FlatIndex
from engine.index.snapshot import Snapshot
from engine.settings import IndexKind, Metric
from engine.types import Trial
from tests.test_index import collection
from tests.words import WordEmbedder

D = 32


def clustered(n: int, seed: int = 0) -> Float32Array:
    """Unit rows around a hundred centres: neighbours mean something."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((100, D))
    rows = centres[rng.integers(0, 100, n)] + 0.5 * rng.standard_normal((n, D))
    return vectors.unit_rows(rows.astype(np.float32))


def made(kind: str, exact: FlatIndex, ids: Any, rows: Float32Array, width: int) -> ApproximateIndex:
    factory = native.graphs()[0] if kind == "hnsw" else native.cells(len(rows), D)
    return ApproximateIndex(exact, native.build(factory, rows), ids, Plan(factory, width, 50))


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_answers_are_rows_with_their_own_scores_in_order(kind: str, tmp_path: Path) -> None:
    rows, ids = clustered(4000), np.arange(4000, dtype=np.int64) * 3 + 5
    exact = FlatIndex.build([(ids, rows)], D)
    index = made(kind, exact, ids, rows, 64)
    native.save(index._native, tmp_path / "x")
    loaded = ApproximateIndex.load(tmp_path / "x", exact, ids, index.plan)
    hits = 0
    queries = clustered(50, seed=1)
    for query, found, again in zip(
        queries,
        index.search(queries, 10, Metric.COSINE, None),
        loaded.search(queries, 10, Metric.COSINE, None),
        strict=True,
    ):
        assert again.ids.tolist() == found.ids.tolist()
        assert len(found.ids) == 10
        at = np.searchsorted(ids, found.ids)
        scores = vectors.similarities(rows[at], query, Metric.COSINE)
        assert found.similarities.tolist() == scores.tolist()
        assert vectors.best_first(found.similarities, found.ids).tolist() == list(range(10))
        truth = exact_top(exact, query, 10, Metric.COSINE)
        hits += len(set(truth.ids.tolist()) & set(found.ids.tolist()))
    assert hits >= 480


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_rows_that_went_and_rows_that_came(kind: str) -> None:
    """The index is of ids 0 to 2999; half of these are gone, and 500 later ones are there."""
    rows, ids = clustered(3500), np.arange(3500, dtype=np.int64)
    held = np.concatenate([ids[:3000:2], ids[3000:]])
    exact = FlatIndex.build([(held, rows[held])], D)
    index = made(kind, exact, ids[:3000], rows[:3000], 256)
    keep = held % 5 > 0
    for query in clustered(20, seed=2):
        for mask in (None, keep):
            (found,) = index.search(query[None], 20, Metric.COSINE, mask)
            truth = exact_top(exact, query, 20, Metric.COSINE, keep=mask)
            assert set(found.ids.tolist()) <= set(held.tolist())
            later = [i for i in truth.ids.tolist() if i >= 3000]
            assert set(later) <= set(found.ids.tolist()), "later rows are compared exactly"
            assert len(set(found.ids.tolist()) & set(truth.ids.tolist())) >= 14
            assert mask is None or all(i % 5 for i in found.ids.tolist())


def test_too_few_proposals_compare_every_row() -> None:
    rows, ids = clustered(2000), np.arange(2000, dtype=np.int64)
    exact = FlatIndex.build([(ids, rows)], D)
    index = made("ivf", exact, ids, rows, 1)
    query = clustered(1, seed=3)[0]
    for k in (500, 2000, 9000):
        (found,) = index.search(query[None], k, Metric.COSINE, None)
        truth = exact_top(exact, query, k, Metric.COSINE)
        assert found.ids.tolist() == truth.ids.tolist()
    none = np.zeros(2000, np.bool_)
    assert index.search(query[None], 5, Metric.COSINE, none)[0].ids.tolist() == []
    nothing = FlatIndex.build([], D)
    empty = ApproximateIndex(nothing, index._native, ids, index.plan)
    assert empty.search(query[None], 5, Metric.COSINE, None)[0].ids.tolist() == []


def test_only_searches_of_the_base_without_a_filter_may_miss() -> None:
    ids, rows = collection(2000, Metric.COSINE, d=D)
    base = FlatIndex.build([(ids[:1500], rows[:1500])], D)
    index = made("ivf", base, ids[:1500], rows[:1500], 1)
    snapshot = Snapshot.of(base, Metric.COSINE, 1, "a", index)
    snapshot = snapshot.advanced(2, ids[1500:], rows[1500:], ids[:10])
    plain = Snapshot.of(base, Metric.COSINE, 1, "a")
    plain = plain.advanced(2, ids[1500:], rows[1500:], ids[:10])
    missed = 0
    for query in rows[::100] * np.float32(0.5) + rows[1::100] * np.float32(0.5):
        truth = plain.search(query, 10).ids.tolist()
        assert snapshot.search(query, 10, exact=True).ids.tolist() == truth
        assert snapshot.search_many(query[None], 10, exact=True)[0].ids.tolist() == truth
        allowed = ids[::2]
        some = plain.search(query, 10, allowed).ids.tolist()
        assert snapshot.search(query, 10, allowed).ids.tolist() == some
        assert snapshot.search_many(query[None], 10, allowed)[0].ids.tolist() == some
        found = snapshot.search(query, 10).ids.tolist()
        assert found == snapshot.search_many(query[None], 10)[0].ids.tolist()
        assert not set(found) & set(ids[:10].tolist())
        late = [i for i in truth if i >= ids[1500]]
        assert set(late) <= set(found)
        missed += len(set(truth) - set(found))
    assert missed > 0, "one cell of many: the test sees the approximate way"


def test_factories() -> None:
    assert native.graphs() == ("HNSW16_SQ8", "HNSW16")
    assert native.cells(100_000, 384) == "IVF1264,PQ96x4fs"
    assert native.cells(10_000, 384) == "IVF256,PQ96x4fs"
    assert native.cells(10_000, 30) == "IVF256,Flat"
    assert native.cells(300, 384) == "IVF7,Flat"
    rows = clustered(200)
    for factory, said in (("IDMap,Flat", "ids of its own"), ("nonsense", "FAISS makes no index")):
        with pytest.raises(InvalidInputError, match=said):
            native.build(factory, rows)
    with pytest.raises(InvalidInputError, match="FAISS makes no index"):
        native.build("IVF500,Flat", rows)


def test_wilsons_interval_by_hand() -> None:
    """Of 100 draws, 90: (0.8256, 0.9448), as in Newcombe (1998)."""
    low, share, high = tuning.interval(0.9, 100)
    assert (round(low, 4), share, round(high, 4)) == (0.8256, 0.9, 0.9448)
    assert tuning.interval(1.0, 1000)[0] == pytest.approx(0.99617, abs=1e-5)
    assert tuning.interval(0.0, 10)[0] == 0.0


def trial(recall: float, ms: float, size: int = 10) -> Trial:
    return Trial("x", 1, 1, recall, recall, recall, 100, ms, size, 0.0)


def test_choice_and_front() -> None:
    slow, fast, poor = trial(1.0, 9.0, 5), trial(0.99, 2.0, 50), trial(0.5, 1.0)
    worse = trial(0.98, 3.0)
    every = [slow, fast, poor, worse]
    unsure = Trial("x", 1, 1, 0.99, 0.97, 1.0, 100, 0.5, 1, 0.0)
    assert tuning.good_enough([*every, unsure], 0.98, None) == [fast, worse, slow]
    assert tuning.good_enough(every, 0.98, 20) == [worse, slow]
    assert tuning.good_enough(every, 0.999, 4) == []
    assert tuning.pareto(every) == [poor, fast, slow]


def test_recall_measured_is_recall_counted() -> None:
    rows, ids = clustered(3000), np.arange(3000, dtype=np.int64) + 1
    exact = FlatIndex.build([(ids, rows)], D)
    sample, held = tuning.draw(exact, Metric.COSINE)
    again, _ = tuning.draw(exact, Metric.COSINE)
    assert sample.places.tolist() == again.places.tolist()
    assert sorted(sample.places.tolist()) == np.flatnonzero(held).tolist()
    products = rows.astype(np.float64) @ rows.astype(np.float64).T
    for row, at, truth in zip(sample.rows[:20], sample.places[:20], sample.truth[:20], strict=True):
        np.testing.assert_array_equal(row, rows[at])
        order = [int(i) + 1 for i in np.argsort(-products[at]) if not held[i]][:10]
        assert truth == frozenset(order)
    choosing, reporting = sample.split()
    assert (len(choosing.rows), len(reporting.rows)) == (200, 200) == (tuning.choosing(3000),) * 2
    assert not set(choosing.places.tolist()) & set(reporting.places.tolist())
    others = np.flatnonzero(~held)
    built = native.build(native.cells(2600, D), rows, others)
    index = ApproximateIndex(exact, built, ids[others], Plan("", 1, 50), held)
    found = tuning.measure(index, reporting, Metric.COSINE, 7, 3.0)
    counted = 0
    for row, truth in zip(reporting.rows, reporting.truth, strict=True):
        (answer,) = index.search(row[None], 10, Metric.COSINE, None)
        assert not held[np.searchsorted(ids, answer.ids)].any()
        counted += len(set(answer.ids.tolist()) & truth)
    assert found.recall == pytest.approx(counted / 2000, abs=1e-12)
    assert (found.sample, found.bytes, found.seconds) == (200, 7, 3.0)
    assert 0 < found.low < found.recall < found.high < 1
    wider = [one.recall for one in tuning.tried(index, choosing, Metric.COSINE, 7, 3.0)]
    assert max(wider) > min(wider) > 0.5
    (all_,) = index.search(rows[:1], 2600, Metric.COSINE, None)
    assert sorted(all_.ids.tolist()) == ids[others].tolist(), "comparing every row but those"


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_recall_measured_is_recall_of_new_queries(kind: str, tmp_path: Path) -> None:
    """Of random vectors the neighbours are hardest to find for a query that is not among them."""
    rng = np.random.default_rng(4)
    rows = vectors.unit_rows(rng.standard_normal((6000, 64), dtype=np.float32))
    queries = vectors.unit_rows(rng.standard_normal((500, 64), dtype=np.float32))
    with Engine.create(tmp_path / "s", model=WordEmbedder(64)) as engine:
        engine.add_vectors(rows, ids=[str(n) for n in range(6000)])
        chosen = engine.tune(kind=kind, recall=0.8).chosen
        found = engine.search_vectors(queries, rerank=False)
        truth = engine.search_vectors(queries, rerank=False, exact=True)
    pairs = zip(found, truth, strict=True)
    shared = sum(len({h.id for h in a.hits} & {h.id for h in b.hits}) for a, b in pairs)
    assert chosen.low - 0.01 < shared / 5000
    assert shared / 5000 == pytest.approx(chosen.recall, abs=0.04)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Engine]:
    with Engine.create(tmp_path / "s", model=WordEmbedder(D)) as engine:
        rows = clustered(3000)
        engine.add_vectors(rows, ids=[str(n) for n in range(3000)], metadata=META)
        yield engine


META = [{"n": n} for n in range(3000)]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The factory strings of the indexes that are built."""
    found: list[str] = []
    plain = native.build
    monkeypatch.setattr(native, "build", lambda f, *rows: found.append(f) or plain(f, *rows))  # type: ignore[func-returns-value]
    return found


def ids_of(engine: Engine, query: Float32Array, **options: Any) -> list[str]:
    return [hit.id for hit in engine.search_vectors(query[None], **options)[0].hits]


def files(path: Path) -> list[str]:
    return sorted(file.name.split("-")[0] for file in (path / "s" / "index").iterdir())


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_a_tuned_store(store: Engine, tmp_path: Path, kind: str) -> None:
    assert (store.stats().kind, store.stats().recall) == ("auto", None)
    report = store.tune(kind=kind, recall=0.9)
    assert report.chosen.low >= 0.9 == report.target
    assert report.chosen.factory.startswith({"hnsw": "HNSW", "ivf": "IVF"}[kind])
    stats = store.stats()
    assert (stats.kind, stats.recall_target, stats.recall_sample) == (kind, 0.9, 200)
    ids = np.load(next((tmp_path / "s" / "index").glob("ids-*.npy")))
    assert sorted(ids.tolist()) == list(range(1, 3001)), "those held out were added"
    (file,) = (tmp_path / "s" / "index").glob(f"{kind}-*")
    assert report.chosen.bytes == file.stat().st_size
    assert stats.recall == (report.chosen.recall, report.chosen.low, report.chosen.high)
    assert {kind, "ids", "index"} <= set(files(tmp_path))
    queries = clustered(100, seed=5)
    truth = [ids_of(store, query, exact=True) for query in queries]
    found = [ids_of(store, query) for query in queries]
    share = sum(len(set(a) & set(b)) for a, b in zip(truth, found, strict=True)) / 1000
    assert share >= 0.9
    for query in queries[:5]:
        some = ids_of(store, query, where="n < 500")
        assert some == ids_of(store, query, where="n < 500", exact=True)
        assert all(int(i) < 500 for i in some)
    assert store.verify().problems == ()
    with Engine.open(tmp_path / "s", model=WordEmbedder(D)) as other:
        assert [ids_of(other, query) for query in queries] == found
        store.delete([found[0][0]])
        store.add_vectors(queries[:1], ids=["new"])
        assert ids_of(other, queries[0])[0] == "new"
        assert found[0][0] not in ids_of(other, queries[0])
    store.tune(kind="flat")
    assert (store.stats().kind, store.stats().recall) == ("flat", None)
    flat = [ids_of(store, query) for query in queries]
    assert flat == [ids_of(store, query, exact=True) for query in queries]
    assert kind not in files(tmp_path)


def test_no_index_is_used_that_is_not_good_enough(
    store: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = store.tune(kind="hnsw", recall=0.9, memory=10)
    assert report.chosen.factory == "exact"
    assert "answers stay exact" in caplog.text
    assert store.stats().recall is None
    monkeypatch.setattr(tuning, "interval", lambda share, n: (0.0, share, 1.0))
    assert store.tune(kind="ivf", recall=0.9).chosen.factory == "exact"
    assert store.stats().recall is None


def test_what_was_refused_is_not_tried_again_at_every_publication(
    store: Engine, built: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    store.tune(kind="hnsw", recall=0.9, memory=10)
    assert built == ["HNSW16_SQ8"]
    store.rebuild()
    assert built == ["HNSW16_SQ8"]
    store.tune(kind="hnsw", recall=0.999)
    assert "cannot be told from a sample of 200 rows, only up to 0.9812" in caplog.text
    assert built == ["HNSW16_SQ8"], "no index could be certain of so much"
    store.add_vectors(clustered(1600, seed=3), ids=[f"m{n}" for n in range(1600)])
    store.rebuild()
    assert store.stats().recall is None


def test_a_failure_of_the_approximate_index_costs_nothing_else(
    store: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.tune(kind="hnsw", recall=0.9)
    store.delete([str(n) for n in range(1500)])

    def full(index: Any, path: Path) -> None:
        raise OSError("no room")

    monkeypatch.setattr(native, "save", full)
    store.add_vectors(clustered(300, seed=3), ids=[f"m{n}" for n in range(300)])
    assert store.stats().delta == 0, "the exact index was published"
    assert "no approximate index could be made: no room" in caplog.text
    assert store.stats().recall is None
    with pytest.raises(StorageError, match="cannot be written"):
        store.tune(kind="ivf", recall=0.5)
    assert (store.stats().kind, store.stats().recall_target) == ("hnsw", 0.9), "as it was"


def test_rows_past_the_squares_of_float32(tmp_path: Path) -> None:
    """FAISS's k-means would abort the process."""
    spec = IndexSpec(metric=Metric.IP)
    for factor in (1e20, 1e-25):
        rows = np.random.default_rng(0).standard_normal((2000, D)).astype(np.float32)
        rows *= np.float32(factor)
        with Engine.create(tmp_path / f"{factor}", model=WordEmbedder(D), index=spec) as engine:
            engine.add_vectors(rows, ids=[str(n) for n in range(2000)])
            report = engine.tune(kind="ivf", recall=0.5)
            assert report.chosen.recall > 0.5
            query = rows[7] / np.float32(factor)
            wide = rows.astype(np.float64) @ query.astype(np.float64)
            assert ids_of(engine, query, k=1) == [str(int(np.argmax(wide)))]


def test_other_engines_follow_a_tune(store: Engine, tmp_path: Path) -> None:
    with Engine.open(tmp_path / "s", model=WordEmbedder(D)) as other:
        query = clustered(1, seed=9)[0]
        ids_of(other, query)
        for kind in ("ivf", "hnsw", "flat"):
            store.tune(kind=kind, recall=0.5)
            ids_of(other, query)
            assert other.stats().kind == kind
            snapshot = other._open_index()._snapshot
            assert snapshot is not None
            assert (snapshot.approximate is None) == (other.stats().recall is None)
            assert (snapshot.approximate is None) == (kind == "flat")
        store.tune(kind="hnsw", recall=0.5)
        other.add_vectors(clustered(300, seed=3), ids=[f"m{n}" for n in range(300)])
        assert store.stats().kind == "hnsw"
        assert store.stats().recall is not None


def test_more_answers_are_looked_for_further(store: Engine) -> None:
    for kind in ("hnsw", "ivf"):
        store.tune(kind=kind, recall=0.9)
        for k in (10, 50, 200):
            right = 0
            for query in clustered(30, seed=6):
                found = ids_of(store, query, k=k, rerank=False)
                truth = ids_of(store, query, k=k, rerank=False, exact=True)
                assert len(found) == k
                right += len(set(found) & set(truth))
            assert right / (30 * k) >= 0.85, (kind, k)
        assert len(ids_of(store, query, k=10**30, rerank=False)) == 3000


def test_auto_takes_the_fastest(store: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    report = store.tune(recall=0.9)
    assert report.chosen.recall >= 0.9
    names = {one.factory[:3] for one in report.trials}
    assert names <= {"exa", "HNS", "IVF"}
    assert report.trials == tuple(sorted(report.trials, key=lambda one: one.milliseconds))
    monkeypatch.setattr(approximation, "EXACT_ROWS", 2000)
    store.rebuild()


def test_auto_is_exact_until_it_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximation, "EXACT_ROWS", 2500)
    with Engine.create(tmp_path / "s", model=WordEmbedder(D)) as engine:
        engine.add_vectors(clustered(2500), ids=[str(n) for n in range(2500)])
        assert files(tmp_path) == ["index"]
        engine.add_vectors(clustered(500, seed=1), ids=[f"m{n}" for n in range(500)])
        stats = engine.stats()
        assert (stats.recall is None) == (files(tmp_path) == ["index"])
        assert stats.kind == "auto"


def test_few_rows_and_wrong_wishes(tmp_path: Path) -> None:
    spec = IndexSpec(kind=IndexKind.HNSW, recall=0.5)
    with Engine.create(tmp_path / "s", model=WordEmbedder(D), index=spec) as engine:
        assert engine.tune().chosen.factory == "exact"
        engine.add(["a dog"])
        assert (engine.stats().kind, engine.stats().recall_target) == ("auto", 0.5)
        assert engine.tune(kind="ivf").chosen.factory == "exact"
        wrong: dict[str, Any]
        for wrong, said in (
            ({"kind": "tree"}, "unknown kind of index 'tree'"),
            ({"recall": 0}, "recall must be a share"),
            ({"recall": 1.5}, "recall must be a share"),
            ({"memory": 0}, "memory must be a whole number"),
        ):
            with pytest.raises(InvalidInputError, match=said):
                engine.tune(**wrong)
    with pytest.raises(InvalidInputError, match="recall must be a share"):
        IndexSpec(recall=float("nan"))


def test_damaged_files_come_back(
    store: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.tune(kind="hnsw", recall=0.9)
    for pattern in ("hnsw*", "ids*"):
        (path,) = (tmp_path / "s" / "index").glob(pattern)
        path.write_bytes(path.read_bytes()[:-9] + b"123456789")
        query = clustered(1, seed=9)[0]
        with Engine.open(tmp_path / "s", model=WordEmbedder(D)) as other:
            assert len(other.verify().problems) == 1
            assert ids_of(other, query) == ids_of(store, query, exact=True)
            assert f"{path.name} is damaged" in caplog.text
            assert other.verify().problems == ()
            assert other.stats().recall is not None
    exact = FlatIndex.build([], D)
    with pytest.raises(CorruptionError, match="not that of its rows"):
        rows = clustered(100)
        ApproximateIndex(exact, native.build("HNSW32", rows), exact.ids, Plan("", 1, 1))
    (tmp_path / "x").write_bytes(b"nothing")
    with pytest.raises(CorruptionError, match="cannot be read"):
        ApproximateIndex.load(tmp_path / "x", exact, exact.ids, Plan("", 1, 1))


def test_tuning_on_the_command_line(
    store: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ["--store", str(tmp_path / "s")]
    assert cli.run(["tune", "--kind", "hnsw", "--recall", "0.9", "--json", *path]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["chosen"]["factory"] == "HNSW16_SQ8"
    assert cli.run(["tune", "--kind", "hnsw", "--recall", "0.9", "--table", *path]) == 0
    assert "-> HNSW16_SQ8" in capsys.readouterr().out
    assert cli.run(["status", "--table", *path]) == 0
    assert "approximate: recall@10" in " ".join(capsys.readouterr().out.split())
    assert cli.run(["tune", "--memory", "10KB", *path]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["factory"] == "exact"
    for size in ("much", "9" * 400, "5i", "0", "-1GB"):
        assert cli.run(["tune", "--memory", size, *path]) == 2
    assert keeping._bytes("1.5 GiB") == 3 << 29
    assert keeping._bytes("500") == 500
    assert cli.run(["tune", "--recall", "2", *path]) == 2


def test_a_graph_over_the_vectors_where_bytes_are_too_rough(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One far longer row takes all of a byte's levels for itself."""
    rows = clustered(3000)
    rows[0] *= 3000
    spec = IndexSpec(metric=Metric.IP)
    with Engine.create(tmp_path / "s", model=WordEmbedder(D), index=spec) as engine:
        engine.add_vectors(rows, ids=[str(n) for n in range(3000)])
        report = engine.tune(kind="hnsw", recall=0.9)
        assert report.chosen.factory == "HNSW16"
        (file,) = (tmp_path / "s" / "index").glob("hnsw*")
        assert engine.verify().problems == ()
        (found,) = engine.search_vectors(rows[5:6], k=3, rerank=False)
        assert found.hits[0].id in ("0", "5")
    assert file.stat().st_size > 3000 * D * 4


def test_what_the_recalls_of_queries_are_worth() -> None:
    """Misses spread over the queries are many draws; all in a few queries, one a query."""
    spread = [0.9] * 200 + [1.0] * 800
    lumped = [0.0] * 20 + [1.0] * 980
    assert sum(spread) == pytest.approx(sum(lumped))
    mean, square = 980 / 1001, (200 * 0.81 + 800) / 1001
    by_hand = 1001 * mean * (1 - mean) / (square - mean**2)
    assert tuning.draws(spread) == pytest.approx(by_hand) == pytest.approx(8040.82)
    assert tuning.draws(lumped) == pytest.approx(1001)
    assert tuning.draws([0.9] * 500 + [1.0] * 500) == 10_000
    assert tuning.draws([1.0] * 50) == pytest.approx(51)
    lows = [
        tuning.interval(sum(parts) / 200, tuning.draws(parts))[0]
        for parts in ([0.5] * 9 + [1.0] * 191, [0.5, 0.9] + [1.0] * 198, [1.0] * 200)
    ]
    assert lows == sorted(lows), "who misses more is not held for surer"
    assert tuning.interval(0.98, 10_000)[0] > tuning.interval(0.98, 1000)[0]
