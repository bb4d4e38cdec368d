"""The index's upkeep: it follows the store's generations and publishes the base anew.

The published file is a cache. The database says which file holds which generation and what its
checksum is, in the same snapshot as the rows themselves; a file that is missing or differs is
never opened, and comes back from the database.
"""

from __future__ import annotations

import logging
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine import files
from engine.approximation import Approximation, load_approximate
from engine.arrays import Float32Array, IdArray
from engine.errors import CorruptionError, EngineError, StorageError
from engine.index import flat, quantised
from engine.index.contract import VectorIndex
from engine.index.flat import FlatIndex
from engine.index.quantised import QuantisedIndex
from engine.index.snapshot import Snapshot
from engine.storage.records import CacheFile, Published, State, StoreSettings
from engine.storage.store import Store
from engine.storage.view import View
from engine.types import TuneReport
from engine.vectors import mask_of

log = logging.getLogger("attendex")

DIRECTORY = "index"


class Due(NamedTuple):
    """When to publish: more rows than `rows`, and than `share` of the base, have changed since."""

    rows: int
    share: float


WHILE_WRITING = Due(65_536, 1.0)
WHEN_DONE = Due(256, 1 / 16)
"""So all the publishing of one long `add` copies every row about twice."""


class IndexReplaced(Exception):  # noqa: N818  (a signal within this process, no error)
    """The file a reader was about to open has made way for a newer one: read again."""


class IndexKeeper:
    """Holds the snapshot of the latest generation seen. Threads may share one.

    Lock order: the store's writer lock, then this one.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._directory = store.path / DIRECTORY
        self._lock = files.Mutex()
        self._snapshot: Snapshot | None = None
        self._damaged = False

    def snapshot(self, view: View) -> Snapshot:
        """What the view's generation holds, ready to be searched.

        Raises `IndexReplaced` where the index file of that generation was removed because a
        newer one was published meanwhile.
        """
        state = view.state()
        with self._lock:
            current = self._snapshot
            if current is None or not _continues(current, state):
                current = self._load(view, state)
            if current.generation != state.number:
                changes = view.changes(
                    after_passage=current.last_id, after_generation=current.generation
                )
                current = current.advanced(state.number, changes.ids, changes.vectors, changes.dead)
            self._snapshot = current
            return current

    def publish(self, wanted: StoreSettings | None = None) -> TuneReport | None:
        """Write the index of the current generation and name it in the database.

        An approximate index is kept as long as it fits (`Approximation`); where a new one is made,
        what was measured is returned. One that cannot be made costs nothing but itself. With
        `wanted`, an index of those settings is made afresh, and they become the store's. The
        caller holds the store's writer lock. Raises `StorageError` where it cannot be written.
        """
        settings = self._store.reload() if wanted is None else wanted
        with self._store.reading() as view:
            state = view.state()
            try:
                published, index = self._write(view, state)
                work = Approximation(self._directory, settings, self._publish, self._fault_of)
                if wanted is not None:
                    made = work.made(index, state.number)
                else:
                    made = work.kept_or_made(index, state.published, state.number)
            except OSError as error:
                raise StorageError(
                    f"the index in {self._directory} cannot be written "
                    f"({error.strerror or error}); answers come from the database all the same"
                ) from error
        published = replace(published, approximate=made.approximate, refused=made.refused)
        self._store.set_published(published, wanted)
        with self._lock:
            self._damaged = False
            self._snapshot = self._fresh(index, state.number, published)
        kept = [one.file for one in published.files]
        for path in self._directory.iterdir():
            if path.name not in kept:
                with suppress(OSError):
                    path.unlink()
        return made.report

    def _write(self, view: View, state: State) -> tuple[Published, VectorIndex]:
        """The files of the view's generation, written and opened."""
        longest = 0.0

        def save(path: Path) -> None:
            nonlocal longest
            longest = flat.write(path, view.all_vectors(), state.passages, dimension)

        dimension = self._store.settings.dimension
        rows = self._publish(f"index-{state.number}.faiss", save)
        published = Published(rows, state.number, state.passages, longest)
        index = FlatIndex.load(self._directory / rows.file, longest)
        if state.passages < quantised.SMALLEST:
            return published, index
        bounds = quantised.Bounds(1.0, 0.0, 0.0)

        def save_copy(path: Path) -> None:
            nonlocal bounds
            bounds = quantised.write(path, index.vectors)

        copy = self._publish(f"copy-{state.number}.faiss", save_copy)
        published = replace(published, copy=copy, bounds=astuple(bounds))
        return published, QuantisedIndex.load(self._directory / copy.file, index, bounds)

    def _publish(self, name: str, save: Callable[[Path], None]) -> CacheFile:
        target = self._directory / name
        if target.is_symlink():
            target.unlink()
        elif target.is_dir():  # no file can take the place of one
            shutil.rmtree(target)
        files.publish(target, save)
        return CacheFile(name, files.sha256_file(target), files.stamp_of(target))

    def publish_if_due(self, due: Due) -> None:
        """Publish where that much has changed since.

        The caller holds the writer lock. The index is a cache: a failure to write it is said, and
        spoils nothing.
        """
        with self._store.reading() as view:
            state, dead = view.state(), view.count_dead()
        base = state.published.passages if state.published else 0
        pending = state.passages - base + 2 * dead
        if pending > max(due.rows, base * due.share):
            try:
                self.publish()
            except StorageError as error:
                log.warning("%s", error)

    def repair(self) -> None:
        """Put a damaged index file back, unless somebody is writing: then at another time."""
        if not self._damaged or self._store.read_only:
            return
        self._damaged = False
        with suppress(EngineError, OSError), self._store.lock.held(wait=0):
            self.publish()

    def problems(self, view: View) -> list[str]:
        """What is wrong with the published file, or differs from the database; changes nothing."""
        published = view.state().published
        if published is None:
            return []
        if fault := self._fault(published, thorough=True):
            return [] if self._was_replaced(published) else [fault]
        path = self._directory / published.rows.file
        try:
            index = self._load_files(published)
            differ = sum(_differing(index, ids, rows) for ids, rows in view.all_vectors())
        except CorruptionError as error:
            return [] if self._was_replaced(published) else [str(error)]
        return [f"the index {path} differs from the database in {differ} vectors"] if differ else []

    def _load(self, view: View, state: State) -> Snapshot:
        published = state.published
        dimension = self._store.settings.dimension
        if published is None:
            return self._fresh(FlatIndex.build([], dimension), 0, None)
        fault = self._fault(published)
        if fault is None:
            try:
                index = self._load_files(published)
                return self._fresh(index, published.generation, published)
            except CorruptionError as error:
                fault = str(error)
        if self._was_replaced(published):
            raise IndexReplaced
        log.warning("%s; rebuilding it from the database", fault)
        self._damaged = True
        rebuilt = FlatIndex.build(view.all_vectors(), dimension)
        return self._fresh(rebuilt, state.number, published, whole=False)

    def _was_replaced(self, published: Published) -> bool:
        with self._store.reading() as latest:
            return latest.state().published != published

    def _load_files(self, published: Published) -> VectorIndex:
        rows = FlatIndex.load(self._directory / published.rows.file, published.longest)
        if published.copy is None or published.bounds is None:
            return rows
        bounds = quantised.Bounds(*published.bounds)
        return QuantisedIndex.load(self._directory / published.copy.file, rows, bounds)

    def _fault(self, published: Published, *, thorough: bool = False) -> str | None:
        """Why the files are not those that were published. A file that was not written to since
        is taken for whole, unless `thorough`: then its bytes are summed up."""
        return next((f for one in published.files if (f := self._fault_of(one, thorough))), None)

    def _fault_of(self, one: CacheFile, thorough: bool = False) -> str | None:
        path = self._directory / one.file
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                return f"the index file {path} is no file"
            if files.stamp_of(path) == one.stamp and not thorough:
                return None
            if files.sha256_file(path) != one.sha256:
                return f"the index file {path} is damaged (its checksum differs)"
        except FileNotFoundError:
            return f"the index file {path} is missing"
        except OSError as error:
            return f"the index file {path} cannot be read ({error.strerror})"
        return None

    def _fresh(
        self, index: VectorIndex, generation: int, base: Published | None, *, whole: bool = True
    ) -> Snapshot:
        """The snapshot of an index; its files are used only where they are `whole`."""
        record = base.approximate if base is not None and whole else None
        approximate = None
        if record is not None:
            approximate = load_approximate(self._directory, index, record)
        metric = self._store.settings.metric
        return Snapshot.of(index, metric, generation, base, approximate)


def _differing(index: VectorIndex, ids: IdArray, rows: Float32Array) -> int:
    """How many of the rows the index holds otherwise."""
    held = mask_of(ids, index.ids)
    at = np.searchsorted(index.ids, ids[held])
    return int((index.vectors[at] != rows[held]).any(axis=1).sum())


def _continues(snapshot: Snapshot, state: State) -> bool:
    """The state is of the same files, and not older."""
    return snapshot.origin == state.published and snapshot.generation <= state.number
