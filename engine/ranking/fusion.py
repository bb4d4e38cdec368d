"""Several rankings made one."""

from __future__ import annotations

from collections.abc import Sequence

SMOOTHING = 60


def reciprocal_ranks(rankings: Sequence[Sequence[int]]) -> dict[int, float]:
    """By key the sum over rankings of 1 / (60 + rank), ranks from 1; best first, ties by key.

    (Reciprocal rank fusion: Cormack, Clarke and Buettcher, SIGIR 2009.)
    """
    fused: dict[int, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking, start=1):
            fused[key] = fused.get(key, 0.0) + 1.0 / (SMOOTHING + rank)
    return dict(sorted(fused.items(), key=lambda item: (-item[1], item[0])))
