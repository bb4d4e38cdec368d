"""Choosing a store's index: remembered, made and measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.errors import InvalidInputError
from engine.settings import IndexKind, check_recall
from engine.storage.store import Store
from engine.types import Trial, TuneReport
from engine.upkeep import IndexKeeper


def tune(
    store: Store,
    keeper: IndexKeeper,
    *,
    kind: IndexKind | str,
    recall: float | None,
    memory: int | None,
) -> TuneReport:
    """See `Engine.tune`; the caller holds the writer lock."""
    wanted = _kind(kind)
    target = store.settings.recall if recall is None else check_recall(recall)
    if memory is not None and (
        isinstance(memory, bool) or not isinstance(memory, int | np.integer) or memory < 1
    ):
        raise InvalidInputError(f"memory must be a whole number of bytes, not {memory!r}")
    limit = None if memory is None else int(memory)
    settings = replace(store.reload(), kind=wanted, recall=target, memory=limit)
    report = keeper.publish(settings)
    if report is not None:
        return report
    rows = store.stats().passages
    exact = Trial("exact", 0, 0, 1.0, 1.0, 1.0, 0, 0.0, 0, 0.0)
    return TuneReport((exact,) if rows else (), exact, target)


def _kind(kind: object) -> IndexKind:
    try:
        return kind if isinstance(kind, IndexKind) else IndexKind(kind)
    except ValueError:
        known = ", ".join(one.value for one in IndexKind)
        raise InvalidInputError(f"unknown kind of index {kind!r}; choose one of: {known}") from None
