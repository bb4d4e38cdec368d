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

import torch
from torch import Tensor


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
