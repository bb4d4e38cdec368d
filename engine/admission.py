"""Which documents may be stored: every row is checked before anything is paid for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import orjson

from engine import vectors
from engine.arrays import Float32Array
from engine.errors import InvalidInputError
from engine.settings import Metric
from engine.storage.connection import dump_json
from engine.storage.records import NewDocument, NewPassage
from engine.text import unicode
from engine.types import Document, Incoming, Passage, Refusal, SkipReason

METADATA_DEPTH = 64
_SIMPLE = {str, int, bool, type(None)}
"""Of these orjson writes the same JSON as the store's own encoder, several times as fast."""
_PLAIN = {*_SIMPLE, float}
_UNIT_TOLERANCE = 1e-4


class Admitted(NamedTuple):
    """A document that may be stored, and where it was met.

    Its `passages` are None where its text is to be embedded; else `content_hash` is that of the
    text and the vectors.
    """

    where: str
    new: NewDocument


def admit(batch: Sequence[Incoming], dimension: int, metric: Metric) -> list[Admitted | Refusal]:
    """One verdict a row, in order."""
    blobs, faults = _own_vectors(batch, dimension, metric)
    verdicts: list[Admitted | Refusal] = []
    for number, incoming in enumerate(batch):
        verdict = _admit(incoming, blobs.get(number))
        if isinstance(verdict, Admitted) and number in faults:
            verdict = Refusal(incoming.where, SkipReason.VECTOR, faults[number])
        elif isinstance(verdict, Admitted) and incoming.passages is not None:
            try:
                verdict = Admitted(
                    incoming.where,
                    _with_passages(verdict.new, incoming.passages, dimension, metric),
                )
            except InvalidInputError as error:
                verdict = Refusal(incoming.where, SkipReason.VECTOR, str(error))
        verdicts.append(verdict)
    return verdicts


def _own_vectors(
    batch: Sequence[Incoming], dimension: int, metric: Metric
) -> tuple[dict[int, bytes], dict[int, str]]:
    """By row number the callers' vectors as the store keeps them, and why others cannot be."""
    numbers: list[int] = []
    rows: list[Float32Array] = []
    faults: dict[int, str] = {}
    for number, incoming in enumerate(batch):
        given = getattr(incoming.document, "vector", None)
        if given is None or incoming.passages is not None:
            continue
        try:
            rows.append(vectors.as_vector(given, dimension, where=_named(incoming.document.id)))
            numbers.append(number)
        except InvalidInputError as error:
            faults[number] = str(error)
    if not rows:
        return {}, faults
    matrix = np.stack(rows)
    for at, fault in vectors.prepare_usable(matrix, metric).items():
        named = _named(batch[numbers[at]].document.id)
        faults[numbers[at]] = f"{named} {fault}"
    return {
        number: vectors.to_blob(row) for number, row in zip(numbers, matrix, strict=True)
    }, faults


def _admit(incoming: Incoming, blob: bytes | None) -> Admitted | Refusal:
    where, document, source, given = incoming
    if not isinstance(document, Document) or not isinstance(document.text, str):
        return Refusal(where, SkipReason.INVALID, "it is no Document with a text")
    text, key = document.text, document.id
    if fault := unicode.fault(text):
        return Refusal(where, SkipReason.INVALID, fault)
    embedded = document.vector is None and given is None
    if embedded and unicode.is_blank(text):
        return Refusal(where, SkipReason.BLANK, "blank text")
    if key is not None and (not isinstance(key, str) or not key or unicode.fault(key)):
        return Refusal(where, SkipReason.INVALID, f"its id {key!r} is no usable text")
    found = _plain_metadata(document.metadata)
    if isinstance(found, str):
        return Refusal(where, SkipReason.INVALID, f"its metadata {found}")
    metadata, written = found
    encoded = text.encode()
    content_hash = unicode.digest(encoded) if blob is None else unicode.digest(encoded, blob)
    if key is None:
        own = blob is not None and unicode.is_blank(text)
        key = (content_hash if own or blob is None else unicode.digest(encoded)).hex()
    passages = None if blob is None else (NewPassage(0, len(text), text, 0, None, blob),)
    new = NewDocument(key, content_hash, text, metadata, written, source, passages)
    return Admitted(where, new)


def _with_passages(
    one: NewDocument, parts: Sequence[Passage], dimension: int, metric: Metric
) -> NewDocument:
    """The document as a store held it: its passages and their vectors, not a bit changed.

    Raises `InvalidInputError` where they are not those of the text, or cannot be compared.
    """
    if not parts:
        raise InvalidInputError(f"id {one.key!r} has no passage")
    if any(not 0 <= part.start <= part.end <= len(one.text) for part in parts):
        raise InvalidInputError(f"the passages of id {one.key!r} lie outside its text")
    rows = [vectors.as_vector(part.vector, dimension, where=_named(one.key)) for part in parts]
    lengths = vectors.row_norms(np.stack(rows))
    for fault in vectors.unusable(lengths, metric).values():
        raise InvalidInputError(f"{_named(one.key)} {fault}")
    if metric is Metric.COSINE and (abs(lengths - 1) > _UNIT_TOLERANCE).any():
        raise InvalidInputError(
            f"{_named(one.key)} is not of unit length, as cosine stores keep them"
        )
    made = []
    for part, row in zip(parts, rows, strict=True):
        text = one.text[part.start : part.end]
        embedded = None if part.own else unicode.digest(unicode.composed(text).encode())
        blob = vectors.to_blob(row)
        made.append(
            NewPassage(part.start, part.end, text, part.tokens, embedded, blob, part.truncated)
        )
    own = [passage.blob for passage in made if passage.content_hash is None]
    content_hash = unicode.digest(one.text.encode(), *own)
    return one._replace(content_hash=content_hash, passages=tuple(made))


def _named(key: object) -> str:
    return "its vector" if key is None else f"the vector of id {key!r}"


def _plain_metadata(metadata: object) -> tuple[dict[str, Any], str] | str:
    """The metadata as plain JSON values and as JSON text, or what is wrong with it."""
    if not isinstance(metadata, Mapping):
        return "is no mapping"
    if not metadata:
        return {}, "{}"
    plain = dict(metadata)
    kinds = set(map(type, plain.values()))
    texts = all(type(name) is str for name in plain)
    if texts and kinds <= _SIMPLE:
        with suppress(TypeError):  # past 64 bits, or no UTF-8: the strict encoder says which
            return plain, orjson.dumps(plain).decode()
    try:
        written = dump_json(plain)
        if not written.isascii():
            written.encode()
    except UnicodeEncodeError:
        return "holds a lone surrogate"
    except (TypeError, ValueError, RecursionError) as error:
        return f"cannot be written as JSON ({error})"
    if texts and kinds <= _PLAIN:
        return plain, written
    plain = json.loads(written)
    if _depth(plain, METADATA_DEPTH) > METADATA_DEPTH:
        return f"is nested more than {METADATA_DEPTH} levels deep"
    return plain, dump_json(plain)


def _depth(value: object, limit: int) -> int:
    if limit < 0 or not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max((_depth(item, limit - 1) for item in inner), default=0)
