"""Whether a store has an approximate index, and which: built, measured, chosen, kept while it fits.

Its files are caches like the others; what was measured stands in the database with their names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine.arrays import BoolArray, IdArray
from engine.errors import CorruptionError, EngineError
from engine.index import native
from engine.index.approximate import ApproximateIndex, Plan
from engine.index.contract import DIRECT_SHARE, VectorIndex
from engine.settings import IndexKind
from engine.storage.records import Approximate, CacheFile, Published, Refused, StoreSettings
from engine.types import Trial, TuneReport
from engine.vectors import row_norms

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
            try:
                grown = self._grown(index, old, generation)
            except (OSError, MemoryError, EngineError) as error:
                log.warning("the approximate index could not take the rows that came: %s", error)
                grown = old
            if grown is not None:
                return Made(grown)
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
        most = tuning.interval(1.0, tuning.draws([1.0] * asking))[0]
        if target > most:
            log.warning(
                "a recall of %g cannot be told from a sample of %d rows, only up to %.4f: "
                "answers stay exact",
                *(target, asking, most),
            )
            return Made(refused=self._refused(rows), report=TuneReport((EXACT,), EXACT, target))
        sample, held = tuning.draw(index, metric)
        choosing, reporting = sample.split()
        others, width = np.flatnonzero(~held), index.vectors.shape[1]
        exact = tuning.exact_trial(index, reporting, metric, index.vectors.nbytes)
        trials: list[Trial] = [exact] if kind is IndexKind.AUTO else []
        found: dict[str, tuple[CacheFile, ApproximateIndex]] = {}
        for one in (IndexKind.HNSW, IndexKind.IVF) if kind is IndexKind.AUTO else (kind,):
            for number, factory in enumerate(self._factories(one, len(others), width)):
                started = time.perf_counter()
                name = self._unused(f"{one.value}{number or ''}-trial", ".faiss")
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

    def _factories(self, kind: IndexKind, rows: int, width: int) -> tuple[str, ...]:
        """What is made for a kind of so many rows, the next only where the one before is not good
        enough."""
        if kind is IndexKind.HNSW:
            return native.graphs()
        return (self._settings.factory or native.cells(rows, width),)

    def _refused(self, rows: int) -> Refused:
        settings = self._settings
        kind, factory = settings.kind.value, settings.factory
        return Refused(kind, settings.recall, settings.memory, rows, factory)

    def _fits(self, index: VectorIndex, old: Approximate) -> bool:
        """Its files are whole, not half as many rows again have come, not a third have gone."""
        if self._fault_of(old.index) or self._fault_of(old.ids):
            return False
        ids = _ids(self._directory, old)
        left = int(np.isin(ids, index.ids, assume_unique=True).sum())
        measured = old.measured or len(ids)
        return len(index.ids) <= _GROWTH * measured and left >= _LEFT * len(ids)

    def _grown(self, index: VectorIndex, old: Approximate, generation: int) -> Approximate | None:
        """The index with the rows that came since, where those are more than are compared in no
        time; as it was where it takes none; None where they show that it finds too little, or it
        would be too large."""
        ids, path = _ids(self._directory, old), self._directory / old.index.file
        first = int(np.searchsorted(index.ids, ids.max(), side="right"))
        came = np.arange(first, len(index.ids))
        if len(came) * DIRECT_SHARE <= len(index.ids) or not self._same_scale(index, first):
            return old
        memory, more = self._settings.memory, len(came) / len(ids)
        if memory is not None and old.trial.bytes * (1 + more) > memory:
            return None
        from engine.index import tuning

        held = np.zeros(len(index.ids), np.bool_)
        held[first:] = True
        sample = tuning.newcomers(index, self._settings.metric, held)
        plan, trial = Plan.of(old.trial), old.trial
        loaded = ApproximateIndex.load(path, index, ids, plan, held)
        found = tuning.measure(loaded, sample, self._settings.metric, trial.bytes, trial.seconds)
        if found.high < old.target:
            return None
        made = native.extended(trial.factory, path, index.vectors, came)
        if made is None:
            return old
        together = np.concatenate([ids, index.ids[first:]])
        grown = self._record(path.name, made, together, trial, generation)
        return replace(grown, measured=old.measured or len(ids))

    def _same_scale(self, index: VectorIndex, first: int) -> bool:
        """The rows before `first` and all of them are given to FAISS as they are."""
        before = float(row_norms(index.vectors[:first]).max(initial=0.0))
        return native.as_they_are(before) and native.as_they_are(index.longest)

    def _unused(self, stem: str, suffix: str) -> str:
        """A name no file has: readers may hold one, or be about to open it."""
        names = (f"{stem}{f'-{again}' if again else ''}{suffix}" for again in count())
        return next(name for name in names if not (self._directory / name).exists())

    def _save(self, name: str, made: native.NativeIndex) -> CacheFile:
        return self._publish(name, lambda path: native.save(made, path))

    def _completed(
        self, index: VectorIndex, held: BoolArray, file: CacheFile, trial: Trial, generation: int
    ) -> Approximate:
        """The record of a measured index, the rows that measured it added."""
        started = time.perf_counter()
        others, later = np.flatnonzero(~held), np.flatnonzero(held)
        path = self._directory / file.file
        made = native.extended(trial.factory, path, index.vectors, later)
        ids = index.ids[np.concatenate([others, later])]
        if made is None:
            made, ids = native.build(trial.factory, index.vectors), index.ids
        seconds = trial.seconds + time.perf_counter() - started
        return self._record(path.name, made, ids, replace(trial, seconds=seconds), generation)

    def _record(
        self, before: str, made: native.NativeIndex, ids: IdArray, trial: Trial, generation: int
    ) -> Approximate:
        """The record of an index and its ids, saved under names like that of the file before."""

        def save(path: Path) -> None:
            with path.open("wb") as out:
                np.save(out, ids)

        stem = f"{before.partition('-')[0]}-{generation}"
        file = self._save(self._unused(stem, ".faiss"), made)
        trial = replace(trial, bytes=(self._directory / file.file).stat().st_size)
        kept = self._publish(self._unused(f"ids-{generation}", ".npy"), save)
        return Approximate(file, kept, trial, self._settings.recall)


def load_approximate(directory: Path, exact: VectorIndex, record: Approximate) -> ApproximateIndex:
    """The approximate index of a record. Raises `CorruptionError`."""
    ids, path = _ids(directory, record), directory / record.index.file
    return ApproximateIndex.load(path, exact, ids, Plan.of(record.trial))


def _ids(directory: Path, record: Approximate) -> IdArray:
    """The ids of its rows, in their order. Raises `CorruptionError`."""
    try:
        ids: IdArray = np.load(directory / record.ids.file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise CorruptionError(f"the index {directory / record.ids.file} cannot be read") from error
    return ids
