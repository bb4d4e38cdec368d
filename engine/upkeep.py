"""The index's upkeep: it follows the store's generations and publishes the base anew.

The published file is a cache. The database says which file holds which generation and what its
checksum is, in the same snapshot as the rows themselves; a file that is missing or differs is
never opened, and comes back from the database.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine import files
from engine.errors import CorruptionError, EngineError, StorageError
from engine.index import flat
from engine.index.flat import FlatIndex
from engine.index.snapshot import Snapshot
from engine.storage.records import Published, State, StoreSettings
from engine.storage.store import Store
from engine.storage.view import View
from engine.types import Float32Array, IdArray
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
        self._lock = threading.Lock()
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

    def publish(self) -> None:
        """Write the index of the current generation and name it in the database.

        The caller holds the store's writer lock. Raises `StorageError` where it cannot be
        written.
        """
        longest = 0.0

        def save(path: Path) -> None:
            nonlocal longest
            longest = flat.write(path, view.all_vectors(), state.passages, dimension)

        dimension = self._store.settings.dimension
        with self._store.reading() as view:
            state = view.state()
            target = self._directory / f"index-{state.number}.faiss"
            try:
                files.publish(target, save)
                checksum = files.sha256_file(target)
            except OSError as error:
                raise StorageError(
                    f"the index file {target} cannot be written ({error.strerror or error}); "
                    "answers come from the database all the same"
                ) from error
        published = Published(target.name, checksum, state.number, state.passages, longest)
        self._store.set_published(published)
        index = FlatIndex.load(target, longest)
        with self._lock:
            self._damaged = False
            self._snapshot = _fresh(index, self._store.settings, state.number, target.name)
        for path in self._directory.iterdir():
            if path.name != target.name:
                with suppress(OSError):
                    path.unlink()

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
        if fault := self._fault(published):
            with self._store.reading() as latest:
                replaced = latest.state().published != published
            return [] if replaced else [fault]
        path = self._directory / published.file
        try:
            index = FlatIndex.load(path, published.longest)
            differ = sum(_differing(index, ids, rows) for ids, rows in view.all_vectors())
        except CorruptionError as error:
            return [str(error)]
        return [f"the index {path} differs from the database in {differ} vectors"] if differ else []

    def _load(self, view: View, state: State) -> Snapshot:
        settings, published = self._store.settings, state.published
        if published is None:
            return _fresh(FlatIndex.build([], settings.dimension), settings, 0, None)
        fault = self._fault(published)
        if fault is None:
            try:
                index = FlatIndex.load(self._directory / published.file, published.longest)
                return _fresh(index, settings, published.generation, published.file)
            except CorruptionError as error:
                fault = str(error)
        with self._store.reading() as latest:
            if latest.state().published != published:
                raise IndexReplaced
        log.warning("%s; rebuilding it from the database", fault)
        self._damaged = True
        index = FlatIndex.build(view.all_vectors(), settings.dimension)
        return _fresh(index, settings, state.number, published.file)

    def _fault(self, published: Published) -> str | None:
        path = self._directory / published.file
        try:
            if files.sha256_file(path) != published.sha256:
                return f"the index file {path} is damaged (its checksum differs)"
        except FileNotFoundError:
            return f"the index file {path} is missing"
        except OSError as error:
            return f"the index file {path} cannot be read ({error.strerror})"
        return None


def _differing(index: FlatIndex, ids: IdArray, rows: Float32Array) -> int:
    """How many of the rows the index holds otherwise."""
    held = mask_of(ids, index.ids)
    at = np.searchsorted(index.ids, ids[held])
    return int((index.vectors[at] != rows[held]).any(axis=1).sum())


def _continues(snapshot: Snapshot, state: State) -> bool:
    """The state is of the same base, and not older."""
    base = state.published.file if state.published else None
    return snapshot.base_name == base and snapshot.generation <= state.number


def _fresh(
    index: FlatIndex, settings: StoreSettings, generation: int, name: str | None
) -> Snapshot:
    return Snapshot.of(index, settings.metric, generation, name)
