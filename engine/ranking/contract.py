"""What a rerank stage is given and what it answers; the read route knows no more of it.

Batch-independent: a query's answer does not depend on the other queries of the batch, nor on
padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.types import Float32Array, Float64Array


@dataclass(frozen=True, slots=True)
class RerankInput:
    """One query's candidates, best first: query (d,), vectors (n, d), similarities (n,)."""

    query: Float32Array
    vectors: Float32Array
    similarities: Float64Array


@dataclass(frozen=True, slots=True)
class Reranked:
    """The hits of one query: the best min(k, n) candidates, best first.

    `order` are their places among the candidates, `scores` what ranked them. `weights` sum to 1:
    each hit's share of the attention. `context` (d,) is their vectors' weighted sum: what the
    hits together say to the query. `temperature` is that of the softmax.
    """

    order: NDArray[np.intp]
    scores: Float64Array
    weights: Float64Array
    context: Float64Array
    temperature: float


class Reranker(Protocol):
    """Ranks the candidates of one or more queries anew."""

    def rerank(self, batch: Sequence[RerankInput], k: int) -> list[Reranked]:
        """The best k candidates of each query, one answer a query, in order."""
