"""Which words of one text find an answer in which words of another.

    s_ij = q_i . d_j                    what two words share, a cosine
    a_ij = softmax_j(s_ij / tau)        the attention of word i over the other text's words
    m_i = sum_j a_ij s_ij               how well the other text answers word i
    A = sum_i w_i m_i                   every word weighing the same, w_i = 1 / words

(Attention of Vaswani et al., 2017, eq. 1, over contextual word vectors; m_i is q_i . c_i with the
context vector c_i = sum_j a_ij d_j.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.ranking.attention import attend
from engine.types import Explanation, Float32Array, Word

TEMPERATURE = 0.05


def explain(
    texts: tuple[str, str],
    words: tuple[Sequence[Word], Sequence[Word]],
    vectors: tuple[Float32Array, Float32Array],
    similarity: float,
    temperature: float = TEMPERATURE,
) -> Explanation:
    """Attention of the first text's words, unit rows (n, d), over the second's, (m, d).

    A text without words gives an empty explanation.
    """
    q, d = (torch.from_numpy(rows.astype(np.float64)) for rows in vectors)
    context, weights = attend(q, d, d, temperature)
    match = (q * context).sum(-1)
    share = match / max(1, len(match))
    heat = weights.mean(0) if len(weights) else weights.sum(0)
    return Explanation(
        a=texts[0],
        b=texts[1],
        similarity=similarity,
        attention_score=float(share.sum()),
        temperature=temperature,
        words_a=tuple(words[0]),
        words_b=tuple(words[1]),
        attention=tuple(tuple(row) for row in weights.tolist()),
        match=tuple(match.tolist()),
        share=tuple(share.tolist()),
        heat=tuple(heat.tolist()),
    )
