"""What becomes of an approximate index as rows come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Engine, IndexSpec
from engine.errors import InvalidInputError, StorageError
from engine.index import native, tuning
from engine.settings import Metric
from tests.test_approximate import D, built, clustered, files, ids_of, store
from tests.words import WordEmbedder

__all__ = ["built", "store"]


def held_ids(path: Path) -> list[int]:
    """The ids of the rows of the one approximate index of the store."""
    (file,) = (path / "s" / "index").glob("ids-*.npy")
    found: list[int] = np.load(file).tolist()
    return found


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_an_index_takes_the_rows_that_come(
    store: Engine, tmp_path: Path, kind: str, built: list[str]
) -> None:
    measured = store.tune(kind=kind, recall=0.9).chosen
    with Engine.open(tmp_path / "s", model=WordEmbedder(D)) as other:
        more = clustered(1400, seed=7)
        ids_of(other, more[0])
        store.add_vectors(more[:1000], ids=[f"m{n}" for n in range(1000)])
        store.delete(["5"])
        store.rebuild()
        assert sorted(held_ids(tmp_path)) == list(range(1, 4001)), "6 has gone, and is told from it"
        store.add_vectors(more[1000:], ids=[f"m{n}" for n in range(1000, 1400)])
        store.rebuild()
        assert sorted(held_ids(tmp_path)) == list(range(1, 4401))
        assert len(built) == 1, "grown by less than half"
        assert (store.stats().delta, store.stats().recall) == (
            0,
            (measured.recall, measured.low, measured.high),
        )
        for number in range(0, 1400, 70):
            (found,) = other.search_vectors(more[number : number + 1], k=1, rerank=False)
            assert [hit.id for hit in found.hits] == [f"m{number}"]
        queries = clustered(100, seed=5)
        truth = [ids_of(store, query, exact=True) for query in queries]
        answers = [ids_of(other, query) for query in queries]
        assert sum(len(set(a) & set(b)) for a, b in zip(truth, answers, strict=True)) >= 880
        assert other.verify().problems == ()
    store.add_vectors(clustered(200, seed=8), ids=[f"l{n}" for n in range(200)])
    store.rebuild()
    assert len(built) == 2, "grown by more than half since it was measured"
    assert store.stats().recall is not None
    store.delete([str(n) for n in range(2000)])
    store.rebuild()
    assert len(built) == 3, "a third and more of it has gone"
    assert len(held_ids(tmp_path)) == 2600 == store.stats().passages


def test_few_rows_that_come_are_compared(store: Engine, tmp_path: Path, built: list[str]) -> None:
    store.tune(kind="hnsw", recall=0.9)
    store.add_vectors(clustered(45, seed=7), ids=[f"m{n}" for n in range(45)])
    store.rebuild()
    assert (len(built), len(held_ids(tmp_path))) == (1, 3000)
    assert ids_of(store, clustered(45, seed=7)[44], k=1) == ["m44"]
    store.add_vectors(clustered(5, seed=8), ids=[f"n{n}" for n in range(5)])
    store.rebuild()
    assert (len(built), len(held_ids(tmp_path))) == (1, 3050)


def test_rows_that_come_and_are_not_found_make_the_index_anew(
    tmp_path: Path, built: list[str]
) -> None:
    """The first rows lie around few centres, those that come lie anywhere."""
    rng = np.random.default_rng(5)
    with Engine.create(tmp_path / "s", model=WordEmbedder(D)) as engine:
        rows = np.repeat(rng.standard_normal((20, D)), 200, axis=0)
        rows = (rows + 0.05 * rng.standard_normal(rows.shape)).astype(np.float32)
        engine.add_vectors(rows, ids=[str(n) for n in range(4000)])
        assert engine.tune(kind="ivf", recall=0.9).chosen.low >= 0.9
        more = rng.standard_normal((1500, D)).astype(np.float32)
        engine.add_vectors(more, ids=[f"m{n}" for n in range(1500)])
        engine.rebuild()
        assert len(built) == 2


@pytest.mark.parametrize("scale", [1e15, 1e-15])
def test_rows_of_another_size_are_compared(tmp_path: Path, scale: float, built: list[str]) -> None:
    """FAISS was given the others as they are, and could not be given these so."""
    spec = IndexSpec(metric=Metric.IP)
    rows = clustered(4000)
    with Engine.create(tmp_path / "s", model=WordEmbedder(D), index=spec) as engine:
        first = rows[:3000] * np.float32(1.0 if scale > 1 else scale)
        engine.add_vectors(first, ids=[str(n) for n in range(3000)])
        engine.tune(kind="hnsw", recall=0.9)
        later = rows[3000:] * np.float32(scale if scale > 1 else 1.0)
        engine.add_vectors(later, ids=[str(n) for n in range(3000, 4000)])
        engine.rebuild()
        assert (len(built), len(held_ids(tmp_path))) == (1, 3000)
        assert ids_of(engine, later[7]) == ids_of(engine, later[7], exact=True)


def test_an_index_that_would_grow_past_its_memory_is_not_used(
    store: Engine, tmp_path: Path, built: list[str]
) -> None:
    size = store.tune(kind="hnsw", recall=0.9).chosen.bytes
    assert store.tune(kind="hnsw", recall=0.9, memory=size + size // 10).chosen.recall < 1.01
    store.add_vectors(clustered(900, seed=7), ids=[f"m{n}" for n in range(900)])
    assert (len(built), store.stats().recall) == (3, None)


def test_growth_that_fails_leaves_the_index_as_it_was(
    store: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.tune(kind="hnsw", recall=0.9)
    before = held_ids(tmp_path)

    def full(index: Any, path: Path) -> None:
        raise OSError("no room")

    monkeypatch.setattr(native, "save", full)
    store.add_vectors(clustered(300, seed=3), ids=[f"m{n}" for n in range(300)])
    assert "could not take the rows that came: no room" in caplog.text
    assert held_ids(tmp_path) == before
    assert store.stats().recall is not None
    assert ids_of(store, clustered(300, seed=3)[9], k=1) == ["m9"]


def test_a_tune_takes_no_file_from_a_reader(store: Engine, tmp_path: Path) -> None:
    """Made twice of one generation, by threads, no two graphs are the same."""
    store.tune(kind="hnsw", recall=0.9)
    with Engine.open(tmp_path / "s", model=WordEmbedder(D)) as other:
        names = {path.name for path in (tmp_path / "s" / "index").iterdir()}
        store.tune(kind="hnsw", recall=0.8)
        after = {path.name for path in (tmp_path / "s" / "index").iterdir()}
        assert {name for name in names & after if name.startswith(("hnsw", "ids"))} == set()
        assert other.verify().problems == ()
        assert len(after) == len(names)


@pytest.mark.parametrize("factory", ["IVF16,Flat", "SQ8"])
def test_a_tuning_that_fails_leaves_the_index_before_it_whole(
    store: Engine,
    tmp_path: Path,
    factory: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the same rows, by the same kind: its files would have the same names."""
    store.tune(factory="IVF16,Flat", recall=0.8)
    measured = store.stats().recall

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(StorageError, match="No space left"):
        patched.setattr(native, "extended", full)
        store.tune(factory=factory, recall=0.8)
    assert store.verify().problems == ()
    caplog.clear()
    with Engine.open(tmp_path / "s", model=WordEmbedder(D)) as other:
        assert len(ids_of(other, clustered(1)[0])) == 10
        assert (other.stats().recall, caplog.text) == (measured, "")
        for _ in range(2):
            store.tune(factory=factory, recall=0.8)
            assert files(tmp_path) == ["factory", "ids", "index"]
            assert store.verify().problems == ()
            assert ids_of(other, clustered(3000)[7])[0] == "7"
    assert "damaged" not in caplog.text


def test_cells_are_as_many_as_the_rows_that_teach_them_allow(store: Engine, capfd: Any) -> None:
    store.tune(kind="ivf", recall=0.8)
    told = capfd.readouterr()
    assert "clustering" not in told.out + told.err, "FAISS itself says where rows are too few"


def test_rows_that_fault_faiss_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = clustered(1500)
    native.save(native.build("HNSW16", rows, np.arange(1400)), tmp_path / "x")

    def failing(*_: object) -> None:
        raise RuntimeError("Error in somewhere at file.cpp:1: no more")

    monkeypatch.setattr(native.NativeIndex, "add", failing)
    with pytest.raises(InvalidInputError, match="FAISS makes no index 'HNSW16': no more"):
        native.extended("HNSW16", tmp_path / "x", rows, np.arange(1400, 1500))


def test_so_many_equal_rows_that_faiss_never_ends() -> None:
    rows = clustered(1500)
    rows[:64] = rows[0]
    assert native.build("NSG16,Flat", rows).shape == (1500, D)
    rows[:500] = rows[0]
    with pytest.raises(InvalidInputError, match="'NSG16,Flat': of 500 equal rows it never makes"):
        native.build("NSG16,Flat", rows)
    assert native.build("HNSW16", rows).shape == (1500, D)


@pytest.mark.parametrize(
    ("rows", "held"), [(1000, 250), (1600, 400), (8000, 400), (20_000, 1000), (10**6, 2000)]
)
def test_how_many_rows_are_held_out(rows: int, held: int) -> None:
    assert tuning.holding(rows) == held
    assert tuning.choosing(rows) == held // 2
