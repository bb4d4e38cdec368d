"""What an export holds, whatever its format.

A header says which model made the vectors and how they compare; then come the documents, each
with its passages and their vectors, exactly as the store holds them. Without vectors there is no
header, and any model can index the texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from engine.errors import InvalidInputError
from engine.settings import Metric
from engine.types import Passage, Refusal, SkipReason

MARK = "attendex_export"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Header:
    """The model of the exported vectors, as the store's settings have it."""

    model: str
    custom: bool
    fingerprint: str
    dimension: int
    metric: Metric

    def as_json(self) -> dict[str, Any]:
        return {MARK: VERSION, **asdict(self), "metric": self.metric.value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> Header:
        """Raises `InvalidInputError` for a header that cannot be read, or is of a newer format."""
        version = values.get(MARK)
        if isinstance(version, int) and version > VERSION:
            raise InvalidInputError(
                f"{where} is an export of format {version}, and this attendex knows formats up to "
                f"{VERSION}: it was written by a newer version; upgrade attendex to import it"
            )
        try:
            texts = [values[name] for name in ("model", "fingerprint")]
            dimension = values["dimension"]
            if not all(isinstance(text, str) for text in texts) or type(dimension) is not int:
                raise ValueError
            custom = bool(values["custom"])
            return cls(texts[0], custom, texts[1], dimension, Metric(values["metric"]))
        except (KeyError, ValueError):
            raise InvalidInputError(f"{where} has a damaged header") from None


class Found(NamedTuple):
    """One document read back, and where."""

    where: str
    id: str
    text: str
    metadata: Mapping[str, Any]
    source: str | None
    passages: tuple[Passage, ...] | None


def found(where: str, values: object) -> Found | Refusal:
    """A row of plain values as a document; raises nothing."""
    if not isinstance(values, dict):
        return refusal(where, "is no JSON object")
    kinds: dict[str, Any] = {"id": str, "text": str, "metadata": dict, "source": str | None}
    for name, kind in kinds.items():
        if not isinstance(values.get(name), kind):
            return refusal(where, f"has no '{name}' as exports have it")
    parts = values.get("passages")
    try:
        passages = None if parts is None else tuple(_passage(part) for part in parts)
    except (KeyError, TypeError, ValueError):
        return refusal(where, "has passages that cannot be read")
    id_, text, metadata, source = (values[name] for name in kinds)
    return Found(where, id_, text, metadata, source, passages)


def _passage(values: Mapping[str, Any]) -> Passage:
    start, end, tokens = counts = [values[name] for name in ("start", "end", "tokens")]
    truncated, own = marks = [values[name] for name in ("truncated", "own")]
    if any(type(n) is not int or n < 0 for n in counts) or any(type(b) is not bool for b in marks):
        raise ValueError
    vector = np.asarray(values["vector"], dtype=np.float32)
    if vector.ndim != 1:
        raise ValueError
    return Passage(start, end, tokens, truncated, own, vector)


def refusal(where: str, detail: str) -> Refusal:
    """A row that is no document."""
    return Refusal(where, SkipReason.UNREADABLE, detail)
