"""Enums, specs and the constants that more than one room needs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from engine.errors import InvalidInputError

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_K = 10


class Metric(Enum):
    """How two vectors are compared; higher is better for both."""

    COSINE = "cosine"
    """Inner product of unit vectors, in [-1, 1]."""
    IP = "ip"
    """Inner product of the vectors as they are."""


class IndexKind(Enum):
    """The kinds of index behind the `VectorIndex` contract."""

    FLAT = "flat"
    """Every vector is compared: exact."""


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """How a new store compares and indexes its vectors. Fixed when the store is made."""

    metric: Metric = Metric.COSINE
    kind: IndexKind = IndexKind.FLAT

    def __post_init__(self) -> None:
        for name, enum in (("metric", Metric), ("kind", IndexKind)):
            value = getattr(self, name)
            if not isinstance(value, enum):
                try:
                    object.__setattr__(self, name, enum(value))
                except ValueError:
                    known = ", ".join(member.value for member in enum)
                    raise InvalidInputError(
                        f"unknown {name} {value!r}; choose one of: {known}"
                    ) from None
