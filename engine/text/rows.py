"""What readers yield, and which columns of a table, or keys of JSON rows, become what."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidInputError
from engine.text.sources import Source, refused
from engine.types import Document, Refusal

TEXT_NAMES = ("text", "content", "body", "sentence")
"""Columns taken for the text, in this order, when none is named."""
ID_NAME = "id"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How rows become documents.

    `text_columns` are joined by `joiner` where several are named; `metadata_columns` None means
    every column left over; `format` overrides the file name's suffix. With `counting`, rows are
    read only to be counted, and the documents of a table's are empty. With `textless`, as with a
    `vector_column`, rows need no text.
    """

    whole: bool = False
    format: str | None = None
    text_columns: tuple[str, ...] = ()
    id_column: str | None = None
    metadata_columns: tuple[str, ...] | None = None
    vector_column: str | None = None
    joiner: str = ": "
    delimiter: str | None = None
    counting: bool = False
    textless: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A document and the place it came from ("notes.txt:12")."""

    where: str
    document: Document


@dataclass(frozen=True, slots=True)
class Note:
    """Something the user should know about a file that was read all the same."""

    text: str


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why there is no text."""

    reason: str


_COUNTED = Document("")
Item = Row | Refusal | Note
OnBytes = Callable[[int], None]


def row(source: Source, where: str, document: Document) -> Row:
    """Rows without an id of their own are named by their place; those of stdin by content."""
    if document.id is None and source.path is not None:
        document = Document(document.text, where, document.metadata, document.vector)
    return Row(where, document)


def row_or_refusal(document: Document | str, where: str, source: Source) -> Item:
    if isinstance(document, str):
        return refused(where, document)
    return row(source, where, document)


class Columns:
    """Which columns of a table, or keys of JSON rows, are text, id, metadata and vector.

    `convert` is applied to metadata values alone; with `keyed`, a row names its own columns, and
    one without any of the text's is faulty, not blank. `used` are the columns that count, in the
    order of `names`. Raises `InvalidInputError` naming the columns
    that exist where one that was asked for does not.
    """

    def __init__(
        self,
        names: Sequence[str],
        options: ReadOptions,
        where: str,
        convert: Callable[[Any], Any] = lambda value: value,
        *,
        keyed: bool = False,
    ) -> None:
        self._keyed = keyed
        self._options = options
        self._convert = convert
        asked = [*options.text_columns, *(options.metadata_columns or ())]
        asked += [name for name in (options.id_column, options.vector_column) if name]
        listed = ", ".join(names)
        for name in asked:
            if name not in names:
                raise InvalidInputError(f"{where} has no column '{name}' (columns: {listed})")
        self._texts = options.text_columns or tuple(n for n in TEXT_NAMES if n in names)[:1]
        self._textless = options.textless or options.vector_column is not None
        if not self._texts and len(names) == 1 and not self._textless:
            self._texts = (names[0],)
        if not self._texts and not self._textless:
            raise InvalidInputError(
                f"{where} has no text column; name one with --text-column (columns: {listed}), "
                "or the separator of a table with --delimiter"
            )
        self._text = self._texts[0] if len(self._texts) == 1 else None
        self._id = options.id_column or (ID_NAME if ID_NAME in names else None)
        self._taken = {*self._texts, self._id, options.vector_column}
        kept = names if options.metadata_columns is None else options.metadata_columns
        used = {*self._texts, self._id, options.vector_column, *kept}
        self.used = tuple(name for name in dict.fromkeys(names) if name in used)

    def document(self, values: Mapping[str, Any]) -> Document | str:
        """The row as a document, or why it is none."""
        if self._options.counting:
            return _COUNTED
        if self._keyed and not self._textless and not any(n in values for n in self._texts):
            named = "', '".join(self._texts)
            return f"it has no '{named}' (keys: {', '.join(values) or 'none'})"
        text = values.get(self._text) if self._text is not None else None
        if type(text) is not str:
            found = self._joined(values)
            if isinstance(found, _Fault):
                return found.reason
            text = found
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

    def _joined(self, values: Mapping[str, Any]) -> str | _Fault:
        parts = [values.get(name) for name in self._texts]
        for name, part in zip(self._texts, parts, strict=True):
            if isinstance(part, list | dict | bool):
                kind = type(part).__name__
                return _Fault(f"the text column '{name}' holds a {kind}, not a text")
        return self._options.joiner.join(str(part) for part in parts if part not in (None, ""))

    def _metadata(self, values: Mapping[str, Any]) -> dict[str, Any]:
        if self._options.metadata_columns is not None:
            kept = [name for name in self._options.metadata_columns if name in values]
        else:
            kept = [name for name in values if name not in self._taken]
        return {name: self._convert(values[name]) for name in kept}
