"""Enums, specs and the constants that more than one room needs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from numbers import Real

from engine.errors import InvalidInputError

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_K = 10
ENDPOINT = "openai:"
"""What the name of a model behind an HTTP endpoint begins with."""


class Metric(Enum):
    """How two vectors are compared; higher is better for both."""

    COSINE = "cosine"
    """Inner product of unit vectors, in [-1, 1]."""
    IP = "ip"
    """Inner product of the vectors as they are."""


class Runtime(Enum):
    """What runs a sentence-transformers model; all give the same vectors."""

    AUTO = "auto"
    """onnxruntime where it can, and there is no GPU; else sentence-transformers."""
    SENTENCE_TRANSFORMERS = "sentence-transformers"
    """torch, as the model comes; on a GPU where there is one."""
    ONNX = "onnx"
    """onnxruntime on the CPU: loads in a fraction of the time."""


class Precision(Enum):
    """In what a sentence-transformers model computes: vectors of two precisions are not mixed."""

    FLOAT32 = "float32"
    """As the model comes."""
    INT8 = "int8"
    """Matrix products of 8-bit integers, in onnxruntime on the CPU: quicker, a little less true."""

    @classmethod
    def of(cls, fingerprint: str) -> Precision:
        """The precision of the vectors of a fingerprint that `marked` made."""
        return cls.INT8 if _MARKED.fullmatch(fingerprint) else cls.FLOAT32

    def marked(self, fingerprint: str) -> str:
        """The fingerprint of a model, in this precision; float32 leaves it as it is."""
        return fingerprint if self is Precision.FLOAT32 else f"{fingerprint}-{self.value}"


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
    FACTORY = "factory"
    """What FAISS makes of a given factory string."""


_MARKED = re.compile(f"[0-9a-f]{{64}}-{Precision.INT8.value}")
"""The fingerprint of a model's files, marked; another embedder may end its own as it likes."""

RECALL = 0.98
"""The share of the nearest rows that an approximate index must find."""


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """How a new store compares and indexes its vectors.

    The metric is fixed when the store is made; the rest can be changed by `Engine.tune`. A kind
    that is approximate is used once its recall was measured to be at or above `recall` (with 95 %
    certainty) by rows of the store, held out; until then, and where it never is, answers are exact.
    A `factory` string of FAISS, such as "IVF1024,PQ48x4fs", is a kind of its own.
    """

    metric: Metric = Metric.COSINE
    kind: IndexKind = IndexKind.AUTO
    recall: float = RECALL
    factory: str | None = None

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
        object.__setattr__(self, "kind", kind_with(self.kind, self.factory))


def kind_with(kind: IndexKind, factory: object) -> IndexKind:
    """The kind that a factory string, or none, makes of `AUTO` or `FACTORY`; that kind itself.

    Raises `InvalidInputError` for a string beside another kind, and where one is lacking.
    """
    if factory is None:
        if kind is IndexKind.FACTORY:
            raise InvalidInputError("the kind 'factory' needs a FAISS factory string")
        return kind
    if not isinstance(factory, str):
        raise InvalidInputError(f"factory must be a FAISS factory string, not {factory!r}")
    if kind not in (IndexKind.AUTO, IndexKind.FACTORY):
        raise InvalidInputError(f"give either a factory string or the kind '{kind.value}'")
    return IndexKind.FACTORY


def check_recall(recall: object) -> float:
    """A share in (0, 1]. Raises `InvalidInputError`."""
    if isinstance(recall, bool) or not isinstance(recall, Real) or not 0 < float(recall) <= 1:
        raise InvalidInputError(f"recall must be a share above 0 and up to 1, not {recall!r}")
    return float(recall)
