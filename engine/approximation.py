"""Whether a store has an approximate index, and which: built, measured, chosen, kept while it fits.

Its files are caches like the others; what was measured stands in the database with their names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from engine.errors import CorruptionError
from engine.index import approximate
from engine.index.approximate import ApproximateIndex, Plan
from engine.index.contract import VectorIndex
from engine.settings import IndexKind
from engine.storage.records import Approximate, CacheFile, StoreSettings
from engine.types import Trial, TuneReport

log = logging.getLogger("attendex")

EXACT_ROWS = 1_000_000
"""Up to so many rows a store of kind `auto` answers exactly."""
FEWEST = 1000
"""Of fewer rows none is made: comparing all of them is as fast."""
_GROWTH = 1.5
_LEFT = 2 / 3

Publish = Callable[[str, Callable[[Path], None]], CacheFile]


class Approximation:
    """Makes and keeps the approximate index of a store; `publish` writes a file, and `fault_of`
    tells why one is not what it was."""

    def __init__(
        self,
        directory: Path,
        settings: StoreSettings,
        publish: Publish,
        fault_of: Callable[[CacheFile], str | None],
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._publish = publish
        self._fault_of = fault_of

    def of(
        self,
        index: VectorIndex,
        old: Approximate | None,
        generation: int,
        *,
        everything: bool = False,
    ) -> tuple[Approximate | None, TuneReport | None]:
        """The approximate index to be used with an exact one of that generation: the old one while
        it fits, or a new one and what was measured. With `everything`, kind `auto` has one of
        few rows too. Raises `OSError`."""
        kinds = self._kinds(len(index.ids), everything or old is not None)
        if not kinds:
            return None, None
        if old is not None and old.target == self._settings.recall and self._fits(index, old):
            return old, None
        return self._made(index, kinds, generation)

    def _kinds(self, rows: int, everything: bool) -> list[IndexKind]:
        kind = self._settings.kind
        if kind is IndexKind.FLAT or rows < FEWEST:
            return []
        if kind is not IndexKind.AUTO:
            return [kind]
        small = rows <= EXACT_ROWS and not everything
        return [] if small else [IndexKind.HNSW, IndexKind.IVF]

    def _fits(self, index: VectorIndex, old: Approximate) -> bool:
        """Its files are whole, not half as many rows again have come, not a third have gone."""
        if self._fault_of(old.index) or self._fault_of(old.ids):
            return False
        ids = np.load(self._directory / old.ids.file, allow_pickle=False)
        left = int(np.isin(ids, index.ids, assume_unique=True).sum())
        return len(index.ids) <= _GROWTH * len(ids) and left >= _LEFT * len(ids)

    def _made(
        self, index: VectorIndex, kinds: list[IndexKind], generation: int
    ) -> tuple[Approximate | None, TuneReport]:
        from engine.index import tuning  # which loads torch

        metric, target = self._settings.metric, self._settings.recall
        choosing, reporting = tuning.draw(index, metric).split()
        exact = tuning.exact_trial(index, reporting, metric, index.vectors.nbytes)
        trials: list[Trial] = [exact] if self._settings.kind is IndexKind.AUTO else []
        made: dict[str, tuple[CacheFile, ApproximateIndex]] = {}
        for kind in kinds:
            started = time.perf_counter()
            rows, dimension = index.vectors.shape
            graph = kind is IndexKind.HNSW
            factory = approximate.graph() if graph else approximate.cells(rows, dimension)
            native = approximate.build(factory, index.vectors)
            seconds = time.perf_counter() - started
            file = self._publish(
                f"{kind.value}-{generation}.faiss",
                lambda path, native=native: approximate.save(native, path),  # type: ignore[misc]
            )
            del native
            path, plan = self._directory / file.file, Plan(factory, 1, tuning.FEW)
            found = ApproximateIndex.load(path, index, index.ids, plan)
            made[factory] = file, found
            size = path.stat().st_size
            trials += tuning.tried(found, choosing, metric, size, seconds)
        for one in tuning.good_enough(trials, target, self._settings.memory):
            if one is exact:
                break
            file, found = made[one.factory]
            plan = Plan(one.factory, one.width, one.candidates)
            again = tuning.measure(found.with_plan(plan), reporting, metric, one.bytes, one.seconds)
            if again.low >= target:
                report = TuneReport(tuple(tuning.pareto(trials)), again, target)
                return self._record(index, file, again, generation), report
        log.warning(
            "no approximate index was faster than comparing every row, within the memory, and "
            "certain to find %.1f %% of the nearest rows: answers stay exact",
            100 * target,
        )
        return None, TuneReport(tuple(tuning.pareto(trials)), exact, target)

    def _record(
        self, index: VectorIndex, file: CacheFile, trial: Trial, generation: int
    ) -> Approximate:
        def save(path: Path) -> None:
            with path.open("wb") as out:
                np.save(out, index.ids)

        return Approximate(
            index=file,
            ids=self._publish(f"ids-{generation}.npy", save),
            rows=len(index.ids),
            factory=trial.factory,
            width=trial.width,
            candidates=trial.candidates,
            recall=trial.recall,
            low=trial.low,
            high=trial.high,
            sample=trial.sample,
            milliseconds=trial.milliseconds,
            target=self._settings.recall,
        )


def load_approximate(directory: Path, exact: VectorIndex, record: Approximate) -> ApproximateIndex:
    """The approximate index of a record. Raises `CorruptionError`."""
    try:
        ids = np.load(directory / record.ids.file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise CorruptionError(f"the index {directory / record.ids.file} cannot be read") from error
    plan = Plan(record.factory, record.width, record.candidates)
    return ApproximateIndex.load(directory / record.index.file, exact, ids, plan)
