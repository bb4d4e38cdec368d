"""A cross-encoder in place of the attention: a model of its own reads query and text together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sentence_transformers import CrossEncoder

from engine.errors import ModelError, ModelUnavailableError
from engine.files import Mutex
from engine.ranking.contract import Reranked, RerankInput
from engine.ranking.rerank import ranked

_PAIRS_A_BATCH = 32


class CrossEncoderReranker:
    """Ranks candidates by a sentence-transformers `CrossEncoder`, by hub name or local path.

    Slow: every candidate is read with the query. A query without a text keeps the candidates'
    order by similarity. With `offline` nothing is fetched. Raises `ModelUnavailableError`.
    """

    def __init__(self, model: str, *, offline: bool = False) -> None:
        self.name = model
        self._lock = Mutex()
        try:
            self._model = CrossEncoder(model, local_files_only=offline)
        except Exception as error:  # any of three libraries may fail here, each in its own way
            reason = "it is not on this machine" if offline else str(error).splitlines()[0]
            raise ModelUnavailableError(
                f"the cross-encoder {model} cannot be loaded: {reason}"
            ) from error

    def rerank(self, batch: Sequence[RerankInput], k: int) -> list[Reranked]:
        """See `Reranker.rerank`; the scores are the model's, whatever their range."""
        return [self._rerank(one, k) for one in batch]

    def _rerank(self, one: RerankInput, k: int) -> Reranked:
        scores, name = one.similarities, "cosine"
        if one.text is not None and len(one.texts):
            pairs: Any = [(one.text, text) for text in one.texts]
            with self._lock:
                found = self._model.predict(
                    pairs, batch_size=_PAIRS_A_BATCH, show_progress_bar=False
                )
            scores, name = np.asarray(found, dtype=np.float64), "cross-encoder"
            if scores.shape != one.similarities.shape or not np.isfinite(scores).all():
                raise ModelError(f"the cross-encoder {self.name} gives no single score a pair")
        return ranked(one, {name: scores}, k)
