"""Whether a store has an approximate index, and which: built, measured, chosen, kept while it fits.

Its files are caches like the others; what was measured stands in the database with their names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine.arrays import BoolArray
from engine.errors import CorruptionError, EngineError
from engine.index import native
from engine.index.approximate import ApproximateIndex, Plan
from engine.index.contract import VectorIndex
from engine.settings import IndexKind
from engine.storage.records import Approximate, CacheFile, Published, Refused, StoreSettings
from engine.types import Trial, TuneReport

log = logging.getLogger("attendex")

EXACT_ROWS = 1_000_000
"""Up to so many rows a store of kind `auto` answers exactly."""
FEWEST = 1000
"""Of fewer rows none is made: comparing all of them is as fast."""
EXACT = Trial("exact", 0, 0, 1.0, 1.0, 1.0, 0, 0.0, 0, 0.0)
"""Comparing every row, not measured."""
_LOOKS = 3
"""So many of the ways that the choosing part found good are measured by the reporting part."""
_GROWTH = 1.5
_LEFT = 2 / 3

Publish = Callable[[str, Callable[[Path], None]], CacheFile]


class Made(NamedTuple):
    """The approximate index to be used, or the settings of which none was good enough; and what
    was measured, where that was done now."""

    approximate: Approximate | None = None
    refused: Refused | None = None
    report: TuneReport | None = None


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

    def kept_or_made(self, index: VectorIndex, before: Published | None, generation: int) -> Made:
        """What goes with an exact index of that generation: what there was before, while it fits;
        else what can be made. A failure is said, and costs no more than the approximate index."""
        rows, settings = len(index.ids), self._settings
        old = None if before is None else before.approximate
        refused = None if before is None else before.refused
        kind = settings.kind
        if kind is IndexKind.FLAT or (
            kind is IndexKind.AUTO and old is None and rows <= EXACT_ROWS
        ):
            return Made()
        if old is not None and old.target == settings.recall and self._fits(index, old):
            return Made(old)
        again = self._refused(rows)
        same = refused is not None and replace(again, rows=refused.rows) == refused
        if refused is not None and same and rows <= _GROWTH * refused.rows:
            return Made(refused=refused)
        try:
            return self.made(index, generation)
        except (OSError, MemoryError, EngineError) as error:
            log.warning("no approximate index could be made: %s; answers stay exact", error)
            return Made(refused=again)

    def made(self, index: VectorIndex, generation: int) -> Made:
        """The index of the settings, made and measured. Raises `OSError`, `InvalidInputError`."""
        kind, rows = self._settings.kind, len(index.ids)
        if kind is IndexKind.FLAT or rows < FEWEST:
            return Made()
        from engine.index import tuning  # which loads torch

        metric, target = self._settings.metric, self._settings.recall
        asking = tuning.choosing(rows)
        most = tuning.interval(1.0, asking)[0]
        if target > most:
            log.warning(
                "a recall of %g cannot be told from a sample of %d rows, only up to %.4f: "
                "answers stay exact",
                *(target, asking, most),
            )
            return Made(refused=self._refused(rows), report=TuneReport((EXACT,), EXACT, target))
        sample, held = tuning.draw(index, metric)
        choosing, reporting = sample.split()
        others = np.flatnonzero(~held)
        exact = tuning.exact_trial(index, reporting, metric, index.vectors.nbytes)
        trials: list[Trial] = [exact] if kind is IndexKind.AUTO else []
        found: dict[str, tuple[CacheFile, ApproximateIndex]] = {}
        for one in (IndexKind.HNSW, IndexKind.IVF) if kind is IndexKind.AUTO else (kind,):
            for number, factory in enumerate(self._factories(one, index)):
                started = time.perf_counter()
                name = f"{one.value}{number or ''}-{generation}.faiss"
                file = self._save(name, native.build(factory, index.vectors, others))
                seconds = time.perf_counter() - started
                path, plan = self._directory / file.file, Plan(factory, 1, native.FEW)
                loaded = ApproximateIndex.load(path, index, index.ids[others], plan, held)
                found[factory] = file, loaded
                size = path.stat().st_size * rows // len(others)
                new = list(tuning.tried(loaded, choosing, metric, size, seconds))
                trials += new
                if tuning.good_enough(new, target, None):
                    break
        good = tuning.good_enough(trials, target, self._settings.memory)
        front = tuple(tuning.pareto(trials))
        for trial in good[:_LOOKS]:
            if trial is exact:
                break
            file, loaded = found[trial.factory]
            again = loaded.with_plan(Plan.of(trial))
            measured = tuning.measure(again, reporting, metric, trial.bytes, trial.seconds)
            if measured.low >= target:
                if measured.milliseconds > exact.milliseconds:
                    log.warning(
                        "%s takes %.2f ms a query, comparing every row %.2f",
                        *(trial.factory, measured.milliseconds, exact.milliseconds),
                    )
                record = self._completed(index, held, file, measured, generation)
                return Made(record, report=TuneReport(front, record.trial, target))
        log.warning(
            "no approximate index was faster than comparing every row, within the memory, and "
            "certain to find %.1f %% of the nearest rows: answers stay exact",
            100 * target,
        )
        return Made(refused=self._refused(rows), report=TuneReport(front, exact, target))

    def _factories(self, kind: IndexKind, index: VectorIndex) -> tuple[str, ...]:
        """What is made for a kind, the next only where the one before is not good enough."""
        if kind is IndexKind.HNSW:
            return native.graphs()
        return (self._settings.factory or native.cells(*index.vectors.shape),)

    def _refused(self, rows: int) -> Refused:
        settings = self._settings
        kind, factory = settings.kind.value, settings.factory
        return Refused(kind, settings.recall, settings.memory, rows, factory)

    def _fits(self, index: VectorIndex, old: Approximate) -> bool:
        """Its files are whole, not half as many rows again have come, not a third have gone."""
        if self._fault_of(old.index) or self._fault_of(old.ids):
            return False
        ids = np.load(self._directory / old.ids.file, allow_pickle=False)
        left = int(np.isin(ids, index.ids, assume_unique=True).sum())
        return len(index.ids) <= _GROWTH * len(ids) and left >= _LEFT * len(ids)

    def _save(self, name: str, made: native.NativeIndex) -> CacheFile:
        return self._publish(name, lambda path: native.save(made, path))

    def _completed(
        self, index: VectorIndex, held: BoolArray, file: CacheFile, trial: Trial, generation: int
    ) -> Approximate:
        """The record of a measured index, the rows that measured it added."""
        started = time.perf_counter()
        path = self._directory / file.file
        made, order = native.completed(trial.factory, path, index.vectors, held)
        file = self._save(file.file, made)
        seconds = trial.seconds + time.perf_counter() - started

        def save(path: Path) -> None:
            with path.open("wb") as out:
                np.save(out, index.ids[order])

        ids = self._publish(f"ids-{generation}.npy", save)
        trial = replace(trial, bytes=path.stat().st_size, seconds=seconds)
        return Approximate(file, ids, trial, self._settings.recall)


def load_approximate(directory: Path, exact: VectorIndex, record: Approximate) -> ApproximateIndex:
    """The approximate index of a record. Raises `CorruptionError`."""
    try:
        ids = np.load(directory / record.ids.file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise CorruptionError(f"the index {directory / record.ids.file} cannot be read") from error
    path = directory / record.index.file
    return ApproximateIndex.load(path, exact, ids, Plan.of(record.trial))
