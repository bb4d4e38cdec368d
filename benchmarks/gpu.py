"""Exact search on a GPU against what its memory and matrix units can do in the same run.

    python benchmarks/gpu.py [--rows N …] [--queries M] [--device cuda]

The vectors are synthetic: random unit vectors of 384 numbers, and queries that are rows moved by
three tenths. On a CPU it takes the same ways at a small size, which measures nothing of a GPU.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import click
import numpy as np
import torch
from numpy.typing import NDArray

from engine.index import batch, half, scorer
from engine.index.contract import Candidates, exact_top
from engine.index.flat import FlatIndex
from engine.settings import Metric

D = 384
K = 10
SAMPLE = 16
ROUNDS = 5
ROWS_A_BLOCK = 1 << 18


def seconds(run: Callable[[], object], on: torch.device) -> float:
    """What a run takes until the device is idle."""
    started = time.perf_counter()
    run()
    if on.type == "cuda":
        torch.cuda.synchronize(on)
    return time.perf_counter() - started


def limits(on: torch.device) -> tuple[float, float]:
    """Bytes a second that a copy reads and writes, and bfloat16 operations a second of a product
    of square matrices; the best of several, printed."""
    size, side = (1 << 30, 8192) if on.type == "cuda" else (1 << 26, 512)
    data = torch.ones(size, dtype=torch.uint8, device=on)
    other = torch.empty_like(data)
    a = torch.rand((side, side), device=on).bfloat16()
    best = [
        min(seconds(run, on) for _ in range(10))
        for run in (lambda: other.copy_(data), lambda: a @ a)
    ]
    bandwidth, rate = 2 * size / best[0], 2 * side**3 / best[1]
    print(f"limits: {bandwidth / 1e9:,.0f} GB/s copied, {rate / 1e12:,.2f} bf16 TFLOP/s multiplied")
    return bandwidth, rate


def blocks(n: int, on: torch.device) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Ids and random unit vectors, made on the device."""
    source = torch.Generator(on).manual_seed(n)
    for start in range(0, n, ROWS_A_BLOCK):
        count = min(ROWS_A_BLOCK, n - start)
        rows = torch.randn((count, D), generator=source, device=on)
        rows /= rows.norm(dim=1, keepdim=True)
        yield np.arange(start, start + count), rows.cpu().numpy()


def truth(index: FlatIndex, queries: NDArray[np.float32], on: torch.device) -> list[set[int]]:
    """The ids of the K nearest by float64 products of every row, taken by torch alone."""
    wide = torch.from_numpy(queries).to(on, torch.float64)
    best = scorer.Running.of(len(queries), K, on)
    for start in range(0, len(index.ids), ROWS_A_BLOCK):
        rows = scorer.shared(index.vectors[start : start + ROWS_A_BLOCK]).to(on).double()
        best = best.joined(rows @ wide.T, start)
    return [set(positions.tolist()) for _, positions in best.answers()]


def measure(n: int, m: int, on: torch.device, bandwidth: float, rate: float) -> None:
    """Print the times of the ways at n rows and m queries, and how right they are."""
    index = FlatIndex.build(blocks(n, on), D)
    rng = np.random.default_rng(n)
    queries = index.vectors[rng.integers(0, n, m)]
    queries = queries + rng.standard_normal((m, D), dtype=np.float32) * np.float32(0.3 / D**0.5)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    first = seconds(lambda: half.copy_of(index, on), on)
    copy = half.copy_of(index, on)
    streamed = replace(copy, rows=None)
    where = "streamed: it does not fit" if copy.rows is None else "resident"
    print(f"\n{n:,} rows: bf16 copy made in {first:.2f} s, {2 * n * D / 1e9:.2f} GB, {where}")

    def ours(of: NDArray[np.float32], halved: bool) -> list[Candidates]:
        return batch.exact_many(index, of, K, Metric.COSINE, on=on, halved=halved)

    wanted = 4 * K + 32
    ways: dict[str, tuple[int, Callable[[], object]]] = {
        "one query, FAISS on the CPU": (1, lambda: exact_top(index, queries[0], K, Metric.COSINE)),
        "one query, bf16": (1, lambda: ours(queries[:1], True)),
        "one query, bf16, the scan alone": (
            1,
            lambda: half.nearest_many(index, copy, queries[:1], wanted, None),
        ),
        f"{m} queries, float32": (m, lambda: ours(queries, False)),
        f"{m} queries, bf16": (m, lambda: ours(queries, True)),
        f"{m} queries, bf16, the scan alone": (
            m,
            lambda: half.nearest_many(index, copy, queries, wanted, None),
        ),
        f"{m} queries, bf16, the scan alone, streamed": (
            m,
            lambda: half.nearest_many(index, streamed, queries, wanted, None),
        ),
    }
    middle = {}
    for name, (count, run) in ways.items():
        run()
        taken = middle[name] = statistics.median(seconds(run, on) for _ in range(ROUNDS))
        line = f"  {name}: {1e3 * taken:,.2f} ms, {count / taken:,.0f}/s"
        if "bf16" in name:
            line += (
                f"; {2 * n * D / taken / bandwidth:.1%} of the memory's bandwidth, "
                f"{2 * count * n * D / taken / rate:.1%} of the bf16 rate"
            )
        print(line)
    ratio = middle[f"{m} queries, bf16"] / middle[f"{m} queries, float32"]
    print(f"  bf16 takes {ratio:.3f} of the time of float32")
    sample = queries[:SAMPLE]
    exact, found = truth(index, sample, on), ours(sample, True)
    right = sum(len(set(a.ids.tolist()) & b) for a, b in zip(found, exact, strict=True))
    pairs = [half.nearest_many(index, one, sample, wanted, None) for one in (copy, streamed)]
    apart = max(float(np.abs(a[0] - b[0]).max()) for a, b in zip(*pairs, strict=True))
    same = all(
        a.ids.tolist() == b.ids.tolist() and a.similarities.tolist() == b.similarities.tolist()
        for a, b in zip(found, ours(sample, False), strict=True)
    )
    print(
        f"  recall@{K} against float64 on {len(sample)} queries: {right / (K * len(sample)):.4f}; "
        f"ids and similarities {'the same as' if same else 'DIFFERENT from'} float32's; "
        f"streamed and resident scores differ by {apart:.1e} at most"
    )


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--rows", type=click.IntRange(2000), multiple=True, default=(1_000_000, 10_000_000))
@click.option("--queries", type=click.IntRange(1), default=256, show_default=True)
@click.option("--device", default=None, help="[default: the GPU where there is one]")
def main(rows: tuple[int, ...], queries: int, device: str | None) -> None:
    on = scorer.device() if device is None else torch.device(device)
    if on.type == "cuda":
        on = torch.device("cuda", on.index or 0)
    name = torch.cuda.get_device_name(on) if on.type == "cuda" else platform.machine()
    print(f"{name}, torch {torch.__version__}, Python {platform.python_version()}")
    print(f"synthetic unit vectors of {D}, bf16 chosen by default: {half.fast_on(on)}")
    bandwidth, rate = limits(on)
    for n in rows:
        measure(n, queries, on, bandwidth, rate)


if __name__ == "__main__":
    main()
