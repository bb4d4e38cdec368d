"""The temperature at which scores become a read-out of confidence."""

from __future__ import annotations

import numpy as np

from engine.types import Float64Array

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
