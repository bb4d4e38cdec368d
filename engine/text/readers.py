"""Files to documents, row by row, with the place of every fault.

A reader yields a `Row` for what it could read and a `Refusal` for what it could not, and goes on.
Text, tables and JSON are read here; what needs a library of its own has a module of its own.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from engine.errors import InvalidInputError
from engine.text import html, parquet, pdf
from engine.text.compressed import GunzipError, Gunzipped, is_gzip
from engine.text.encoding import detect_encoding
from engine.text.json_text import parsed
from engine.text.rows import Columns, Item, Note, OnBytes, ReadOptions, Row, row, row_or_refusal
from engine.text.sources import (
    KNOWN,
    SUFFIXES,
    Source,
    open_bytes,
    read_whole,
    refused,
    spooled,
)
from engine.types import Document, Refusal

__all__ = ["Item", "Note", "ReadOptions", "Row", "read"]

EXPORT_MARK = "attendex_export"
_ROWS_PEEKED = 100
_ROWS_A_REPORT = 256
_LONGEST_CELL = (1 << 31) - 1
_UNCLOSED = "opens a quote that is not closed: the rest of the file is in it"
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?")


def read(source: Source, options: ReadOptions, on_bytes: OnBytes | None = None) -> Iterator[Item]:
    """The rows of one source. `on_bytes` is told how far into the file the reader is.

    Raises `InvalidInputError` where the file's columns do not fit the options.
    """
    kind = _kind(source, options)
    if kind is None:
        yield refused(source.name, f"is no file attendex reads ({KNOWN}); name its --format")
        return
    try:
        with open_bytes(source) as file:
            if kind in _READERS:
                yield from _read_text(file, kind, source, options, on_bytes)
            elif is_gzip(source, file):
                with spooled(Gunzipped(file)) as whole:
                    yield from _BINARY_READERS[kind](whole, source, options, on_bytes)
            else:
                yield from _BINARY_READERS[kind](file, source, options, on_bytes)
    except GunzipError as error:
        yield refused(source.name, f"is a damaged gzip ({error})")
    except OSError as error:
        yield refused(source.name, f"cannot be read ({error.strerror or error})")
    except UnicodeError as error:
        yield refused(source.name, f"cannot be decoded ({error})")


def _kind(source: Source, options: ReadOptions) -> str | None:
    suffix = source.suffix or ".txt" if options.format is None else f".{options.format}"
    kind = SUFFIXES.get(suffix)
    return "whole" if kind == "lines" and options.whole else kind


def _read_text(
    file: IO[bytes], kind: str, source: Source, options: ReadOptions, on_bytes: OnBytes | None
) -> Iterator[Item]:
    """A gzip is decompressed twice, first for its encoding: it is never held whole."""
    compressed = is_gzip(source, file)
    if compressed:
        probe = Gunzipped(file, lenient=True)
        found = detect_encoding(probe, is_cut=probe.is_damaged)
        file.seek(0)
    else:
        found = detect_encoding(file)
    if found.note:
        yield Note(f"{source.name}: {found.note}")
    raw = Gunzipped(file) if compressed else file
    text = io.TextIOWrapper(raw, encoding=found.name, errors=found.errors, newline="")
    for count, item in enumerate(_READERS[kind](text, source, options)):
        yield item
        if on_bytes is not None and count % _ROWS_A_REPORT == 0:
            on_bytes(file.tell())
    text.detach()


def _lines(text: IO[str], source: Source, _options: ReadOptions) -> Iterator[Item]:
    for number, line in enumerate(_split_lines(text), start=1):
        yield row(source, f"{source.name}:{number}", Document(line))


def _split_lines(text: IO[str]) -> Iterator[str]:
    """Lines without their ends."""
    for line in text:
        yield line.rstrip("\n").rstrip("\r")


def _whole(text: IO[str], source: Source, _options: ReadOptions) -> Iterator[Item]:
    content = read_whole(text)
    identity = None if source.path is None else source.name
    yield Row(source.name, Document(content, identity))


def _table(text: IO[str], source: Source, options: ReadOptions) -> Iterator[Item]:
    csv.field_size_limit(_LONGEST_CELL)
    tabs = (options.format or (source.suffix or "")[1:]) == "tsv"
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
    columns = Columns(names, options, source.name, convert=_cell)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        yield Note(f"{source.name}: has several columns '{twice}'; the last filled one counts")
    counted = Row(source.name, Document())
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
        if options.counting:
            yield counted
            continue
        values = {name: cell for name, cell in zip(names, cells, strict=False) if cell != ""}
        yield row_or_refusal(columns.document(values), where, source)


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
                    yield where, parsed(line, options.vector_column)
                except (ValueError, RecursionError) as error:
                    yield where, refused(where, f"is no JSON ({error})")

    yield from _json_items(values(), source, options)


def _json(text: IO[str], source: Source, options: ReadOptions) -> Iterator[Item]:
    try:
        value = json.loads(read_whole(text))
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
    peeked, rows = _peek(rows, _ROWS_PEEKED)
    if peeked and isinstance(peeked[0][1], dict) and EXPORT_MARK in peeked[0][1]:
        raise InvalidInputError(f"{source.name} is an export: take it in with `attendex import`")
    names = list(dict.fromkeys(k for _, v in peeked if isinstance(v, dict) for k in v))
    columns = Columns(names, options, source.name, keyed=True) if names else None
    for where, value in itertools.chain(peeked, rows):
        if isinstance(value, Refusal):
            yield value
        elif isinstance(value, str):
            yield row(source, where, Document(value))
        elif isinstance(value, dict) and value:
            if columns is None:
                columns = Columns(list(value), options, source.name, keyed=True)
            yield row_or_refusal(columns.document(value), where, source)
        elif isinstance(value, dict):
            yield refused(where, "is an empty JSON object")
        else:
            kind = "null" if value is None else type(value).__name__
            yield refused(where, f"is a JSON {kind}, not an object or a text")


def _peek(
    rows: Iterable[tuple[str, object]], count: int
) -> tuple[list[tuple[str, object]], Iterator[tuple[str, object]]]:
    """The first rows, and the others; a fault in the file comes where it is, after its rows."""
    rest = iter(rows)
    peeked: list[tuple[str, object]] = []
    try:
        peeked.extend(itertools.islice(rest, count))
    except (OSError, UnicodeError) as error:
        return peeked, _failing(error)
    return peeked, rest


def _failing(error: Exception) -> Iterator[tuple[str, object]]:
    raise error
    yield


_READERS: dict[str, Callable[[IO[str], Source, ReadOptions], Iterator[Item]]] = {
    "lines": _lines,
    "whole": _whole,
    "table": _table,
    "jsonl": _jsonl,
    "json": _json,
}

_BINARY_READERS: dict[
    str, Callable[[IO[bytes], Source, ReadOptions, OnBytes | None], Iterator[Item]]
] = {
    "parquet": parquet.read,
    "html": html.read,
    "pdf": pdf.read,
}
