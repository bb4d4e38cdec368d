"""Scores as a read-out of confidence: relative weights, not probabilities of relevance.

Softmax is strictly increasing, so it never changes an order.
"""

from __future__ import annotations

import numpy as np

from engine.arrays import Float64Array

SPREAD = 1.3
FLOOR = 0.02


def temperature_of(scores: Float64Array) -> float:
    """1.3 standard deviations of the candidates' scores, at least 0.02.

    With a fixed temperature of sqrt(d) the weights of unit vectors are all but equal. Fits of
    the softmax to relevance judgements lie at 1.2 to 1.7 standard deviations.
    """
    if len(scores) == 0:
        return FLOOR
    return max(FLOOR, SPREAD * float(np.std(scores)))


def softmax(scores: Float64Array, temperature: float) -> Float64Array:
    """exp(s_i / temperature) over their sum, along the last axis: it sums to 1, where there is any
    score; shifted, so nothing overflows."""
    powers = np.exp((scores - scores.max(axis=-1, keepdims=True, initial=-np.inf)) / temperature)
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def effective_number(weights: Float64Array) -> float:
    """exp of the entropy of weights that sum to 1: so many equal ones would be as spread out."""
    held = weights[weights > 0]
    return float(np.exp(-(held * np.log(held)).sum())) if len(held) else 0.0


def holding(weights: Float64Array, mass: float) -> int:
    """How many of the first of some weights hold a share `mass` of their sum, at least one."""
    reached = np.cumsum(weights) >= mass * weights.sum() - 1e-12
    return int(reached.argmax()) + 1 if len(weights) else 0
