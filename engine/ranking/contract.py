"""What a rerank stage is given and what it answers; the read route knows no more of it.

Batch-independent: a query's answer does not depend on the other queries of the batch, nor on
padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.arrays import Float32Array, Float64Array, IdArray

ATTENTION_TEMPERATURE = 0.1


@dataclass(frozen=True, slots=True)
class WordInput:
    """The words of a query and of its n candidates, unit rows in one space of w directions.

    `query` (q, w) with `weights` (q,) that sum to 1; `texts` (N, w) are the candidates' words end
    to end, those of candidate i being rows [cuts[i], cuts[i + 1]); a candidate may have none.
    """

    query: Float32Array
    weights: Float64Array
    texts: Float32Array
    cuts: IdArray


@dataclass(frozen=True, slots=True)
class RerankInput:
    """One query's candidates, best first: query (d,), vectors (n, d), similarities (n,).

    `text` is the query's, None for a vector; `texts` those of the candidates, where the
    reranker reads them. `lexical` (n,) are
    BM25 scores, None where there was no lexical leg; `words` is None where there are no words.
    `bare` (n,) says of a query of one word how near those candidates are that are one word too, NaN
    for the others, by vectors without context; `bare_share` is how much of their score that makes.
    """

    query: Float32Array
    vectors: Float32Array
    similarities: Float64Array
    text: str | None = None
    texts: Sequence[str] = ()
    lexical: Float64Array | None = None
    words: WordInput | None = None
    bare: Float64Array | None = None
    bare_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Reranked:
    """The hits of one query: the best min(k, n) candidates, best first.

    `order` are their places among the candidates, `scores` what ranked them. `weights` sum to 1:
    each hit's share of the attention. `context` (d,) is their vectors' weighted sum: what the
    hits together say to the query. `temperature` is that of the softmax. `parts` are named
    summands of the scores, each (hits,). `attention_temperature` is that of the softmax over a
    text's words, which explanations take too.
    """

    order: NDArray[np.intp]
    scores: Float64Array
    weights: Float64Array
    context: Float64Array
    temperature: float
    parts: dict[str, Float64Array] = field(default_factory=dict)
    attention_temperature: float = ATTENTION_TEMPERATURE


class Reranker(Protocol):
    """Ranks the candidates of one or more queries anew.

    One that has an attribute `reads_texts` that is False is given no `texts`.
    """

    def rerank(self, batch: Sequence[RerankInput], k: int) -> list[Reranked]:
        """The best k candidates of each query, one answer a query, in order."""
