"""Stores to files and back: export, import, backup.

What is exported with vectors comes back bit for bit; it is checked row by row all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

from engine import files
from engine.errors import InvalidInputError, ModelMismatchError, StorageError
from engine.portable import jsonl, parquet
from engine.portable.contract import Header, refusal
from engine.settings import IndexKind
from engine.storage import database
from engine.storage.records import StoreSettings
from engine.storage.store import Store, new_store_id
from engine.storage.where import Filter
from engine.text.sources import spooled
from engine.types import Document, EndOfSource, Exported, Incoming, Item, Refusal

STREAM = "-"
FORMATS = ("jsonl", "parquet")
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


def export(
    store: Store,
    target: str,
    *,
    format_: str | None,
    vectors: bool,
    where: Filter | None,
    overwrite: bool,
) -> int:
    """Write the store's documents, of one generation, to a file or (`-`) standard output.

    Returns how many. The file appears whole or not at all.
    """
    module = _module(target, format_)
    header = _header(store.settings) if vectors else None

    def write(file: IO[bytes]) -> int:
        with store.reading() as view:
            rows = view.exported(where)
            return int(module.write(file, header, rows if vectors else map(_bare, rows)))

    if target == STREAM:
        return write(sys.stdout.buffer)
    counted = 0

    def save(temporary: Path) -> None:
        nonlocal counted
        with temporary.open("wb") as file:
            if Path(target).suffix.lower() == ".gz":
                with jsonl.compressed(file) as packed:
                    counted = write(packed)
            else:
                counted = write(file)

    _publish(Path(target), save, overwrite)
    return counted


def backup(store: Store, target: str, *, overwrite: bool) -> None:
    """A copy of the store's database in one file, of one generation, while others may write."""
    source = store.path / database.FILE_NAME
    with database.translated(store.path):
        _publish(Path(target), partial(database.backup, source), overwrite)


def _publish(target: Path, save: Callable[[Path], None], overwrite: bool) -> None:
    if target.is_dir():
        raise InvalidInputError(f"{target} is a directory; name a file")
    if target.exists() and not overwrite:
        raise InvalidInputError(f"{target} exists; name another file, or overwrite it")
    try:
        files.publish(target, save)
    except OSError as error:
        raise StorageError(f"{target} cannot be written ({error.strerror or error})") from error


class ExportFile:
    """An exported file, open to be imported; `-` is standard input. A context manager.

    `header` tells of its vectors, None where it has none. Raises `InvalidInputError` where it
    cannot be read.
    """

    def __init__(self, path: str, format_: str | None = None) -> None:
        self.path = path
        self._module = _module(path, format_)
        try:
            self._file = spooled(sys.stdin.buffer) if path == STREAM else open(path, "rb")  # noqa: SIM115
        except OSError as error:
            raise _unreadable(path, error) from error
        try:
            self.header: Header | None = self._module.header_of(self._file, path)
        except OSError as error:
            self._file.close()
            raise _unreadable(path, error) from error
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def settings(self) -> StoreSettings | None:
        """Those of a new store that can take the vectors; None where there are none."""
        if self.header is None:
            return None
        given = {field.name: getattr(self.header, field.name) for field in fields(self.header)}
        return StoreSettings(**given, kind=IndexKind.FLAT, store_id=new_store_id())

    def items(self, settings: StoreSettings, *, vectors: bool) -> Iterator[Item]:
        """The documents for the write route of a store; their sources are closed at the end.

        With `vectors` False, and where there are none, the texts are to be embedded. Otherwise
        raises `ModelMismatchError`, or `InvalidInputError` for another metric, where the vectors
        are not such as the store's.
        """
        with_vectors = vectors and self.header is not None
        if with_vectors and self.header is not None:
            _check(self.header, settings, self.path)
        return self._items(with_vectors)

    def _items(self, with_vectors: bool) -> Iterator[Item]:
        sources: dict[str, None] = {}
        for row in self._module.read(self._file, self.path):
            if isinstance(row, Refusal):
                yield row
                continue
            if with_vectors and row.passages is None:
                yield refusal(row.where, "has no passages, though the header tells of vectors")
                continue
            if row.source is not None:
                sources[row.source] = None
            document = Document(row.text, row.id, row.metadata)
            yield Incoming(row.where, document, row.source, row.passages if with_vectors else None)
        yield from (EndOfSource(source, complete=False) for source in sources)


def _unreadable(path: str, error: OSError) -> InvalidInputError:
    return InvalidInputError(f"{path} cannot be read ({error.strerror or error})")


def _check(header: Header, settings: StoreSettings, path: str) -> None:
    if header.fingerprint != settings.fingerprint or header.dimension != settings.dimension:
        raise ModelMismatchError(store_model=settings.model, given_model=header.model)
    if header.metric is not settings.metric:
        raise InvalidInputError(
            f"{path} holds vectors for {header.metric.value}, and the store compares by "
            f"{settings.metric.value}; import it without vectors, or into a new store"
        )


def _header(settings: StoreSettings) -> Header:
    return Header(
        model=settings.model,
        custom=settings.custom,
        fingerprint=settings.fingerprint,
        dimension=settings.dimension,
        metric=settings.metric,
    )


def _bare(row: Exported) -> Exported:
    return row._replace(passages=None)


def _module(path: str, format_: str | None) -> Any:
    """The format asked for, else that of the file's suffix; standard streams are JSON lines."""
    name = path.lower().removesuffix(".gz")
    found = format_ or (FORMATS[0] if path == STREAM else _SUFFIXES.get(Path(name).suffix))
    if found not in FORMATS:
        known = ", ".join([*_SUFFIXES, ".jsonl.gz"])
        raise InvalidInputError(f"{path}: exports are files of {known}; name its --format")
    if found == "parquet" and path.lower().endswith(".gz"):
        raise InvalidInputError(f"{path}: parquet is compressed in itself; leave out the .gz")
    return {"jsonl": jsonl, "parquet": parquet}[found]
