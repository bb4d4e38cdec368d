"""Real vectors with right answers that nobody here computed with this engine.

Euclidean distance is answered through the inner product: |x - q|^2 = |x|^2 - 2 q.x + |q|^2, so
with |x|^2 as further columns, the nearest are those of the greatest inner product with
(2q, -1, -1). It stands in two columns, what float32 rounds off in the second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine import Engine, IndexSpec
from engine.index import quantised
from engine.settings import Metric
from tests.conftest import DATA
from tests.words import WordEmbedder

pytestmark = pytest.mark.data

Matrix = NDArray[Any]


def answers(path: Path, metric: Metric, base: Matrix, queries: Matrix, k: int) -> list[list[int]]:
    spec = IndexSpec(metric=metric)
    with Engine.create(path, model=WordEmbedder(base.shape[1]), index=spec) as engine:
        engine.add_vectors(base, ids=[str(n) for n in range(len(base))])
        single = [engine.search_vectors(query[None], k=k, rerank=False)[0] for query in queries]
        many = engine.search_vectors(queries, k=k, rerank=False)
        assert [r.hits for r in single] == [r.hits for r in many]
        return [[int(hit.id) for hit in result.hits] for result in many]


def for_distance(base: Matrix, queries: Matrix) -> tuple[Matrix, Matrix]:
    squares = (base.astype(np.float64) ** 2).sum(axis=1)
    rounded = squares.astype(np.float32)
    rest = (squares - rounded).astype(np.float32)
    rows = np.column_stack([base.astype(np.float32), rounded, rest])
    asked = np.column_stack([2 * queries.astype(np.float32), -np.ones((len(queries), 2))])
    return rows, asked


def test_sift_by_distance(tmp_path: Path) -> None:
    data = np.load(DATA / "sift5k" / "sift5k.npz", allow_pickle=False)
    found = answers(tmp_path / "s", Metric.IP, *for_distance(data["base"], data["query"]), 100)
    assert found == data["gt_l2"][:, :100].tolist()


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("name", ["cosine", "ip", "l2"])
def test_glove(tmp_path: Path, name: str, copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is that of float64; where two rows are nearer than float32's unit vectors can
    tell, either may come first."""
    if not copied:
        monkeypatch.setattr(quantised, "SMALLEST", 1 << 30)
    data = np.load(DATA / "glove50-20k" / "glove50-20k.npz", allow_pickle=False)
    base, queries = data["base"], data["query"]
    wide, asked = base.astype(np.float64), queries.astype(np.float64)
    scores = asked @ wide.T
    if name == "l2":
        found = answers(tmp_path / "s", Metric.IP, *for_distance(base, queries), 100)
        scores = 2 * scores - (wide**2).sum(axis=1)
    else:
        metric = Metric.COSINE if name == "cosine" else Metric.IP
        found = answers(tmp_path / "s", metric, base, queries, 100)
    if name == "cosine":
        scores /= np.linalg.norm(asked, axis=1)[:, None] * np.linalg.norm(wide, axis=1)
    same = 0
    for row, ours, truth in zip(scores, found, data[f"gt_{name}"].tolist(), strict=True):
        np.testing.assert_allclose(row[ours], row[truth[:100]], rtol=2e-7, atol=2e-7)
        same += ours == truth[:100]
    assert same >= 195
