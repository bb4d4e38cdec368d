"""The attention of a query's words over the words of many texts at once.

    s_ij = q_i . d_j,  a_ij = exp(s_ij / tau) / sum_j exp(s_ij / tau),  m_i = sum_j a_ij s_ij

m_i is q_i . c_i with the context vector c_i = sum_j a_ij d_j (Vaswani et al., 2017, eq. 1). The
candidates of a query are a few thousand words: numpy does it in a millisecond, without the second
that torch takes to load. Where torch is loaded and has a GPU, that does it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from engine.arrays import Float32Array, Float64Array, IdArray


def word_matches(
    query: Float32Array, texts: Float32Array, cuts: IdArray, temperature: float
) -> Float64Array:
    """How well each of n texts answers each of q words: (q, n); 0 for a text without words.

    Unit rows `query` (q, w) and `texts` (N, w), the words of text i being [cuts[i], cuts[i + 1]).
    One product for all texts, and sums by segment, in float64 since a text may have thousands of
    words: what a text is given does not depend on the others. exp((s - 1) / tau) neither overflows
    nor, for tau of 0.025 at least, vanishes in float32.
    """
    matches = np.zeros((len(query), len(cuts) - 1))
    filled = np.flatnonzero(np.diff(cuts))
    if len(filled):
        shared = _products(texts, query)
        powers = np.exp((shared - 1.0) / np.float32(temperature))
        both = np.concatenate([powers, powers * shared], axis=1, dtype=np.float64)
        summed = np.add.reduceat(both, cuts[:-1][filled], axis=0)
        total, weighted = np.split(summed, 2, axis=1)
        matches[:, filled] = (weighted / total).T
    return matches


def _products(texts: Float32Array, query: Float32Array) -> Float32Array:
    """texts @ query.T, (N, q), by the GPU where torch is loaded and has one."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return texts @ query.T
    from engine.index.scorer import whole_kind

    kind = whole_kind()
    with torch.inference_mode(), torch.autocast("cuda", enabled=False):
        rows, asked = (torch.from_numpy(one).to("cuda", kind) for one in (texts, query))
        found: Float32Array = (rows @ asked.T).float().cpu().numpy()
    return found
