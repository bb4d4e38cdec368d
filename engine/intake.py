"""Files to the write route: sources one after another, each closed with what it held."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Full, Queue
from threading import Event, Thread
from typing import Any

from numpy.typing import NDArray

from engine.errors import InvalidInputError
from engine.text import unicode
from engine.text.readers import Note, ReadOptions, Row, read
from engine.text.sources import Source, find_sources, refused
from engine.types import Document, EndOfSource, Incoming, Item, Refusal
from engine.vectors import check_width, load_table

READ_AHEAD = 1024


class Intake:
    """An iterator over all that the files under `paths` hold, for `Engine.ingest`.

    `paths` are files, directories (recursively, known suffixes only) and "-" for standard input.
    In directories `glob` and `exclude` choose files by patterns written as in a .gitignore;
    symbolic links that lead out of them are refused, unless `follow_links`. `vectors` is a .npy
    file of ready vectors: row i belongs to row i of the one file given, which is counted first
    (raises `InvalidInputError` where the two are not in step).

    A path that does not exist, and a file that cannot be read, become refusals; a file reached
    twice is read once. Files are named by their path from `base` where they lie below it, else by
    their absolute path: so names, and the ids made of them, do not depend on where the program
    was started or on how a path was written.
    """

    def __init__(
        self,
        paths: Sequence[str],
        options: ReadOptions | None = None,
        *,
        base: Path,
        glob: Sequence[str] = (),
        exclude: Sequence[str] = (),
        follow_links: bool = False,
        vectors: str | None = None,
    ) -> None:
        self._options = ReadOptions() if options is None else options
        found, refusals = find_sources(paths, glob=glob, exclude=exclude, follow_links=follow_links)
        refusals += [_unnamable(source) for source in found if not _is_utf8(source.name)]
        found = [source for source in found if _is_utf8(source.name)]
        once = {source.uri or source.name: source for source in reversed(found)}
        self._sources = [_named(source, base) for source in reversed(once.values())]
        self._total = sum(source.size for source in self._sources)
        self._done = 0
        self._within = 0
        self._vectors = None if vectors is None else self._in_step(vectors, refusals)
        self._vectors_path = vectors
        rows = self._read_all()
        ready = vectors is not None or self._options.vector_column is not None
        self._items = itertools.chain(refusals, rows if ready else _read_ahead(rows))

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def fraction(self) -> float | None:
        """The share of all bytes read so far, in [0, 1]; None where the size is not known."""
        known = self._total and all(source.path is not None for source in self._sources)
        return min(1.0, (self._done + self._within) / self._total) if known else None

    def check_width(self, dimension: int) -> None:
        """Raises `DimensionError` where the vectors have another width than the store's."""
        if self._vectors is not None:
            where = f"the vectors {self._vectors_path}"
            check_width(self._vectors, dimension, where=where)

    def has_documents(self) -> bool:
        """Look ahead to the first document. What was passed on the way is kept."""
        seen: list[Item] = []
        found = False
        for item in self._items:
            seen.append(item)
            if isinstance(item, Incoming):
                found = True
                break
        self._items = itertools.chain(seen, self._items)
        return found

    def _in_step(self, path: str, refusals: Sequence[Refusal]) -> NDArray[Any]:
        if refusals:
            raise InvalidInputError(str(refusals[0]))
        table = load_table(path)
        self._options = replace(self._options, textless=True)
        if self._options.vector_column is not None:
            raise InvalidInputError("vectors come from a .npy file or from a column, not both")
        if len(self._sources) != 1 or self._sources[0].path is None:
            raise InvalidInputError(
                f"the vectors {path} belong to the rows of one file; give that file alone"
            )
        (source,) = self._sources
        rows = sum(
            not isinstance(item, Note)
            for item in read(source, replace(self._options, counting=True))
        )
        if rows != len(table):
            raise InvalidInputError(
                f"{source.name} has {rows:,} rows and {path} {len(table):,} vectors: "
                "they must be in step, row by row"
            )
        return table

    def _read_all(self) -> Iterator[Item]:
        for source in self._sources:
            yield from self._read(source)
            self._done += source.size
            self._within = 0

    def _read(self, source: Source) -> Iterator[Item]:
        uri = source.uri
        complete = True
        number = -1
        try:
            for item in read(source, self._options, self._at):
                number += not isinstance(item, Note)
                match item:
                    case Row(where, document):
                        if self._vectors is not None and number >= len(self._vectors):
                            complete = False
                            yield refused(where, "is new: the file grew meanwhile")
                            continue
                        if self._vectors is not None:
                            own = self._vectors[number]
                            document = Document(document.text, document.id, document.metadata, own)
                        yield Incoming(where, document, uri)
                    case Note():
                        yield item.text
                    case Refusal():
                        complete = False
                        yield item
        except InvalidInputError as error:
            complete = False
            yield refused(source.name, str(error).removeprefix(f"{source.name} "))
        if uri is not None:
            yield EndOfSource(uri, complete)

    def _at(self, position: int) -> None:
        self._within = position


def _is_utf8(name: str) -> bool:
    return unicode.fault(name) is None


def _unnamable(source: Source) -> Refusal:
    shown = os.fsencode(source.name).decode("utf-8", "backslashreplace")
    return refused(shown, "its name is not UTF-8; rename it")


def _named(source: Source, base: Path) -> Source:
    if source.path is None:
        return source
    path, directory = Path(os.path.abspath(source.path)), Path(os.path.abspath(base))
    below = path.is_relative_to(directory)
    return replace(source, name=(path.relative_to(directory) if below else path).as_posix())


def _read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, read by a thread of its own, at most `READ_AHEAD` before they are taken."""
    waiting: Queue[list[Item] | Exception | None] = Queue(maxsize=2)
    stopped = Event()

    def put(entry: list[Item] | Exception | None) -> bool:
        while not stopped.is_set():
            with suppress(Full):
                waiting.put(entry, timeout=0.1)
                return True
        return False

    def work() -> None:
        try:
            while block := list(itertools.islice(items, READ_AHEAD // 2)):
                if not put(block):
                    return
            put(None)
        except Exception as error:  # handed to whoever takes the items
            put(error)

    Thread(target=work, name="attendex-reader", daemon=True).start()
    try:
        while (entry := waiting.get()) is not None:
            if isinstance(entry, Exception):
                raise entry
            yield from entry
    finally:
        stopped.set()
