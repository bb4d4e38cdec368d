"""Files to documents: text, tables and JSON, row by row, with the place of every fault.

A reader yields a `Row` for what it could read and a `Refusal` for what it could not, and goes on.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from engine.errors import InvalidInputError
from engine.text.sources import SUFFIXES, Source, detect_encoding, open_bytes, refused
from engine.types import Document, Refusal

TEXT_NAMES = ("text", "content", "body", "sentence")
"""Columns taken for the text, in this order, when none is named."""
ID_NAME = "id"
_ROWS_PEEKED = 100
_ROWS_A_REPORT = 256
_LONGEST_CELL = (1 << 31) - 1
_UNCLOSED = "opens a quote that is not closed: the rest of the file is in it"
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How rows become documents.

    `text_columns` are joined by `joiner` where several are named; `metadata_columns` None means
    every column left over; `format` overrides the file name's suffix.
    """

    whole: bool = False
    format: str | None = None
    text_columns: tuple[str, ...] = ()
    id_column: str | None = None
    metadata_columns: tuple[str, ...] | None = None
    vector_column: str | None = None
    joiner: str = ": "
    delimiter: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A document and the place it came from ("notes.txt:12")."""

    where: str
    document: Document


@dataclass(frozen=True, slots=True)
class Note:
    """Something the user should know about a file that was read all the same."""

    text: str


Item = Row | Refusal | Note


def read(
    source: Source, options: ReadOptions, on_bytes: Callable[[int], None] | None = None
) -> Iterator[Item]:
    """The rows of one source. `on_bytes` is told how far into the file the reader is.

    Raises `InvalidInputError` where the file's columns do not fit the options.
    """
    kind = _kind(source, options)
    if kind is None:
        known = ", ".join(sorted(SUFFIXES))
        yield refused(source.name, f"is no file attendex reads ({known}); name its --format")
        return
    try:
        with open_bytes(source) as raw:
            found = detect_encoding(raw)
            if found.note:
                yield Note(f"{source.name}: {found.note}")
            text = io.TextIOWrapper(raw, encoding=found.name, errors=found.errors, newline="")
            for count, item in enumerate(_READERS[kind](text, source, options)):
                yield item
                if on_bytes is not None and count % _ROWS_A_REPORT == 0:
                    on_bytes(raw.tell())
            text.detach()
    except OSError as error:
        yield refused(source.name, f"cannot be read ({error.strerror or error})")
    except UnicodeError as error:
        yield refused(source.name, f"cannot be decoded ({error})")


def _kind(source: Source, options: ReadOptions) -> str | None:
    if options.format is not None:
        suffix = f".{options.format}"
    elif source.path is None or not source.path.suffix:
        suffix = ".txt"
    else:
        suffix = source.path.suffix.lower()
    kind = SUFFIXES.get(suffix)
    return "whole" if kind == "lines" and options.whole else kind


def _lines(text: IO[str], source: Source, _options: ReadOptions) -> Iterator[Item]:
    for number, line in enumerate(_split_lines(text), start=1):
        yield _row(source, f"{source.name}:{number}", Document(line))


def _split_lines(text: IO[str]) -> Iterator[str]:
    """Lines without their ends."""
    for line in text:
        yield line.rstrip("\n").rstrip("\r")


def _whole(text: IO[str], source: Source, _options: ReadOptions) -> Iterator[Item]:
    content = text.read()
    identity = None if source.path is None else source.name
    yield Row(source.name, Document(content, identity))


def _row(source: Source, where: str, document: Document) -> Row:
    """Rows without an id of their own are named by their place; those of stdin by content."""
    if document.id is None and source.path is not None:
        document = Document(document.text, where, document.metadata, document.vector)
    return Row(where, document)


def _table(text: IO[str], source: Source, options: ReadOptions) -> Iterator[Item]:
    csv.field_size_limit(_LONGEST_CELL)
    tabs = options.format == "tsv" or (
        options.format is None and source.path is not None and source.path.suffix.lower() == ".tsv"
    )
    lines = _CountedLines(text)
    if options.delimiter is None and tabs:
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        rows = csv.reader(lines, delimiter=options.delimiter or lines.guess_delimiter())
    first = lines.count + 1
    header = next(rows, None)
    if header is None:
        return
    if lines.ended:
        yield refused(f"{source.name}:{first}", _UNCLOSED)
        return
    names = [name.strip() for name in header]
    columns = _Columns(names, options, source.name, convert=_cell)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        yield Note(f"{source.name}: has several columns '{twice}'; the last filled one counts")
    while True:
        number = lines.count + 1
        try:
            cells = next(rows, None)
        except csv.Error as error:
            yield refused(f"{source.name}:{number}", f"is no table row ({error})")
            continue
        if cells is None:
            return
        if not cells:
            continue
        where = f"{source.name}:{number}"
        if lines.ended:
            yield refused(where, _UNCLOSED)
            continue
        if len(cells) > len(header):
            yield refused(where, f"has {len(cells)} columns, the header has {len(header)}")
            continue
        values = {name: cell for name, cell in zip(names, cells, strict=False) if cell != ""}
        yield _named(columns.document(values), where, source)


class _CountedLines:
    """Lines for the csv reader, counted, with a look at the first that is not blank."""

    def __init__(self, text: IO[str]) -> None:
        self._text = text
        self.count = 0
        self.ended = False
        self._first: str | None = text.readline()
        while self._first and not self._first.strip():
            self.count += 1
            self._first = text.readline()

    def guess_delimiter(self) -> str:
        """A comma, unless the header has none and semicolons or tabs instead."""
        found = [mark for mark in (",", ";", "\t") if mark in (self._first or "")]
        return found[0] if found else ","

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline() if self._first is None else self._first
        self._first = None
        if not line:
            self.ended = True
            raise StopIteration
        self.count += 1
        return line


def _cell(text: str) -> str | int | float:
    """A table cell: plain decimal numbers become numbers, all else stays text."""
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text


def _jsonl(text: IO[str], source: Source, options: ReadOptions) -> Iterator[Item]:
    def values() -> Iterator[tuple[str, object]]:
        for number, line in enumerate(_split_lines(text), start=1):
            if line.strip():
                where = f"{source.name}:{number}"
                try:
                    yield where, json.loads(line)
                except (ValueError, RecursionError) as error:
                    yield where, refused(where, f"is no JSON ({error})")

    yield from _json_items(values(), source, options)


def _json(text: IO[str], source: Source, options: ReadOptions) -> Iterator[Item]:
    try:
        value = json.load(text)
    except (ValueError, RecursionError) as error:
        yield refused(source.name, f"is no JSON ({error})")
        return
    items = value if isinstance(value, list) else [value]
    rows = ((f"{source.name}[{n}]", item) for n, item in enumerate(items))
    yield from _json_items(rows, source, options)


def _json_items(
    rows: Iterable[tuple[str, object]], source: Source, options: ReadOptions
) -> Iterator[Item]:
    """JSON values to documents; the columns are those of the first rows together."""
    rows = iter(rows)
    peeked = list(itertools.islice(rows, _ROWS_PEEKED))
    names = list(dict.fromkeys(k for _, v in peeked if isinstance(v, dict) for k in v))
    columns = _Columns(names, options, source.name) if names else None
    for where, value in itertools.chain(peeked, rows):
        if isinstance(value, Refusal):
            yield value
        elif isinstance(value, str):
            yield _row(source, where, Document(value))
        elif isinstance(value, dict) and value:
            if columns is None:
                columns = _Columns(list(value), options, source.name)
            yield _named(columns.document(value), where, source)
        elif isinstance(value, dict):
            yield refused(where, "is an empty JSON object")
        else:
            kind = "null" if value is None else type(value).__name__
            yield refused(where, f"is a JSON {kind}, not an object or a text")


def _named(document: Document | str, where: str, source: Source) -> Item:
    if isinstance(document, str):
        return refused(where, document)
    return _row(source, where, document)


class _Columns:
    """Which columns of a table, or keys of JSON rows, are text, id, metadata and vector.

    `convert` is applied to metadata values alone. Raises `InvalidInputError` naming the columns
    that exist where one that was asked for does not.
    """

    def __init__(
        self,
        names: Sequence[str],
        options: ReadOptions,
        where: str,
        convert: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self._options = options
        self._convert = convert
        asked = [*options.text_columns, *(options.metadata_columns or ())]
        asked += [name for name in (options.id_column, options.vector_column) if name]
        listed = ", ".join(names)
        for name in asked:
            if name not in names:
                raise InvalidInputError(f"{where} has no column '{name}' (columns: {listed})")
        self._texts = options.text_columns or tuple(n for n in TEXT_NAMES if n in names)[:1]
        if not self._texts and len(names) == 1:
            self._texts = (names[0],)
        if not self._texts:
            raise InvalidInputError(
                f"{where} has no text column; name one with --text-column (columns: {listed})"
            )
        self._id = options.id_column or (ID_NAME if ID_NAME in names else None)

    def document(self, values: Mapping[str, Any]) -> Document | str:
        """The row as a document, or why it is none."""
        parts = [values.get(name) for name in self._texts]
        for name, part in zip(self._texts, parts, strict=True):
            if isinstance(part, list | dict | bool):
                return f"the text column '{name}' holds a {type(part).__name__}, not a text"
        text = self._options.joiner.join(str(part) for part in parts if part not in (None, ""))
        identity = values.get(self._id) if self._id else None
        if isinstance(identity, list | dict | bool):
            return f"the id column '{self._id}' holds a {type(identity).__name__}, not a text"
        vector = None
        if self._options.vector_column is not None:
            vector = values.get(self._options.vector_column)
            if isinstance(vector, str):
                try:
                    vector = json.loads(vector)
                except (ValueError, RecursionError):
                    return f"the vector column '{self._options.vector_column}' is no JSON list"
        return Document(
            text,
            None if identity is None else str(identity),
            self._metadata(values),
            vector,
        )

    def _metadata(self, values: Mapping[str, Any]) -> dict[str, Any]:
        if self._options.metadata_columns is not None:
            kept = [name for name in self._options.metadata_columns if name in values]
        else:
            used = {*self._texts, self._id, self._options.vector_column}
            kept = [name for name in values if name not in used]
        return {name: self._convert(values[name]) for name in kept}


_READERS: dict[str, Callable[[IO[str], Source, ReadOptions], Iterator[Item]]] = {
    "lines": _lines,
    "whole": _whole,
    "table": _table,
    "jsonl": _jsonl,
    "json": _json,
}
