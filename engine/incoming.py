"""What a program hands over, as items for the write route; never held whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInputError
from engine.types import Document, Incoming, Item


def from_documents(documents: Iterable[Document | str]) -> Iterator[Item]:
    """Documents or plain texts of a program, named by their place in the iterable."""
    if isinstance(documents, str | bytes | Document) or not isinstance(documents, Iterable):
        raise InvalidInputError("add takes an iterable of documents; put a single one in a list")
    for number, document in enumerate(documents):
        if isinstance(document, str):
            document = Document(document)
        elif isinstance(document, Document):
            document = _kept(document)
        yield Incoming(f"document {number}", document)


def _kept(document: Document) -> Document:
    """The document with what it refers to copied: the caller may fill it again for the next."""
    vector, metadata = document.vector, document.metadata
    if vector is None and not metadata:
        return document
    if vector is not None:
        with suppress(TypeError, ValueError, RuntimeError):  # refused when it is looked at
            vector = np.asarray(vector).copy()
    if isinstance(metadata, dict):
        metadata = dict(metadata)
    return Document(document.text, document.id, metadata, vector)


def from_matrix(
    matrix: NDArray[Any],
    ids: Sequence[str],
    texts: Sequence[str] | None,
    metadata: Sequence[Mapping[str, Any]] | None,
) -> Iterator[Item]:
    """The rows of a matrix with what belongs to each, named by their number.

    Raises `InvalidInputError` where the lists are not as long as the matrix.
    """
    columns: dict[str, Any] = {"ids": ids, "texts": texts, "metadata": metadata}
    for name, given in columns.items():
        if given is None and name != "ids":
            continue
        listed = hasattr(given, "__len__") and hasattr(given, "__getitem__")
        if not listed or isinstance(given, str | bytes | Mapping):
            raise InvalidInputError(f"{name} must be a list, one for each row of the matrix")
        if len(given) != len(matrix):
            raise InvalidInputError(
                f"there are {len(matrix)} vectors and {len(given)} {name}; give one for each row"
            )
    labels = itertools.repeat({}) if metadata is None else metadata
    shown = itertools.repeat("") if texts is None else texts
    rows = zip(ids, shown, labels, matrix, strict=False)
    return (
        Incoming(f"row {number}", Document(text, "" if key is None else key, label, row))
        for number, (key, text, label, row) in enumerate(rows)
    )
