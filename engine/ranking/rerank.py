"""The rerank stage: what the candidates of a query get on top of their similarity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.errors import InvalidInputError
from engine.ranking.attention import attend
from engine.ranking.confidence import temperature_of
from engine.ranking.contract import Reranked, RerankInput


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
