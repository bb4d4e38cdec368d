"""The one error tree. Facts are attributes; the message says what was wrong and what to do.

Nothing raised by faiss, sqlite3, sqlalchemy, torch or click leaves the public surface: the room
that may import the library turns its exceptions into one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class EngineError(Exception):
    """Base of every error attendex raises on purpose. Errors survive pickling with their facts."""

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[EngineError], args: tuple[object, ...], facts: dict[str, object]) -> object:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class InvalidInputError(EngineError, ValueError):
    """The caller's input cannot be used as given."""


class DimensionError(InvalidInputError):
    """A vector has another width than the store."""

    def __init__(self, *, expected: int, actual: int, where: str = "the vector") -> None:
        super().__init__(
            f"{where}: of dimension {actual}, and the store's vectors are of dimension {expected}; "
            "they must come from the same model"
        )
        self.expected = expected
        self.actual = actual


class FilterError(InvalidInputError):
    """A `where` expression cannot be read, or names a metadata field no document has."""


class NotFoundError(EngineError, LookupError):
    """Something named by the caller does not exist."""


class StoreNotFoundError(NotFoundError):
    """There is no store at the given path."""

    def __init__(self, path: Path, detail: str = "there is no store at") -> None:
        super().__init__(f"{detail} {path}; make one with: attendex index PATHS --store {path}")
        self.path = path


class DocumentNotFoundError(NotFoundError):
    """No document has the given id."""

    def __init__(self, ids: Sequence[str]) -> None:
        shown = ", ".join(repr(i) for i in ids[:5])
        more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
        super().__init__(f"no document with id {shown}{more}")
        self.ids = tuple(ids)


class DuplicateIdError(EngineError):
    """An id that must be new exists already."""


class ModelError(EngineError):
    """The embedding model cannot be used."""


_OWN_MODEL = "name neither model nor precision to use the store's own, or index into a new store"


class ModelMismatchError(ModelError):
    """The model is not the one that embedded this store."""

    def __init__(
        self,
        *,
        store_model: str,
        given_model: str,
        given: str = "the model given",
        remedy: str = _OWN_MODEL,
    ) -> None:
        super().__init__(
            f"the store was embedded with {store_model}, and {given}, {given_model}, is "
            "another (its weights, pooling, prompts, normalisation or precision differ): vectors "
            f"of two models cannot be compared; {remedy}"
        )
        self.store_model = store_model
        self.given_model = given_model


class ModelUnavailableError(ModelError):
    """The model is not on this machine and was not, or could not be, fetched."""


class StorageError(EngineError):
    """The store cannot be read or written."""


class SchemaVersionError(StorageError):
    """The store's schema is not one this program can use."""

    def __init__(self, message: str, *, found: str | None, expected: str) -> None:
        super().__init__(message)
        self.found = found
        self.expected = expected


class StoreExistsError(StorageError):
    """There is a store already where a new one was to be made."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"there is a store at {path} already; open it with Engine.open, or take another path"
        )
        self.path = path


class CorruptionError(StorageError):
    """The store's database is damaged."""


class LockedError(StorageError):
    """Another process is writing to the store."""

    def __init__(self, path: Path, *, pid: int | None, waited: float) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(
            f"the store {path} is being written by {holder} (waited {waited:g} s); "
            "try again when it has finished"
        )
        self.path = path
        self.pid = pid
