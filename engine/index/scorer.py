"""Batches of queries scored exactly by torch: blocked products and a running top-k.

Never a full (queries x rows) matrix. On a GPU the rows stream through in blocks, so the
collection may be larger than the device's memory. This is the way with every bit of float32;
`half` is the fast one where there is a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Self

import numpy as np
import torch

from engine.arrays import BoolArray, Float32Array
from engine.index.contract import Positions, VectorIndex

_ROWS_A_BLOCK = 16_384
_ROWS_A_BLOCK_CUDA = 262_144
_SCORES_A_BLOCK = 1 << 25
_GROUP = 16


def device() -> torch.device:
    """The GPU where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Running:
    """The best of the rows seen so far: float scores (m, k), best first, and their positions."""

    scores: torch.Tensor
    places: torch.Tensor

    @classmethod
    def of(cls, queries: int, k: int, on: torch.device) -> Self:
        """Nothing seen yet."""
        shape = (queries, k)
        scores = torch.full(shape, -torch.inf, dtype=torch.float32, device=on)
        return cls(scores, torch.full(shape, -1, dtype=torch.int64, device=on))

    def joined(self, scores: torch.Tensor, start: int) -> Self:
        """With the (n, m) scores of the n rows from position `start` on."""
        k = self.scores.shape[1]
        found, at = _candidates(scores, k, self.scores[:, -1])
        best, chosen = torch.cat([self.scores, found], dim=1).topk(k, dim=1)
        places = torch.cat([self.places, at + start], dim=1).gather(1, chosen)
        return type(self)(best, places)

    def answers(self) -> list[tuple[Float32Array, Positions]]:
        """For each query its float32 scores and positions."""
        scores = self.scores.to("cpu", torch.float32)
        return list(zip(scores.numpy(), self.places.cpu().numpy(), strict=True))


def rows_at_once(queries: int, on: torch.device) -> int:
    """How many rows make a block of scores that the device holds."""
    step = _ROWS_A_BLOCK if on.type == "cpu" else _ROWS_A_BLOCK_CUDA
    return max(1, min(step, _SCORES_A_BLOCK // queries))


def nearest_many(
    index: VectorIndex,
    queries: Float32Array,
    k: int,
    keep: BoolArray | None,
    on: torch.device | None = None,
) -> list[tuple[Float32Array, Positions]]:
    """For each of the (m, d) queries what `VectorIndex.nearest` gives for one.

    Work memory: a block of at most 2**25 scores, and m x k results.
    """
    on = on or device()
    rows_total = len(index.ids)
    kept = rows_total if keep is None else int(keep.sum())
    k = min(k, kept)
    if k == 0 or len(queries) == 0:
        nothing = torch.empty(0)
        return [(nothing.numpy(), nothing.long().numpy())] * len(queries)
    step, kind = rows_at_once(len(queries), on), whole_kind()
    wanted = torch.from_numpy(queries).to(on, kind)
    best = Running.of(len(queries), k, on)
    with torch.inference_mode(), torch.autocast(on.type, enabled=False):
        room = torch.empty((min(step, rows_total), len(queries)), dtype=kind, device=on)
        for start in range(0, rows_total, step):
            stop = min(start + step, rows_total)
            rows = shared(index.vectors[start:stop]).to(on).to(kind)
            scores = torch.mm(rows, wanted.T, out=room[: len(rows)])
            if keep is not None:
                barred = ~torch.from_numpy(keep[start:stop]).to(on)
                scores.masked_fill_(barred.unsqueeze(1), -torch.inf)
            best = best.joined(scores, start)
    return best.answers()


def whole_kind() -> torch.dtype:
    """float32, or float64 where the process lets float32 products be taken with fewer bits.

    torch raises where that was set for some devices alone; then it may be for this one.
    """
    try:
        whole = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:
        whole = False
    return torch.float32 if whole else torch.float64


def _candidates(
    scores: torch.Tensor, k: int, above: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of (n, m) scores those among which, for each of the m queries, are its k greatest, as far
    as they are greater than `above` (m,): (m, c) scores and the rows they stand in.

    Of groups of rows only the k with the greatest maxima are looked into: every other has k
    scores outside it that are as great. On a CPU, of these only as many as hold something above:
    past the first blocks few do. (A GPU would have to wait to be told how many.)
    """
    n, m = scores.shape
    groups = n // _GROUP
    if groups <= 2 * k:
        return scores.T, torch.arange(n, device=scores.device).expand(m, -1)
    whole = groups * _GROUP
    maxima = scores[:whole].view(groups, _GROUP, m).amax(1).T.contiguous()
    if scores.device.type == "cpu":
        k = min(k, groups - int((maxima <= above.unsqueeze(1)).sum(1).min()))
    chosen = maxima.topk(k, dim=1, sorted=False).indices.unsqueeze(2)
    places = (chosen * _GROUP + torch.arange(_GROUP, device=scores.device)).flatten(1)
    if whole < n:
        rest = torch.arange(whole, n, device=scores.device).expand(m, -1)
        places = torch.cat([places, rest], dim=1)
    return scores.T.gather(1, places), places


def shared(rows: Float32Array) -> torch.Tensor:
    """The rows as a tensor on the same memory, which is only ever read.

    torch warns of arrays that are not writable, as memory-mapped ones are: it is shown the same
    memory without that flag.
    """
    described = dict(rows.__array_interface__)
    described["data"] = (described["data"][0], False)
    return torch.from_numpy(np.asarray(SimpleNamespace(__array_interface__=described)))
