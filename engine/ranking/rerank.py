"""The rerank stage: what the candidates of a query get on top of their similarity.

Batch-independent: a query's answer does not depend on the other queries of the batch, nor on
padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.errors import InvalidInputError
from engine.ranking.attention import attend
from engine.ranking.confidence import temperature_of
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


class AttentionReranker:
    """Softmax attention of the query over its candidates' vectors.

    Softmax is strictly increasing, so over the candidates' own similarities it never changes
    their order: the weights tell how sure the ranking is. `temperature` None takes 1.3 standard
    deviations of all the query's candidates' similarities (`confidence.temperature_of`).
    """

    def __init__(self, temperature: float | None = None) -> None:
        if temperature is not None and not 0 < temperature < float("inf"):
            raise InvalidInputError(f"the temperature must be a number above 0, not {temperature}")
        self.temperature = temperature

    def rerank(self, batch: Sequence[RerankInput], k: int) -> list[Reranked]:
        """See `Reranker.rerank`; the order stays that of the similarities."""
        if not batch:
            return []
        longest = max(min(k, len(one.vectors)) for one in batch)
        queries = np.stack([one.query for one in batch]).astype(np.float64)[:, None, :]
        keys = np.zeros((len(batch), longest, queries.shape[-1]))
        mask = np.zeros((len(batch), longest), dtype=np.bool_)
        temperatures = np.empty((len(batch), 1, 1))
        for number, one in enumerate(batch):
            rows = one.vectors[:k]
            keys[number, : len(rows)] = rows
            mask[number, : len(rows)] = True
            temperatures[number] = self.temperature or temperature_of(one.similarities)
        k_and_v = torch.from_numpy(keys)
        context, weights = attend(
            torch.from_numpy(queries),
            k_and_v,
            k_and_v,
            torch.from_numpy(temperatures),
            torch.from_numpy(mask),
        )
        return [
            Reranked(
                order=np.arange(len(one.vectors[:k])),
                scores=one.similarities[:k],
                weights=weights[number, 0, : len(one.vectors[:k])].numpy(),
                context=context[number, 0].numpy(),
                temperature=float(temperatures[number, 0, 0]),
            )
            for number, one in enumerate(batch)
        ]
