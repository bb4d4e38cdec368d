"""Which documents may be stored: every row is checked before anything is paid for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine import vectors
from engine.errors import InvalidInputError
from engine.settings import Metric
from engine.storage.database import dump_json
from engine.text import unicode
from engine.types import Document, Float32Array, Incoming, Refusal, SkipReason

METADATA_DEPTH = 64
_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Admitted:
    """A document that may be stored.

    `vector` is the caller's own, as the store keeps it; `content_hash` is that of the text and of
    such a vector.
    """

    where: str
    key: str
    text: str
    metadata: dict[str, Any]
    vector: Float32Array | None
    content_hash: bytes
    source: str | None


def admit(batch: Sequence[Incoming], dimension: int, metric: Metric) -> list[Admitted | Refusal]:
    """One verdict a row, in order."""
    verdicts = [_admit(row, dimension) for row in batch]
    own = [n for n, v in enumerate(verdicts) if isinstance(v, Admitted) and v.vector is not None]
    if own:
        _prepare_own_vectors(verdicts, own, metric)
    return verdicts


def _admit(incoming: Incoming, dimension: int) -> Admitted | Refusal:
    document, where = incoming.document, incoming.where

    def refusal(reason: SkipReason, detail: str) -> Refusal:
        return Refusal(where, reason, detail)

    if not isinstance(document, Document) or not isinstance(document.text, str):
        return refusal(SkipReason.INVALID, "it is no Document with a text")
    if fault := unicode.fault(document.text):
        return refusal(SkipReason.INVALID, fault)
    if unicode.is_blank(document.text):
        return refusal(SkipReason.BLANK, "blank text")
    content_hash = unicode.digest(document.text.encode())
    key = document.id
    if key is None:
        key = content_hash.hex()
    elif not isinstance(key, str) or not key or unicode.fault(key):
        return refusal(SkipReason.INVALID, f"its id {key!r} is no usable text")
    metadata = _plain_metadata(document.metadata)
    if isinstance(metadata, str):
        return refusal(SkipReason.INVALID, f"its metadata {metadata}")
    vector = None
    if document.vector is not None:
        try:
            vector = vectors.as_vector(document.vector, dimension, where=_named(key))
        except InvalidInputError as error:
            return refusal(SkipReason.VECTOR, str(error))
    return Admitted(where, key, document.text, metadata, vector, content_hash, incoming.source)


def _prepare_own_vectors(
    verdicts: list[Admitted | Refusal], own: Sequence[int], metric: Metric
) -> None:
    """Check and normalise the callers' vectors all at once, in place."""
    admitted = [v for n in own if isinstance(v := verdicts[n], Admitted)]
    matrix = np.stack([one.vector for one in admitted if one.vector is not None])
    unusable = vectors.prepare_usable(matrix, metric)
    for row, (number, one) in enumerate(zip(own, admitted, strict=True)):
        if row in unusable:
            detail = f"{_named(one.key)} {unusable[row]}"
            verdicts[number] = Refusal(one.where, SkipReason.VECTOR, detail)
        else:
            blob = vectors.to_blob(matrix[row])
            both = unicode.digest(one.content_hash, blob)
            verdicts[number] = replace(one, vector=matrix[row], content_hash=both)


def _named(key: str) -> str:
    return f"the vector of id {key!r}"


def _plain_metadata(metadata: object) -> dict[str, Any] | str:
    """The metadata as plain JSON values, or what is wrong with it."""
    if not isinstance(metadata, Mapping):
        return "is no mapping"
    if not metadata:
        return {}
    try:
        written = dump_json(dict(metadata))
        written.encode()
    except UnicodeEncodeError:
        return "holds a lone surrogate"
    except (TypeError, ValueError, RecursionError) as error:
        return f"cannot be written as JSON ({error})"
    if all(type(name) is str and type(v) in _PLAIN for name, v in metadata.items()):
        return dict(metadata)
    plain: dict[str, Any] = json.loads(written)
    if _depth(plain, METADATA_DEPTH) > METADATA_DEPTH:
        return f"is nested more than {METADATA_DEPTH} levels deep"
    return plain


def _depth(value: object, limit: int) -> int:
    if limit < 0 or not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max((_depth(item, limit - 1) for item in inner), default=0)
