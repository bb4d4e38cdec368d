"""The exact answers of a batch: proposed by a scan for all its queries, proved for each."""

from __future__ import annotations

import numpy as np
import torch

from engine.arrays import BoolArray, Float32Array
from engine.index import half, scorer
from engine.index.contract import (
    DIRECT_SHARE,
    SLACK,
    Candidates,
    Positions,
    VectorIndex,
    compare,
    exact_top,
    proven,
)
from engine.settings import Metric

_SPREAD = 4
_GROWTH = 4
_SHARE = 16
"""Where more than one in so many rows would be candidates, bfloat16 is not worth it."""
_WIDEST = 4096
"""Of more candidates than this, float32 leaves fewer to compare."""
_ALONE = 8
"""So few queries that bfloat16 left undecided are searched one by one, without a scan for all."""


def exact_many(
    index: VectorIndex,
    queries: Float32Array,
    k: int,
    metric: Metric,
    *,
    keep: BoolArray | None = None,
    on: torch.device | None = None,
    halved: bool | None = None,
) -> list[Candidates]:
    """`contract.exact_top` for each of the (m, d) queries, scanned together.

    With `halved` (None: where the device is fast at it) in bfloat16, for more candidates as long
    as some query is not decided; at last, or at once, in float32. Where a filter leaves few rows
    nothing is scanned.
    """
    on = on or scorer.device()
    kept = len(index.ids) if keep is None else int(np.count_nonzero(keep))
    few = kept * DIRECT_SHARE <= len(index.ids)
    if halved is None:
        halved = half.fast_on(on) and len(index.ids) >= half.SMALLEST
    halved = halved and not few
    answers = _halved(index, queries, k, metric, keep, kept, on) if halved else {}
    rest = [number for number in range(len(queries)) if number not in answers]
    first: list[tuple[Float32Array, Positions]] | list[None] = [None] * len(rest)
    if not few and len(rest) > (_ALONE if halved else 0):
        first = scorer.nearest_many(index, queries[rest], k + SLACK, keep, on)
    for number, found in zip(rest, first, strict=True):
        answers[number] = exact_top(index, queries[number], k, metric, keep=keep, first=found)
    return [answers[number] for number in range(len(queries))]


def _halved(
    index: VectorIndex,
    queries: Float32Array,
    k: int,
    metric: Metric,
    keep: BoolArray | None,
    kept: int,
    on: torch.device,
) -> dict[int, Candidates]:
    """The answers that a scan in bfloat16 decides, by the number of their query."""
    wanted = _SPREAD * k + 2 * SLACK
    answers: dict[int, Candidates] = {}
    if k == 0 or wanted * _SHARE > kept:
        return answers
    copy = half.copy_of(index, on)
    errors = half.errors(copy, queries)
    rest: Positions = np.flatnonzero(np.isfinite(errors))
    while len(rest) and wanted * _SHARE <= kept and wanted <= max(_WIDEST, _SPREAD * k):
        found = half.nearest_many(index, copy, queries[rest], wanted, keep)
        for number, (scores, positions) in zip(rest.tolist(), found, strict=True):
            sure = proven(scores, positions, k, errors[number])
            if sure is not None:
                answers[number] = compare(index, sure, queries[number], k, metric)
        rest = np.setdiff1d(rest, list(answers))
        wanted *= _GROWTH
    return answers
