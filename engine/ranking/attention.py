"""Masked scaled dot-product attention, as pure functions on tensors.

    scores = Q K^T / temperature     how much each query shares with each key
    weights = softmax(scores)        relative, positive, summing to 1 over the keys
    context = weights V              the keys' values as the query sees them

(Vaswani et al., Attention Is All You Need, 2017, eq. 1, with the temperature in place of sqrt(d):
sqrt(d) fits vectors that are not normalised.) A masked key has weight 0 and changes no result;
a query all of whose keys are masked has weights and context of 0. Masks are True where a key
counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.index.scorer import whole_kind
from engine.types import Float32Array, Float64Array, IdArray


class Attention(NamedTuple):
    """`context` (..., Q, V) and the `weights` (..., Q, K) that made it."""

    context: Tensor
    weights: Tensor


def scores(queries: Tensor, keys: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """Inner products over the temperature: (..., Q, D) and (..., K, D) -> (..., Q, K)."""
    return queries @ keys.transpose(-2, -1) / temperature


def masked_softmax(logits: Tensor, mask: Tensor | None = None, dim: int = -1) -> Tensor:
    """Softmax over the unmasked entries of `dim`, 0 elsewhere.

    Shifted by the greatest entry, so that no temperature overflows; `mask` broadcasts.
    """
    if mask is None or logits.shape[dim] == 0:
        return torch.softmax(logits, dim)
    logits = logits.masked_fill(~mask, -torch.inf)
    top = logits.amax(dim, keepdim=True)
    top = torch.where(torch.isfinite(top), top, torch.zeros_like(top))
    weights = torch.exp(logits - top)
    total = weights.sum(dim, keepdim=True)
    return weights / torch.where(total > 0, total, torch.ones_like(total))


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    temperature: float | Tensor = 1.0,
    mask: Tensor | None = None,
) -> Attention:
    """Attention of queries (..., Q, D) over keys (..., K, D) with values (..., K, V).

    `mask` (..., K), True where a key counts.
    """
    over_keys = None if mask is None else mask.unsqueeze(-2)
    weights = masked_softmax(scores(queries, keys, temperature), over_keys)
    return Attention(weights @ values, weights)


def attend_sequence(
    state: Tensor, sequence: Tensor, temperature: float = 1.0, mask: Tensor | None = None
) -> Attention:
    """One decoder state (1, B, H) over an encoder's sequence (S, B, H), time first.

    state * sequence -> (S, B), softmax over S -> (B, 1, S), times (B, S, H) -> context
    (B, 1, H) (Luong et al., Effective Approaches to Attention-based NMT, 2015, dot score).
    `mask` (S, B), True where a position counts.
    """
    by_batch = sequence.transpose(0, 1)
    over = None if mask is None else mask.transpose(0, 1)
    return attend(state.transpose(0, 1), by_batch, by_batch, temperature, over)


def word_matches(
    query: Float32Array, texts: Float32Array, cuts: IdArray, temperature: float
) -> Float64Array:
    """How well each of n texts answers each of q words: (q, n); 0 for a text without words.

    Unit rows `query` (q, w) and `texts` (N, w), the words of text i being [cuts[i], cuts[i + 1]).

        s_ij = q_i . d_j,  a_ij = exp(s_ij / tau) / sum_j exp(s_ij / tau),  m_i = sum_j a_ij s_ij

    m_i is q_i . c_i with the context vector c_i = sum_j a_ij d_j. One product for all texts, and
    sums by segment, in float64 since a text may have thousands of words: what a text is given does
    not depend on the others. exp((s - 1) / tau) neither overflows nor, for tau of 0.025 at least,
    vanishes in float32.
    """
    on = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind = whole_kind()
    lengths = torch.from_numpy(np.diff(cuts)).to(on)
    with torch.inference_mode(), torch.autocast(on.type, enabled=False):
        shared = torch.from_numpy(texts).to(on, kind) @ torch.from_numpy(query).to(on, kind).T
        powers = torch.exp((shared - 1.0) / temperature)
        both = torch.cat([powers, powers * shared], dim=1).double()
        summed = torch.segment_reduce(
            both, "sum", lengths=lengths, axis=0, initial=0.0, unsafe=True
        )
        total, weighted = summed.chunk(2, dim=1)
        matches = weighted / torch.where(total > 0, total, torch.ones_like(total))
    return matches.T.cpu().numpy()
