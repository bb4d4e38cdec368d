"""Batches scanned in bfloat16 with proof: half the bytes, and a GPU's matrix units at full rate.

Rows x and queries q are rounded to x' and q'. By Cauchy-Schwarz

    |q.x - q'.x'| <= |q| |x - x'| + |q - q'| |x'|,

where the greatest |x - x'| and |x'| are measured once for each index, and |q - q'| for each
query. The product q'.x' is summed in float32: products of two bfloat16 numbers are exact there,
and what the sum can lose is added (`_summing`). Whatever the process allows to float32 products
(TF32, bfloat16) changes nothing here, since numbers of eight bits lose nothing by it.

On a GPU the rounded rows stay in its memory where they fit, for as long as the index lives; else
they pass through it block by block, the next one on its way while one is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from engine.arrays import BoolArray, Float32Array, Float64Array
from engine.files import Mutex
from engine.index.contract import Positions, VectorIndex
from engine.index.scorer import Running, rows_at_once, shared

SMALLEST = 16_384
"""Of fewer rows no copy is made: a float32 scan is as fast."""
_SHARE = 0.5
"""Of the device's free memory, the most that a copy may take."""
_BYTES_A_BLOCK = 1 << 26
_GREATEST = 2.0**126
"""Lengths, and products of lengths, up to this overflow neither in bfloat16 nor in a sum."""
_ROUNDING = 2.0**-22
"""More than what the steps in float64 can add."""
_LEAST = 2.0**-126
"""The least number of full precision of float32 and of bfloat16; a smaller one may become 0."""
_CAPABILITY = (8, 0)
"""The first GPUs of NVIDIA whose matrix units know bfloat16."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The greatest |x - x'| and |x'| of an index's rows, and x' (n, d) itself on the device `on`;
    None where its memory is too small for them."""

    on: torch.device
    residual: float
    longest: float
    rows: torch.Tensor | None


_copies: WeakKeyDictionary[VectorIndex, Copy] = WeakKeyDictionary()
_lock = Mutex()


def fast_on(on: torch.device) -> bool:
    """The device multiplies bfloat16 faster than float32, and its sums are known."""
    if on.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(on) >= _CAPABILITY


def copy_of(index: VectorIndex, on: torch.device) -> Copy:
    """The copy of the index's rows, made once for as long as the index lives."""
    with _lock:
        found = _copies.get(index)
        if found is None or found.on != on:
            found = _copies[index] = _made(index, on)
        return found


def errors(copy: Copy, queries: Float32Array) -> Float64Array:
    """How far a score that `nearest_many` gives to each of (m, d) queries can be from the true
    one; inf where sums could overflow. Where numbers are lost for being too small, in the
    measuring too, that is at most `_LEAST` in each of d places."""
    wide, d = queries.astype(np.float64), queries.shape[1]
    rounded = torch.tensor(queries).bfloat16().double().numpy()
    length = np.linalg.norm(wide, axis=1)
    own = np.linalg.norm(rounded, axis=1)
    lost = np.linalg.norm(wide - rounded, axis=1)
    with np.errstate(invalid="ignore"):
        bound = length * copy.residual + (lost + _summing(d) * own) * copy.longest
    bound = bound * (1 + _ROUNDING) + 4 * d * _LEAST * (1 + length + copy.longest)
    fits = np.maximum(length, 1) * max(copy.longest, 1) <= _GREATEST
    return np.where(fits, bound, np.inf)


def _summing(d: int) -> float:
    """What a float32 sum of d products loses at most, relative to the product of the lengths.

    Higham's gamma, n u / (1 - n u), as in `vectors.float32_error`, with u = 2**-22: matrix units
    align the products of a step to the greatest and cut them off instead of rounding them (Fasi,
    Higham, Mikaitis and Pranesh, Numerical behavior of NVIDIA tensor cores, PeerJ CS 7:e330), so
    each step of b products loses up to (b + 2) 2**-23 of their sizes' sum.
    """
    n_u = (d + 2) * 2.0**-22
    return n_u / (1.0 - n_u)


def nearest_many(
    index: VectorIndex, copy: Copy, queries: Float32Array, k: int, keep: BoolArray | None
) -> list[tuple[Float32Array, Positions]]:
    """For each of the (m, d) queries the k rows of greatest q'.x', best first: float32 scores and
    row positions. `keep` (n,) says which rows may be answered, k of them at least.

    Work memory on the device: the copy or two blocks of it, a block of scores, and m x k results.
    """
    on = copy.on
    step = rows_at_once(len(queries), on)
    with torch.inference_mode(), torch.autocast(on.type, enabled=False):
        wanted = torch.from_numpy(queries).bfloat16().to(on)
        barred = None if keep is None else torch.from_numpy(~keep).to(on)
        best = Running.of(len(queries), k, on)
        for start, rows in _rounded_blocks(index, copy):
            for first in range(0, len(rows), step):
                scores = _products(rows[first : first + step], wanted)
                at = start + first
                if barred is not None:
                    scores.masked_fill_(barred[at : at + len(scores)].unsqueeze(1), -torch.inf)
                best = best.joined(scores, at)
        return best.answers()


def _rounded_blocks(index: VectorIndex, copy: Copy) -> Iterator[tuple[int, torch.Tensor]]:
    if copy.rows is not None:
        yield 0, copy.rows
    else:
        yield from _sent(index.vectors, copy.on, torch.bfloat16)


def _products(rows: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """(n, d) and (m, d) bfloat16 -> (n, m) float32, summed in float32.

    The sum must not leave as bfloat16. Where torch cannot say so (on a CPU; before 2.8) the
    numbers are widened, which makes the same products.
    """
    if rows.is_cuda and hasattr(torch.ops.aten.mm, "dtype"):
        return torch.mm(rows, queries.T, out_dtype=torch.float32)
    return rows.float() @ queries.float().T


def _made(index: VectorIndex, on: torch.device) -> Copy:
    n, d = index.vectors.shape
    with torch.inference_mode():
        rows = _space(n, d, on)
        residual = longest = torch.zeros((), dtype=torch.float64, device=on)
        for start, block in _sent(index.vectors, on, torch.float32):
            rounded = block.bfloat16()
            longest = torch.maximum(longest, _longest(rounded))
            residual = torch.maximum(residual, _longest(block - rounded))
            if rows is not None:
                rows[start : start + len(block)] = rounded
        return Copy(on, float(residual), float(longest), rows)


def _longest(rows: torch.Tensor) -> torch.Tensor:
    lengths: torch.Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return lengths.max()


def _space(n: int, d: int, on: torch.device) -> torch.Tensor | None:
    """Memory for the copy, (n, d) bfloat16 on the device; None where it would take too much."""
    if on.type == "cuda":
        unused = torch.cuda.memory_reserved(on) - torch.cuda.memory_allocated(on)
        if 2 * n * d > _SHARE * (torch.cuda.mem_get_info(on)[0] + unused):
            return None
    try:
        return torch.empty((n, d), dtype=torch.bfloat16, device=on)
    except torch.cuda.OutOfMemoryError:
        return None


def _sent(
    rows: Float32Array, on: torch.device, kind: torch.dtype
) -> Iterator[tuple[int, torch.Tensor]]:
    """Blocks of (n, d) rows on the device, as numbers of that kind, and where each begins.

    A block is to be used at once: on a GPU two pinned buffers and two on the device take turns,
    so that one fills while the other is used.
    """
    n, d = rows.shape
    step = max(1, min(n, _BYTES_A_BLOCK // (d * kind.itemsize)))
    if on.type != "cuda":
        for start in range(0, n, step):
            yield start, shared(rows[start : start + step]).to(on, kind)
        return
    cuda: Any = torch.cuda
    used_by, copying = cuda.current_stream(on), cuda.Stream(on)
    pinned = [torch.empty((step, d), dtype=kind, device="cpu", pin_memory=True) for _ in range(2)]
    there = [torch.empty((step, d), dtype=kind, device=on) for _ in range(2)]
    copied, used = ([cuda.Event() for _ in range(2)] for _ in range(2))
    copying.wait_stream(used_by)
    for turn, start in enumerate(range(0, n, step)):
        at, part = turn % 2, shared(rows[start : start + step])
        used[at].synchronize()
        pinned[at][: len(part)].copy_(part)
        with cuda.stream(copying):
            there[at][: len(part)].copy_(pinned[at][: len(part)], non_blocking=True)
            copied[at].record(copying)
        used_by.wait_event(copied[at])
        yield start, there[at][: len(part)]
        used[at].record(used_by)
