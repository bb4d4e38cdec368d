"""Enums, specs and the constants that more than one room needs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from numbers import Real

from engine.errors import InvalidInputError

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_K = 10


class Metric(Enum):
    """How two vectors are compared; higher is better for both."""

    COSINE = "cosine"
    """Inner product of unit vectors, in [-1, 1]."""
    IP = "ip"
    """Inner product of the vectors as they are."""


class Mode(Enum):
    """Which legs find the candidates of a text."""

    HYBRID = "hybrid"
    """By meaning and by words, fused."""
    DENSE = "dense"
    """By meaning: the vectors of the texts."""
    LEXICAL = "lexical"
    """By words: BM25. Needs no model."""


class IndexKind(Enum):
    """The kinds of index behind the `VectorIndex` contract."""

    AUTO = "auto"
    """Exact up to a million rows; past that the fastest that was measured to be good enough."""
    FLAT = "flat"
    """Every vector is compared: exact."""
    HNSW = "hnsw"
    """A graph of neighbours; the vectors in memory."""
    IVF = "ivf"
    """Cells of product-quantised vectors; a tenth of the memory."""


RECALL = 0.98
"""The share of the nearest rows that an approximate index must find."""


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """How a new store compares and indexes its vectors.

    The metric is fixed when the store is made; the rest can be changed by `Engine.tune`. A kind
    that is approximate is used once its recall was measured to be at or above `recall` (with 95 %
    certainty) on the store's own rows; until then, and where it never is, answers are exact.
    """

    metric: Metric = Metric.COSINE
    kind: IndexKind = IndexKind.AUTO
    recall: float = RECALL

    def __post_init__(self) -> None:
        check_recall(self.recall)
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


def check_recall(recall: object) -> float:
    """A share in (0, 1]. Raises `InvalidInputError`."""
    if isinstance(recall, bool) or not isinstance(recall, Real) or not 0 < float(recall) <= 1:
        raise InvalidInputError(f"recall must be a share above 0 and up to 1, not {recall!r}")
    return float(recall)
