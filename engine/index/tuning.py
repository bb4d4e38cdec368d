"""What an approximate index finds and costs: measured by the store's own rows, never assumed.

A sample of rows, held out of the index, asks for its neighbours among the others, and the answers
are compared with the exact ones. One part of the sample chooses; another, which the choice never
saw, is reported. The sample is added to the index thereafter.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.arrays import BoolArray, Float32Array
from engine.index import batch
from engine.index.approximate import ApproximateIndex
from engine.index.contract import Positions, VectorIndex, exact_top
from engine.settings import Metric
from engine.types import Trial

K = 10
SEED = 0
CHOOSING = 1000
REPORTING = 1000
_FEW = 400
_HELD_OF_FEW = 4
_HELD = 20
_TIMED = 50
_Z = 1.959964


@dataclass(frozen=True)
class Sample:
    """Rows that ask, their places, and the ids of their exact neighbours among the others."""

    rows: Float32Array
    places: Positions
    truth: Sequence[frozenset[int]]

    def split(self) -> tuple[Sample, Sample]:
        """The half that chooses, and the half that reports."""
        cut = len(self.rows) // 2
        return self._part(slice(None, cut)), self._part(slice(cut, None))

    def _part(self, part: slice) -> Sample:
        return Sample(self.rows[part], self.places[part], self.truth[part])


def choosing(rows: int) -> int:
    """How many of so many rows will choose."""
    return holding(rows) // 2


def holding(rows: int) -> int:
    """How many of so many rows are held out: one in twenty, at least 400 or a quarter, at most
    2,000. Fewer could not tell the recall, and more would leave an easier index."""
    few = min(_FEW, rows // _HELD_OF_FEW)
    return min(max(few, rows // _HELD), CHOOSING + REPORTING)


def draw(index: VectorIndex, metric: Metric) -> tuple[Sample, BoolArray]:
    """A sample of the rows of an index, the same every time, and which rows (n,) it holds out."""
    n = len(index.ids)
    places = np.random.default_rng(SEED).choice(n, holding(n), replace=False)
    held = np.zeros(n, np.bool_)
    held[places] = True
    return _asked(index, metric, places, held), held


def newcomers(index: VectorIndex, metric: Metric, held: BoolArray) -> Sample:
    """A sample of the rows that are held out, as many as report."""
    among = np.flatnonzero(held)
    count = min(len(among), REPORTING)
    places = np.random.default_rng(SEED).choice(among, count, replace=False)
    return _asked(index, metric, places, held)


def _asked(index: VectorIndex, metric: Metric, places: Positions, held: BoolArray) -> Sample:
    rows = index.vectors[places]
    exact = batch.exact_many(index, rows, K, metric, keep=~held)
    return Sample(rows, places, [frozenset(one.ids.tolist()) for one in exact])


def exact_trial(index: VectorIndex, sample: Sample, metric: Metric, size: int) -> Trial:
    """The exact way: all is found."""
    taken = _median_ms(lambda row: exact_top(index, row, K, metric), sample.rows)
    return Trial("exact", 0, 0, 1.0, 1.0, 1.0, len(sample.rows), taken, size, 0.0)


def tried(
    index: ApproximateIndex, sample: Sample, metric: Metric, size: int, seconds: float
) -> Iterator[Trial]:
    """Trials of all widths, with the numbers of candidates that may help, of an index that took
    so many bytes and seconds."""
    for candidates in index.candidates:
        for width in index.widths(candidates):
            plan = replace(index.plan, width=width, candidates=candidates)
            yield measure(index.with_plan(plan), sample, metric, size, seconds)


def measure(
    index: ApproximateIndex, sample: Sample, metric: Metric, size: int, seconds: float
) -> Trial:
    """Recall and time of an index; the interval is Wilson's, of `draws` many."""
    found = index.search(sample.rows, K, metric, None)
    parts = [
        len(truth.intersection(one.ids.tolist())) / max(1, len(truth))
        for one, truth in zip(found, sample.truth, strict=True)
    ]
    low, recall, high = interval(statistics.fmean(parts), draws(parts))
    taken = _median_ms(lambda row: index.search(row[None], K, metric, None), sample.rows)
    plan, n = index.plan, len(parts)
    return Trial(
        plan.factory, plan.width, plan.candidates, recall, low, high, n, taken, size, seconds
    )


def draws(parts: Sequence[float]) -> float:
    """How many single draws the recalls of queries, K neighbours each, are worth: n p (1 - p) / s²
    with their mean p and variance s² (Kish's design effect), at most K a query.

    One query more is counted, that found nothing: so few cannot tell that there is none.
    """
    counted = [*parts, 0.0]
    n, share, spread = len(counted), statistics.fmean(counted), statistics.pvariance(counted)
    worth = n * share * (1 - share) / spread if spread > 0 else n
    return min(max(worth, n), K * len(parts))


def interval(share: float, n: float) -> tuple[float, float, float]:
    """Lower bound, share, upper bound: Wilson's 95 % interval of a share of n draws."""
    middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * (share * (1 - share) / n + _Z**2 / (4 * n**2)) ** 0.5
    return max(0.0, middle - half), share, min(1.0, middle + half)


def _median_ms(run: Callable[[Float32Array], object], rows: Float32Array) -> float:
    times = []
    for row in rows[:_TIMED]:
        started = time.perf_counter()
        run(row)
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def good_enough(trials: Sequence[Trial], target: float, memory: int | None) -> list[Trial]:
    """Those certain to be at or above the target, within the memory; fastest first."""
    fitting = [one for one in trials if memory is None or one.bytes <= memory]
    return sorted((one for one in fitting if one.low >= target), key=lambda one: one.milliseconds)


def pareto(trials: Sequence[Trial]) -> list[Trial]:
    """Those that no other beats in both recall and time, fastest first."""
    best: list[Trial] = []
    for one in sorted(trials, key=lambda one: (one.milliseconds, -one.recall)):
        if not best or one.recall > best[-1].recall:
            best.append(one)
    return best
