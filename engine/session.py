"""An open store, its model and its index: what every part of `Engine` works with."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from engine.errors import InvalidInputError, SchemaVersionError, StorageError
from engine.files import Mutex
from engine.models import ModelSource
from engine.storage import database
from engine.storage.store import Store
from engine.text import unicode

if TYPE_CHECKING:
    from engine.ranking.contract import Reranker
    from engine.upkeep import IndexKeeper


class Session:
    """Opened and closed; a context manager. Loads model and index at their first use."""

    def __init__(self, store: Store, models: ModelSource, reranker: Reranker | None) -> None:
        self._store = store
        self._models = models
        self._reranker = reranker
        self._index: IndexKeeper | None = None
        self._setup = Mutex()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the database and the index; publishes nothing. A closed engine stays closed."""
        self._closed = True
        self._index = None
        self._store.close()

    def refresh(self) -> str:
        """Read schema and settings again, as opening does: another process may have changed them.

        Returns the store's id. Raises what `Engine.open` raises, and `SchemaVersionError` where
        the schema has become another.
        """
        self._check_open()
        found = database.check_schema(self._store.path)
        if found != self._store.schema:
            raise SchemaVersionError(
                f"the schema of {self._store.path} has become {found}; open it again",
                found=found,
                expected=self._store.schema,
            )
        return self._store.reload().store_id

    def file_number(self) -> tuple[int, int]:
        """Device and number of the store's database: another file's where it was exchanged.

        Raises `OSError` where it is gone.
        """
        found = (self._store.path / database.FILE_NAME).stat()
        return found.st_dev, found.st_ino

    def _open_index(self) -> IndexKeeper:
        with self._setup:
            if self._index is None:
                from engine.upkeep import IndexKeeper

                self._index = IndexKeeper(self._store)
            return self._index

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(f"the store {self._store.path} was closed")

    def _check_writable(self) -> None:
        self._check_open()
        if self._store.read_only:
            raise StorageError(f"the store {self._store.path} was opened to be read only")


def text_list(values: object, what: str) -> list[str]:
    """A list of texts; one text alone is a mistake."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidInputError(f"{what} must be a list of texts, not {values!r}")
    listed = list(values)
    for value in listed:
        if not isinstance(value, str):
            raise InvalidInputError(f"{what} must be texts, not {value!r}")
        if fault := unicode.fault(value):
            raise InvalidInputError(f"{what}: {value!r} cannot be used, {fault}")
    return listed


def path_list(values: object, what: str) -> list[str]:
    """A list of paths as texts; one path alone is a mistake."""
    if isinstance(values, os.PathLike):
        raise InvalidInputError(f"{what} must be a list of paths, not {values!r}")
    if isinstance(values, Iterable) and not isinstance(values, str | bytes):
        values = [os.fspath(one) if isinstance(one, os.PathLike) else one for one in values]
    return text_list(values, what)
