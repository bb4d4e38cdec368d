"""Stores to files and back: export, import, backup.

What is exported with vectors comes back bit for bit; it is checked row by row all the same.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

from engine import files
from engine.errors import InvalidInputError, ModelMismatchError, StorageError
from engine.portable import jsonl, parquet
from engine.portable.contract import Header
from engine.settings import IndexKind
from engine.storage import database
from engine.storage.records import StoreSettings
from engine.storage.store import Store, new_store_id
from engine.storage.where import Filter
from engine.text import unicode
from engine.text.sources import Source, open_bytes, refused
from engine.types import Document, Exported, Incoming, Item, Refusal

log = logging.getLogger("attendex")

STREAM = "-"
FORMATS = ("jsonl", "parquet")
_REMEDY = "import it without vectors (--no-vectors), or into a new store"
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


def export(
    store: Store,
    target: object,
    *,
    format_: str | None,
    vectors: bool,
    where: Filter | None,
    overwrite: bool,
) -> int:
    """Write the store's documents, of one generation, to a file or (`-`) standard output.

    Returns how many. The file appears whole or not at all.
    """
    name = _file_name(target)
    module = _module(name, format_)
    textless = 0

    def without_vectors(rows: Iterator[Exported]) -> Iterator[Exported]:
        nonlocal textless
        for row in rows:
            textless += unicode.is_blank(row.text)
            yield row._replace(passages=None)

    def write(file: IO[bytes]) -> int:
        with store.reading() as view:
            rows = view.exported(where)
            if not vectors:
                return int(module.write(file, None, without_vectors(rows)))
            header = _header(store.settings, view.unfinished_sources())
            return int(module.write(file, header, rows))

    counted = 0

    def save(temporary: Path) -> None:
        nonlocal counted
        with temporary.open("wb") as file:
            if name.lower().endswith(".gz"):
                with jsonl.compressed(file) as packed:
                    counted = write(packed)
            else:
                counted = write(file)

    if name == STREAM:
        counted = write(sys.stdout.buffer)
    else:
        _publish(store, name, save, overwrite)
    if textless:
        log.warning(
            "%d documents have a vector and no text: without the vector they cannot be "
            "imported again",
            textless,
        )
    return counted


def backup(store: Store, target: object, *, overwrite: bool) -> None:
    """A copy of the store's database in one file, of one generation, while others may write."""
    name = _file_name(target)
    if name == STREAM:
        raise InvalidInputError("a backup needs a file, not standard output")
    source = store.path / database.FILE_NAME
    with database.translated(store.path):
        _publish(store, name, partial(database.backup, source), overwrite)


def _publish(store: Store, name: str, save: Callable[[Path], None], overwrite: bool) -> None:
    """Let a file appear; one that is linked to is written where it lies."""
    target = Path(os.path.realpath(name))
    if target.is_dir():
        raise InvalidInputError(f"{name} is a directory; name a file")
    if target.is_relative_to(os.path.realpath(store.path)):
        raise InvalidInputError(f"{name} lies in the store itself; name a file elsewhere")
    if target.exists() and not target.is_file():
        raise InvalidInputError(f"{name} is no file but a device or a pipe; write to - instead")
    if target.exists() and not overwrite:
        raise InvalidInputError(f"{name} exists; name another file, or overwrite it (--overwrite)")
    if not target.parent.is_dir():
        raise InvalidInputError(f"{name} cannot be written: there is no directory {target.parent}")
    try:
        files.publish(target, save, replace=overwrite)
    except FileExistsError:
        raise InvalidInputError(f"{name} exists now; name another file") from None
    except OSError as error:
        raise StorageError(f"{name} cannot be written ({error.strerror or error})") from error


def _file_name(path: object) -> str:
    name = files.path_text(path)
    if name is None:
        raise InvalidInputError(f"a file is named by a text or a Path, not {path!r}")
    return name


class ExportFile:
    """An exported file, open to be imported; `-` is standard input. A context manager.

    `header` tells of its vectors, None where it has none. Raises `InvalidInputError` where it
    cannot be read.
    """

    def __init__(self, file: object, format_: str | None = None) -> None:
        self.path = path = _file_name(file)
        self._module = _module(path, format_)
        try:
            self._file = open_bytes(Source(path, None if path == STREAM else Path(path), 0))
            try:
                self.header: Header | None = self._module.header_of(self._file, path)
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            reason = error.strerror or error
            raise InvalidInputError(f"{path} cannot be read ({reason})") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def settings(self) -> StoreSettings | None:
        """Those of a new store that can take the vectors; None where there are none."""
        if self.header is None:
            return None
        return StoreSettings(
            model=self.header.model,
            custom=self.header.custom,
            fingerprint=self.header.fingerprint,
            dimension=self.header.dimension,
            metric=self.header.metric,
            kind=IndexKind.AUTO,
            store_id=new_store_id(),
        )

    def is_finished(self, source: str) -> bool:
        """Whether a source that the store does not know yet was read to its end."""
        return self.header is None or source not in self.header.pending

    def items(self, settings: StoreSettings, *, vectors: bool) -> Iterator[Item]:
        """The documents for the write route of a store.

        With `vectors` False, and where there are none, the texts are to be embedded. Otherwise
        raises `ModelMismatchError`, or `InvalidInputError` for another metric, where the vectors
        are not such as the store's.
        """
        header = self.header if vectors else None
        if header is not None:
            _check(header, settings, self.path)
        return self._items(header is not None)

    def _items(self, with_vectors: bool) -> Iterator[Item]:
        empty = True
        for row in self._module.read(self._file, self.path):
            empty = False
            if isinstance(row, Refusal):
                yield row
                continue
            if with_vectors and row.passages is None:
                yield refused(row.where, "has no passages, though the header tells of vectors")
                continue
            document = Document(row.text, row.id, row.metadata)
            yield Incoming(row.where, document, row.source, row.passages if with_vectors else None)
        if empty:
            yield f"{self.path} holds no documents"


def _check(header: Header, settings: StoreSettings, path: str) -> None:
    if header.fingerprint != settings.fingerprint or header.dimension != settings.dimension:
        raise ModelMismatchError(
            store_model=settings.model,
            given_model=header.model,
            given=f"the model of {path}",
            remedy=_REMEDY,
        )
    if header.metric is not settings.metric:
        raise InvalidInputError(
            f"{path} holds vectors for {header.metric.value}, and the store compares by "
            f"{settings.metric.value}; {_REMEDY}"
        )


def _header(settings: StoreSettings, pending: Sequence[str]) -> Header:
    return Header(
        model=settings.model,
        custom=settings.custom,
        fingerprint=settings.fingerprint,
        dimension=settings.dimension,
        metric=settings.metric,
        pending=tuple(pending),
    )


def _module(path: str, format_: str | None) -> Any:
    """The format asked for, else that of the file's suffix; standard streams are JSON lines."""
    if format_ is None and os.path.isdir(path):
        raise InvalidInputError(f"{path} is a directory; name a file")
    name = path.lower().removesuffix(".gz")
    found = format_ or (FORMATS[0] if path == STREAM else _SUFFIXES.get(Path(name).suffix))
    if found not in FORMATS:
        known = ", ".join([*_SUFFIXES, "and .gz of the first two"])
        raise InvalidInputError(f"{path}: exports are files of {known}; name its --format")
    if found == "parquet" and path.lower().endswith(".gz"):
        raise InvalidInputError(f"{path}: parquet is compressed in itself; leave out the .gz")
    return {"jsonl": jsonl, "parquet": parquet}[found]
