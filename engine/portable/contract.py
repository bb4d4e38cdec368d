"""What an export holds, whatever its format.

A header says which model made the vectors and how they compare; then come the documents, each
with its passages and their vectors, exactly as the store holds them. Without vectors there is no
header, and any model can index the texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from engine.errors import InvalidInputError
from engine.settings import Metric
from engine.text import unicode
from engine.text.readers import EXPORT_MARK
from engine.text.sources import refused
from engine.types import Passage, Refusal

MARK = EXPORT_MARK
END = "attendex_end"
_WIDEST = 1 << 16
_MOST = 1 << 62
VERSION = 1


@dataclass(frozen=True, slots=True)
class Header:
    """The model of the exported vectors, as the store's settings have it."""

    model: str
    custom: bool
    fingerprint: str
    dimension: int
    metric: Metric
    pending: tuple[str, ...] = ()
    """Sources that an interrupted `index` had left half read."""

    def as_json(self) -> dict[str, Any]:
        return {MARK: VERSION, **asdict(self), "metric": self.metric.value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> Header:
        """Raises `InvalidInputError` for a header that cannot be read, or is of a newer format."""
        version = values.get(MARK)
        if type(version) is int and version > VERSION:
            raise InvalidInputError(
                f"{where} is an export of format {version}, and this attendex knows formats up to "
                f"{VERSION}: it was written by a newer version; upgrade attendex to import it"
            )
        try:
            model, fingerprint = (values[name] for name in ("model", "fingerprint"))
            dimension, pending = values["dimension"], tuple(values.get("pending", ()))
            for text in (model, fingerprint, *pending):
                if not isinstance(text, str) or unicode.fault(text):
                    raise ValueError
            if type(dimension) is not int or not 1 <= dimension <= _WIDEST or version != VERSION:
                raise ValueError
            custom = bool(values["custom"])
            return cls(model, custom, fingerprint, dimension, Metric(values["metric"]), pending)
        except (KeyError, TypeError, ValueError):
            raise InvalidInputError(f"{where} has a damaged header") from None


class Found(NamedTuple):
    """One document read back, and where."""

    where: str
    id: str
    text: str
    metadata: Mapping[str, Any]
    source: str | None
    passages: tuple[Passage, ...] | None


def found(where: str, values: Any) -> Found | Refusal:
    """A row of plain values as a document; raises nothing."""
    if not isinstance(values, dict):
        return refused(where, "is no JSON object")
    id_, text, metadata, source = (values.get(n) for n in ("id", "text", "metadata", "source"))
    for name, sound in (
        ("id", isinstance(id_, str)),
        ("text", isinstance(text, str)),
        ("metadata", isinstance(metadata, dict)),
        ("source", isinstance(source, str | None)),
    ):
        if not sound:
            return refused(where, f"has no '{name}' as exports have it")
    if source is not None and unicode.fault(source):
        return refused(where, "has a source that is no text which can be stored")
    parts = values.get("passages")
    try:
        passages = None if parts is None else tuple(_passage(part) for part in parts)
    except (KeyError, TypeError, ValueError, OverflowError):
        return refused(where, "has passages that cannot be read")
    whole = cast(tuple[str, str, Mapping[str, Any], str | None], (id_, text, metadata, source))
    return Found(where, *whole, passages)


def _passage(values: Mapping[str, Any]) -> Passage:
    start, end, tokens = counts = [values[name] for name in ("start", "end", "tokens")]
    truncated, own = marks = [values[name] for name in ("truncated", "own")]
    if any(type(n) is not int or not 0 <= n < _MOST for n in counts):
        raise ValueError
    if any(type(mark) is not bool for mark in marks):
        raise ValueError
    vector = np.asarray(values["vector"])
    if vector.ndim != 1 or vector.dtype.kind not in "fiu":
        raise ValueError
    with np.errstate(over="ignore"):
        return Passage(start, end, tokens, truncated, own, vector.astype(np.float32))
