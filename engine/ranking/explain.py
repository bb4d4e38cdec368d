"""Which words of one text find an answer in which words of another.

    s_ij = q_i . d_j                    what two words share, a cosine
    a_ij = softmax_j(s_ij / tau)        the attention of word i over the other text's words
    m_i = sum_j a_ij s_ij               how well the other text answers word i
    A = sum_i w_i m_i                   w_i sum to 1
    h_j = sum_i w_i a_ij                the heat of word j; sums to 1

(Attention of Vaswani et al., 2017, eq. 1, over contextual word vectors; m_i is q_i . c_i with the
context vector c_i = sum_j a_ij d_j.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.arrays import Float32Array, Float64Array
from engine.ranking.confidence import softmax
from engine.ranking.contract import ATTENTION_TEMPERATURE
from engine.types import Explanation, Word


def explain(
    texts: tuple[str, str],
    words: tuple[Sequence[Word], Sequence[Word]],
    vectors: tuple[Float32Array, Float32Array],
    similarity: float,
    *,
    weights: Float64Array | None = None,
    parts: Mapping[str, float] | None = None,
    temperature: float = ATTENTION_TEMPERATURE,
) -> Explanation:
    """Attention of the first text's words, unit rows (n, d), over the second's, (m, d).

    `weights` (n,) sum to 1; None weighs every word the same. A text without words gives an empty
    explanation.
    """
    q, d = (rows.astype(np.float64) for rows in vectors)
    attention = softmax(q @ d.T, temperature)
    match = (q * (attention @ d)).sum(axis=1)
    weight = np.full(len(match), 1 / max(1, len(match))) if weights is None else weights
    share = weight * match
    return Explanation(
        a=texts[0],
        b=texts[1],
        similarity=similarity,
        attention_score=float(share.sum()),
        temperature=temperature,
        words_a=tuple(words[0]),
        words_b=tuple(words[1]),
        attention=tuple(map(tuple, attention.tolist())),
        match=tuple(match.tolist()),
        share=tuple(share.tolist()),
        heat=tuple((weight @ attention).tolist()),
        weight=tuple(weight.tolist()),
        parts=dict(parts or {}),
    )
