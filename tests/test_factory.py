"""Indexes of FAISS factory strings: any that ranks by inner products, under the same terms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import sqlalchemy as sa

import cli
from engine import Engine, IndexSpec
from engine.errors import InvalidInputError
from engine.index import native, tuning
from engine.index.approximate import ApproximateIndex, Plan
from engine.index.contract import exact_top
from engine.index.flat import FlatIndex
from engine.settings import IndexKind, Metric
from engine.storage.records import Refused
from engine.storage.schema import settings
from tests.test_approximate import D, clustered, files, ids_of
from tests.test_index import collection
from tests.words import WordEmbedder

CELLS = (1, 2, 4, 8, 16, 32)
GRAPH = (64, 96, 128, 192, 256, 512, 1024)
STRINGS = {
    "HNSW16": (16, 24, 32, 48, *GRAPH),
    "HNSW16,SQ8": GRAPH,
    "L2norm,HNSW16": GRAPH,
    "IVF32,Flat": CELLS,
    "IVF32_HNSW16,SQ8": CELLS,
    "PCA16,IVF32,Flat": CELLS,
    "IVF32,PQ8x4fs,RFlat": CELLS,
    "PCA24,IVF32,PQ8x4fs,Refine(SQ8)": CELLS,
    "PQ8x4fs": (0,),
    "SQ8": (0,),
    "Flat": (0,),
    "PQ8x4fs,RFlat": (0,),
    "NSG16,Flat": (0,),
    "RaBitQ": (0,),
}


@pytest.mark.parametrize("factory", STRINGS)
def test_widths_are_swept_and_the_rows_decide(factory: str, tmp_path: Path) -> None:
    rows, ids = clustered(1500), np.arange(1500, dtype=np.int64) * 2 + 1
    exact = FlatIndex.build([(ids, rows)], D)
    built = native.build(factory, rows)
    native.save(built, tmp_path / "x")
    widths = built.widths(50) if built.is_rough else built.widths(native.FEW)
    assert tuple(widths) == STRINGS[factory]
    assert built.is_rough == (factory not in ("HNSW16", "Flat"))
    index = ApproximateIndex.load(tmp_path / "x", exact, ids, Plan(factory, widths[-1], 800))
    hits = 0
    for query in clustered(20, seed=1):
        truth = exact_top(exact, query, 10, Metric.COSINE)
        (found,) = index.search(query[None], 10, Metric.COSINE, None)
        assert len(found.ids) == len(set(found.ids.tolist())) == 10
        right = np.isin(found.ids, truth.ids)
        hits += int(right.sum())
        own = truth.similarities[np.isin(truth.ids, found.ids)]
        assert found.similarities[right].tolist() == own.tolist(), "their own scores"
    assert hits >= 190
    for k in (1, 700):
        assert len(index.search(query[None], k, Metric.COSINE, None)[0].ids) == k


@pytest.mark.parametrize("factory", ["PCA24,IVF32,PQ8x4fs,RFlat", "IVF32_HNSW16,PQ8x4fs"])
def test_wider_finds_more_under_transforms_and_refinement(factory: str) -> None:
    ids, rows = collection(1500, Metric.COSINE, d=D)
    exact = FlatIndex.build([(ids, rows)], D)
    drawn, held = tuning.draw(exact, Metric.COSINE)
    sample, _ = drawn.split()
    others = np.flatnonzero(~held)
    made = native.build(factory, rows, others)
    index = ApproximateIndex(exact, made, ids[others], Plan("", 1, 1), held)
    recalls = []
    for width, candidates in ((1, 50), (8, 200), (32, 800)):
        wider = index.with_plan(Plan("", width, candidates))
        recalls.append(tuning.measure(wider, sample, Metric.COSINE, 1, 1.0).recall)
    assert recalls[0] + 0.2 < recalls[1] < recalls[2] - 0.1
    assert recalls[2] > 0.97


def test_refined_candidates_alone_are_compared() -> None:
    rows = clustered(1500)
    refined = native.build("IVF32,PQ8x4fs,RFlat", rows)
    assert refined.propose(rows[:3], 32, 200, 16).shape == (3, 16)
    own = refined.propose(rows[:3], 32, 200, 16)
    best = np.argsort(-(rows[:3] @ rows.T), axis=1)[:, :16]
    shared = [len(set(a) & set(b)) for a, b in zip(own.tolist(), best.tolist(), strict=True)]
    assert min(shared) >= 15, "the best of 200, not the first 16"
    assert native.build("IVF32,PQ8x4fs", rows).propose(rows[:3], 32, 200, 16).shape == (3, 200)


WRONG = {
    "nonsense": "could not parse index string nonsense",
    "": "of 1 to 100 characters",
    "HNSW16\n": "of 1 to 100 characters",
    "HNSW16\0": "of 1 to 100 characters",
    "IVFé": "of 1 to 100 characters",
    "IVF" + "9" * 60_000: "of 1 to 100 characters",
    "HNSW0": "no number in it may be 0",
    "PQ8x0": "no number in it may be 0",
    "IVF0,Flat": "no number in it may be 0",
    "IVF16_HNSW1,Flat": "HNSW needs at least 2 links a row",
    "NSG4,Flat": "NSG needs at least 8 links a row",
    "IDMap,Flat": "ids of its own",
    "HNSW16,IDMap2": "ids of its own",
    "PCA16,IDMap,Flat": "ids of its own",
    "HNSW16,PQ8": "does not rank by inner products",
    "LSH": "metric == METRIC_L2",
    "BIVF16": "could not parse index string BIVF16",
    "IVF99999999999,Flat": "a number in it is too large",
    "PQ7": "should be a multiple",
    "PCA64,Flat": "PCA",
    "IVF2000,Flat": r"Number of training points \(900\)",
    "PQ8x16": r"Number of training points \(900\)",
    "IVF16,Flat,Refine(IVF16,Flat)": "Flat\\)': get_distance_computer",
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("small") / "s"
    with Engine.create(path, model=WordEmbedder(D)) as engine:
        engine.add_vectors(clustered(1200), ids=[str(n) for n in range(1200)])
        yield engine


@pytest.mark.parametrize("factory", WRONG)
def test_strings_that_give_no_index_are_told_in_a_line(small: Engine, factory: str) -> None:
    with pytest.raises(InvalidInputError, match=WRONG[factory]) as told:
        small.tune(factory=factory, recall=0.5)
    message = str(told.value)
    assert message.startswith(f"FAISS makes no index '{factory[:100]}': ")
    assert "faiss::" not in message
    assert len(message.replace(factory, "").splitlines()) == 1
    stats = small.stats()
    assert (stats.kind, stats.factory, stats.recall_target) == ("auto", None, 0.98)
    assert len(small.search_vectors(clustered(1), k=5)[0].hits) == 5


def test_a_store_tuned_to_a_string(small: Engine, tmp_path: Path) -> None:
    factory = "PCA24,IVF32,Flat"
    with Engine.create(tmp_path / "s", model=WordEmbedder(D)) as engine:
        engine.add_vectors(clustered(2000), ids=[str(n) for n in range(2000)])
        report = engine.tune(factory=factory, recall=0.9)
        assert report.chosen.factory == factory
        assert report.chosen.low >= 0.9
        assert {one.factory for one in report.trials} == {factory}
        stats = engine.stats()
        assert (stats.kind, stats.factory) == ("factory", factory)
        assert stats.recall == (report.chosen.recall, report.chosen.low, report.chosen.high)
        assert files(tmp_path) == ["factory", "ids", "index"]
        (file,) = (tmp_path / "s" / "index").glob("factory*")
        assert isinstance(faiss.read_index(str(file)), faiss.IndexPreTransform)
    queries = clustered(30, seed=5)
    with Engine.open(tmp_path / "s", model=WordEmbedder(D)) as engine:
        right = 0
        for query in queries:
            truth = ids_of(engine, query, exact=True)
            right += len(set(truth) & set(ids_of(engine, query)))
        assert right >= 270
        assert engine.verify().problems == ()
        engine.add_vectors(clustered(1100, seed=2), ids=[f"m{n}" for n in range(1100)])
        engine.rebuild()
        assert not file.exists(), "half as many rows again have come"
        assert files(tmp_path) == ["factory", "ids", "index"]
        stats = engine.stats()
        assert (stats.factory, stats.recall is None) == (factory, False)
        engine.tune(kind="flat")
        assert (engine.stats().kind, engine.stats().factory) == ("flat", None)


def test_a_string_that_is_not_good_enough_is_remembered_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine.create(tmp_path / "s", model=WordEmbedder(D)) as engine:
        engine.add_vectors(clustered(1200), ids=[str(n) for n in range(1200)])
        assert engine.tune(factory="PCA1,Flat", recall=0.99).chosen.factory == "exact"
        assert "answers stay exact" in caplog.text
        stats = engine.stats()
        assert (stats.kind, stats.factory, stats.recall) == ("factory", "PCA1,Flat", None)
        with engine._store.reading() as view:
            published = view.state().published
        assert published is not None
        assert published.refused == Refused("factory", 0.99, None, 1200, "PCA1,Flat")
        query = clustered(1, seed=5)[0]
        assert ids_of(engine, query) == ids_of(engine, query, exact=True)
        monkeypatch.setattr(native, "build", None)
        engine.rebuild()
        assert engine.stats().factory == "PCA1,Flat"


def test_an_impossible_request_is_refused_before_anything_is_drawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine.create(tmp_path / "s", model=WordEmbedder(D)) as engine:
        engine.add_vectors(clustered(1200), ids=[str(n) for n in range(1200)])
        monkeypatch.setattr(tuning, "draw", None)
        report = engine.tune(kind="ivf", recall=0.999)
        assert (report.chosen.factory, report.chosen.sample) == ("exact", 0)
        assert "cannot be told from a sample of 150 rows, only up to 0.9752" in caplog.text


def test_new_stores_of_a_string_and_wrong_wishes(tmp_path: Path, small: Engine) -> None:
    spec = IndexSpec(recall=0.8, factory="IVF16,Flat")
    assert spec.kind is IndexKind.FACTORY
    model = WordEmbedder(D)
    with Engine.create(tmp_path / "s", model=model, index=spec) as engine:
        engine.add_vectors(clustered(1300), ids=[str(n) for n in range(1300)])
        stats = engine.stats()
        assert (stats.kind, stats.factory, stats.recall is None) == ("factory", "IVF16,Flat", False)
    with pytest.raises(InvalidInputError, match="FAISS makes no index 'PQ7'"):
        Engine.create(tmp_path / "t", model=model, index=IndexSpec(factory="PQ7"))
    assert not (tmp_path / "t").exists()
    wrong: dict[str, Any]
    for wrong, said in (
        ({"kind": "factory"}, "needs a FAISS factory string"),
        ({"kind": "hnsw", "factory": "Flat"}, "either a factory string or the kind 'hnsw'"),
        ({"factory": 7}, "must be a FAISS factory string, not 7"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            IndexSpec(**wrong)
        with pytest.raises(InvalidInputError, match=said):
            small.tune(**wrong)


def test_stores_from_before_there_were_strings_open(tmp_path: Path) -> None:
    with Engine.create(tmp_path / "s", model=WordEmbedder(D)) as engine:
        engine.add_vectors(clustered(30), ids=[str(n) for n in range(30)])
    database = sa.create_engine(f"sqlite:///{tmp_path / 's' / 'store.db'}")
    with database.begin() as connection:
        gone = connection.execute(sa.delete(settings).where(settings.c.name == "factory"))
        assert gone.rowcount == 1
    database.dispose()
    with Engine.open(tmp_path / "s", model=WordEmbedder(D)) as engine:
        assert engine.stats().factory is None
        assert len(ids_of(engine, clustered(1)[0])) == 10


def test_strings_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Engine.create(tmp_path / "s", model=WordEmbedder(D)) as engine:
        engine.add_vectors(clustered(1200), ids=[str(n) for n in range(1200)])
    path = ["--store", str(tmp_path / "s")]
    assert cli.run(["tune", "--factory", "SQ8", "--recall", "0.8", "--json", *path]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["factory"] == "SQ8"
    assert cli.run(["status", "--table", *path]) == 0
    assert "kind factory SQ8" in " ".join(capsys.readouterr().out.split())
    assert cli.run(["tune", "--factory", "IVF9999,Flat", *path]) == 2
    assert "Number of training points (900)" in capsys.readouterr().err
    assert cli.run(["tune", "--factory", "SQ8", "--kind", "hnsw", *path]) == 2


@pytest.mark.parametrize("factory", ["HNSW16_SQ8", "IVF16,PQ8x4fs", "PCA16,IVF8,SQ8", "NSG16,Flat"])
def test_rows_held_out_are_added(factory: str, tmp_path: Path, monkeypatch: Any) -> None:
    """In several blocks, after those it was built of; where FAISS adds no more, all anew."""
    monkeypatch.setattr(native, "_ROWS_A_BLOCK", 400)
    rows, held = clustered(1500) * np.float32(1e20), np.arange(1500) % 20 == 7
    ids = np.arange(1500, dtype=np.int64) + 1
    built = native.build(factory, rows, np.flatnonzero(~held))
    assert built.shape == (1425, D)
    native.save(built, tmp_path / "x")
    order = np.concatenate([np.flatnonzero(~held), np.flatnonzero(held)])
    whole = native.extended(factory, tmp_path / "x", rows, np.flatnonzero(held))
    assert (whole is None) == (not built.grows) == factory.startswith("NSG")
    if whole is None:
        whole, order = native.build(factory, rows), np.arange(1500)
    assert whole.shape == (1500, D)
    for row in whole.propose(rows[:9], 1024, 1500, 1500):
        proposed = row[row >= 0]
        assert len(np.unique(proposed)) == len(proposed) > 1400
    exact = FlatIndex.build([(ids, rows)], D)
    index = ApproximateIndex(exact, whole, ids[order], Plan(factory, 1024, 1500))
    for place in (7, 8, 747, 1487, 1499):
        for k in (1, 5):
            (found,) = index.search(rows[place : place + 1], k, Metric.IP, None)
            truth = exact_top(exact, rows[place], k, Metric.IP)
            assert found.ids.tolist() == truth.ids.tolist()


def test_training_sees_enough_rows_and_only_those_it_may(monkeypatch: Any) -> None:
    monkeypatch.setattr(native, "_TRAINING", 300)
    monkeypatch.setattr(native, "_TRAINING_A_CELL", 40)
    seen: list[list[int]] = []
    for factory, enough in (("SQ8", 300), ("IVF10,Flat", 400), ("Flat", 0)):
        index = native.made(factory, D)
        rows = clustered(1000)

        def take(places: Any, rows: Any = rows) -> Any:
            seen.append(places.tolist())
            return rows[places]

        index.train(take, np.arange(0, 1000, 2))
        taken = seen.pop() if enough else []
        assert len(taken) == len(set(taken)) == enough
        assert taken == sorted(taken)
        assert not any(place % 2 for place in taken)
        assert not seen
