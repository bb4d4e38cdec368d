"""Choosing a store's index: remembered, made and measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.approximation import EXACT
from engine.errors import InvalidInputError
from engine.index import native
from engine.settings import IndexKind, check_recall, kind_with
from engine.storage.store import Store
from engine.types import TuneReport
from engine.upkeep import IndexKeeper


def tune(
    store: Store,
    keeper: IndexKeeper,
    *,
    kind: IndexKind | str,
    recall: float | None,
    memory: int | None,
    factory: str | None,
) -> TuneReport:
    """See `Engine.tune`; the caller holds the writer lock."""
    wanted = kind_with(_kind(kind), factory)
    target = store.settings.recall if recall is None else check_recall(recall)
    if memory is not None and (
        isinstance(memory, bool) or not isinstance(memory, int | np.integer) or memory < 1
    ):
        raise InvalidInputError(f"memory must be a whole number of bytes, not {memory!r}")
    limit = None if memory is None else int(memory)
    if factory is not None:
        native.made(factory, store.settings.dimension)
    settings = replace(store.reload(), kind=wanted, recall=target, memory=limit, factory=factory)
    report = keeper.publish(settings)
    if report is not None:
        return report
    rows = store.stats().passages
    return TuneReport((EXACT,) if rows else (), EXACT, target)


def _kind(kind: object) -> IndexKind:
    try:
        return kind if isinstance(kind, IndexKind) else IndexKind(kind)
    except ValueError:
        known = ", ".join(one.value for one in IndexKind)
        raise InvalidInputError(f"unknown kind of index {kind!r}; choose one of: {known}") from None
