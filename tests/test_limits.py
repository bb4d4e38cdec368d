"""What is large: many ids, a large k, long filters, long documents, many files."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine import Document, Engine
from engine.embedding.plain import PlainEmbedder
from engine.types import SkipReason
from tests.words import WordEmbedder

COUNT = 250_000
WIDTH = 4


def matrix() -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.random.default_rng(3).standard_normal((COUNT, WIDTH), dtype=np.float32)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """250,000 rows, added in one call."""

    def none(texts: list[str]) -> list[list[float]]:
        raise AssertionError("nothing is to be embedded")

    model = PlainEmbedder("none", WIDTH, none, fingerprint="none")
    with Engine.create(tmp_path_factory.mktemp("large") / "s", model=model) as engine:
        report = engine.add_vectors(
            matrix(),
            ids=[f"id {n}" for n in range(COUNT)],
            metadata=[{"n": n, "half": n % 2} for n in range(COUNT)],
        )
        assert report.added == COUNT
        yield engine


def test_all_rows_in_one_answer(large: Engine) -> None:
    """chroma 1861: thousands of ids were too many variables for one statement."""
    rows = matrix().astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    (found,) = large.search_vectors(np.eye(1, WIDTH), k=COUNT)
    assert len(found.hits) == COUNT
    assert len({hit.id for hit in found.hits}) == COUNT
    assert [hit.metadata["n"] for hit in found.hits[:5]] == np.argsort(-rows[:, 0])[:5].tolist()
    assert found.hits[-1].metadata["n"] == np.argmin(rows[:, 0])
    assert sum(hit.weight or 0.0 for hit in found.hits) == pytest.approx(1)


def test_many_ids_in_one_call(large: Engine) -> None:
    ids = [f"id {n}" for n in range(COUNT)]
    random.Random(1).shuffle(ids)
    assert [document.id for document in large.get(ids)] == ids


def test_a_filter_of_many_values(large: Engine) -> None:
    values = random.Random(2).sample(range(2 * COUNT), 10_000)
    written = f"half = 1 and n in ({', '.join(map(str, values))})"
    right = sum(n % 2 for n in values if n < COUNT)
    for where in (written, {"n": values, "half": 1}):
        (found,) = large.search_vectors(np.eye(1, WIDTH), k=COUNT, where=where, rerank=False)
        assert len(found.hits) == right
        assert all(hit.metadata["half"] == 1 for hit in found.hits)


def test_many_rows_are_replaced_and_deleted_in_one_call(large: Engine) -> None:
    """agno 7030: more than 5,461 rows in one call failed."""
    ids = [f"id {n}" for n in range(41_667)]
    report = large.add_vectors(np.ones((len(ids), WIDTH)), ids=ids)
    assert report.replaced == len(ids)
    assert large.delete(ids) == len(ids)
    assert large.stats().documents == COUNT - len(ids)
    assert large.verify().problems == ()


def test_large_metadata_and_a_long_document(tmp_path: Path) -> None:
    words = [f"word{n}" for n in range(300)]
    chosen = random.Random(4).choices(words, k=1_400_000)
    text = f"{' '.join(chosen)} needle {' '.join(chosen[:1000])}"
    assert len(text) > 10_000_000
    metadata = {"text": "x" * 1_000_000, "list": list(range(10_000)), "kind": "long"}
    with Engine.create(tmp_path / "s", model=WordEmbedder(64, max_tokens=256)) as engine:
        report = engine.add([Document(text, id="long", metadata=metadata), "a dog"])
        assert (report.added, report.chunked) == (2, 1)
        (kept,) = engine.get(["long"])
        assert kept.text == text
        assert kept.metadata == metadata
        best = engine.search("needle", k=1, mode="lexical").hits[0]
        assert (best.id, best.start > 9_000_000) == ("long", True)
        assert text[best.start : best.end] == best.text
        assert engine.search("needle", where="kind = 'long'").hits[0].id == "long"


def test_many_small_files(tmp_path: Path, words: WordEmbedder) -> None:
    for n in range(5_000):
        folder = tmp_path / "files" / str(n % 50)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{n}.md").write_text(f"file number{n}" if n else "")
    with Engine.create(tmp_path / "s", model=words) as engine:
        report = engine.add_files([tmp_path / "files"])
        assert report.added == 4_999
        assert report.skipped == {SkipReason.BLANK: 1}
        assert engine.search("number4321", k=1).hits[0].id == "files/21/4321.md"
        assert engine.add_files([tmp_path / "files"]).unchanged == 4_999
