"""Exact search against the limits: raw torch, numpy and FAISS on the same vectors in one run.

    python benchmarks/search.py --texts SYNSETS.TSV --cache VECTORS.NPY [--rows N …]

The vectors are those of WordNet's glosses, embedded once and kept in the cache file; where more
rows are asked for, the others are copies of them, each moved by a random tenth of its length
(and made a unit vector again). Queries are glosses that are not among the rows; where all are,
rows moved by three tenths. The exact ways answer ten queries each in turns; the medians and 95th
percentiles of their times stand side by side. The approximate ways are warm: other queries were
answered before.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.ingest import Free
from engine import Engine
from engine.settings import DEFAULT_MODEL, RECALL
from engine.types import Trial

Matrix = NDArray[np.float32]
K = 10
QUERIES = 100
TURN = 10
BATCH = 256
ROWS_A_BLOCK = 8192
TARGET = RECALL
WARMING = 500
ASKED = 500
WIDTHS = (16, 24, 32, 40, 48, 64, 96, 128, 192, 256)


def embedded(texts: Path, cache: Path) -> Matrix:
    """The glosses' vectors, from the cache if it is there."""
    if not cache.exists():
        from sentence_transformers import SentenceTransformer

        from engine.embedding.locate import locate

        with texts.open(encoding="utf-8", newline="") as lines:
            rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
            glosses = list(dict.fromkeys(row["definition"] for row in islice(rows, None)))
        model = SentenceTransformer(str(locate(DEFAULT_MODEL, offline=True).path))
        found = model.encode(glosses, show_progress_bar=True, normalize_embeddings=True)
        np.save(cache, np.asarray(found, np.float32))
    loaded: Matrix = np.load(cache)
    return loaded


def moved(rows: Matrix, by: float, rng: np.random.Generator) -> Matrix:
    """Unit rows, each moved by a random vector of about that length, and unit again."""
    noise = rng.standard_normal(rows.shape, dtype=np.float32) * np.float32(
        by / rows.shape[1] ** 0.5
    )
    noise += rows
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    return noise


def collection(real: Matrix, n: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    """So many rows, and queries."""
    count = QUERIES + BATCH + WARMING + ASKED
    if n + count <= len(real):
        order = rng.permutation(len(real))
        return real[order[:n]], real[order[n : n + count]]
    parts = [real]
    while sum(map(len, parts)) < n:
        parts.append(moved(real, 0.1, rng))
    rows = np.concatenate(parts)[:n]
    return rows, moved(rows[rng.integers(0, n, count)], 0.3, rng)


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def limits() -> None:
    """What the machine can do: streaming memory, and the product of two matrices."""
    data = np.ones(1 << 27, np.float32)
    best = min(seconds(data.sum) for _ in range(5))
    a, b = torch.rand(BATCH, 384), torch.rand(384, ROWS_A_BLOCK)
    gemm = min(seconds(lambda: a @ b) for _ in range(30))
    print(f"limits: {data.nbytes / best / 1e9:.0f} GB/s streamed by one thread, ", end="")
    print(f"{gemm_rate(gemm, 1, ROWS_A_BLOCK):.0f} GFLOP/s multiplied")


def gemm_rate(taken: float, times: int, rows: int) -> float:
    return 2 * BATCH * 384 * rows * times / taken / 1e9


def torch_batch(rows: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """Blocked products and a running top-k: the plain exact way for many queries."""
    best = torch.full((len(queries), K), -torch.inf)
    places = torch.zeros((len(queries), K), dtype=torch.int64)
    for start in range(0, len(rows), ROWS_A_BLOCK):
        top, at = (queries @ rows[start : start + ROWS_A_BLOCK].T).topk(K, dim=1)
        best, chosen = torch.cat([best, top], 1).topk(K, 1)
        places = torch.cat([places, at + start], 1).gather(1, chosen)
    return places


def measure(rows: Matrix, asked: Matrix, scratch: Path, approximate: bool) -> None:
    n = len(rows)
    queries, many = asked[:QUERIES], asked[QUERIES:][:BATCH]
    tensor, flat = torch.from_numpy(rows), faiss.IndexFlatIP(rows.shape[1])
    plain: Any = flat
    plain.add(rows)
    path = scratch / f"{n}.store"
    with Engine.create(path, model=Free()) as engine:
        taken = seconds(lambda: engine.add_vectors(rows, ids=[str(i) for i in range(n)]))
        print(f"\n{n:,} rows: stored and published in {taken:.0f} s ({n / taken:,.0f} rows/s)")
        built = seconds(engine.rebuild)
        stats = engine.stats()
        raw = rows.nbytes
        print(
            f"  index built in {built:.1f} s, {stats.index_bytes / n:,.0f} bytes a row; with the "
            f"database {(stats.index_bytes + stats.database_bytes) / raw:.2f} times the raw vectors"
        )

        def ours(query: Matrix) -> list[int]:
            return [int(h.id) for h in engine.search_vectors(query[None], rerank=False)[0].hits]

        def by_numpy(query: Matrix) -> list[int]:
            scores = rows @ query
            top = np.argpartition(scores, -K)[-K:]
            best: list[int] = top[np.argsort(-scores[top])].tolist()
            return best

        def by_torch(query: Matrix) -> list[int]:
            best: list[int] = (tensor @ torch.from_numpy(query)).topk(K).indices.tolist()
            return best

        def by_faiss(query: Matrix) -> list[int]:
            best: list[int] = plain.search(query[None], K)[1][0].tolist()
            return best

        with engine._store.reading() as view:
            snapshot = engine._open_index().snapshot(view)
        ways: dict[str, Callable[[Matrix], Any]] = {
            "torch, product and topk": by_torch,
            "numpy, product and argpartition": by_numpy,
            "faiss.IndexFlatIP": by_faiss,
            "attendex, the index alone": lambda query: snapshot.search(query, K).ids,
            "attendex, vector to hits": ours,
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        right = 0
        for start in range(0, QUERIES, TURN):
            for name, way in ways.items():
                time.sleep(0.05)  # threads of the way before may still spin, waiting for work
                way(queries[start])
                for query in queries[start : start + TURN]:
                    times[name].append(seconds(lambda way=way, query=query: way(query)))  # type: ignore[misc]
        for query in queries[:20]:
            exact = np.argsort(-(rows.astype(np.float64) @ query), kind="stable")[:K]
            right += len(set(exact.tolist()) & set(ours(query)))
        base = statistics.median(times["torch, product and topk"])
        for name, found in times.items():
            middle, p95 = statistics.median(found), float(np.quantile(found, 0.95))
            print(
                f"  {name}: p50 {1e3 * middle:.2f} ms, p95 {1e3 * p95:.2f} ms "
                f"({middle / base:.2f} of torch)"
            )
        print(f"  recall@{K} of the ids returned: {right / (20 * K):.4f}")
        together, tensors = many, torch.from_numpy(many)
        batches: dict[str, Callable[[], Any]] = {
            "torch, blocks and running topk": lambda: torch_batch(tensor, tensors),
            "attendex, the index alone": lambda: snapshot.search_many(together, K),
            "attendex, vectors to hits": lambda: engine.search_vectors(together, rerank=False),
        }
        rounds: dict[str, list[float]] = {name: [] for name in batches}
        for _ in range(5):
            for name, batch in batches.items():
                rounds[name].append(seconds(batch))
        for name, found in rounds.items():
            middle = statistics.median(found)
            print(
                f"  batch of {BATCH}: {name}: {1e3 * middle:.0f} ms, {BATCH / middle:,.0f}/s, "
                f"{gemm_rate(middle, 1, n):.0f} GFLOP/s"
            )
        if approximate:
            measure_approximate(engine, rows, asked[QUERIES + BATCH :], path)
    np.save(scratch / "query.npy", queries[:1])
    print("  " + _cold(path, scratch / "query.npy"))


Way = Callable[[Matrix], Sequence[int]]


def measure_approximate(engine: Engine, rows: Matrix, queries: Matrix, path: Path) -> None:
    """The approximate kinds at the recall they are tuned to, beside raw FAISS on the same file;
    and graphs of raw FAISS, hnswlib and usearch up to the first width of our graph's recall."""
    truth = [set(exact_ids(engine, query)) for query in queries[WARMING:]]
    wanted = {}
    for kind in ("hnsw", "ivf"):
        chosen = engine.tune(kind=kind).chosen
        print(
            f"  {kind}: {chosen.factory}, width {chosen.width}, {chosen.candidates} candidates, "
            f"built in {chosen.seconds:.0f} s, {chosen.bytes / len(rows):.0f} bytes a row, "
            f"recall@10 of its own rows, held out, {chosen.recall:.4f} "
            f"({chosen.low:.4f} to {chosen.high:.4f})"
        )
        if chosen.width:
            name = f"attendex {kind}, the index alone"
            wanted[kind] = report(name, approximate_way(engine), queries, truth)
            report(f"raw FAISS {kind}, as wide", raw_faiss(kind, chosen, path), queries, truth)
    for name, make in others(rows):
        for width in WIDTHS:
            found = report(f"{name}, width {width}", make(width), queries, truth)
            if found >= wanted.get("hnsw", TARGET):
                break


def report(name: str, way: Way, queries: Matrix, truth: list[set[int]]) -> float:
    """Print the median time and the recall of a way; returns the recall."""
    for query in queries[:WARMING]:
        way(query)
    times, right = [], 0
    for query, wanted in zip(queries[WARMING:], truth, strict=True):
        started = time.perf_counter()
        found = way(query)
        times.append(time.perf_counter() - started)
        right += len(wanted.intersection(found))
    recall = right / (K * len(truth))
    print(f"  {name}: p50 {1e3 * statistics.median(times):.3f} ms, recall@{K} {recall:.4f}")
    return recall


def exact_ids(engine: Engine, query: Matrix) -> list[int]:
    found = engine.search_vectors(query[None], k=K, rerank=False, exact=True)[0]
    return [int(hit.id) for hit in found.hits]


def approximate_way(engine: Engine) -> Way:
    with engine._store.reading() as view:
        snapshot = engine._open_index().snapshot(view)
    first = int(snapshot.base.ids[0])
    return lambda query: [id_ - first for id_ in snapshot.search(query, K).ids.tolist()]


def raw_faiss(kind: str, chosen: Trial, path: Path) -> Way:
    native: Any = faiss.read_index(str(next((path / "index").glob(f"{kind}-*.faiss"))))
    places = np.load(next((path / "index").glob("ids-*.npy"))) - 1
    if kind == "hnsw":
        width = max(chosen.width, chosen.candidates)
        parameters = getattr(faiss, "SearchParametersHNSW")(efSearch=width)  # noqa: B009
    else:
        parameters = getattr(faiss, "SearchParametersIVF")(nprobe=chosen.width)  # noqa: B009
    return lambda query: places[native.search(query[None], K, params=parameters)[1][0]].tolist()


def others(rows: Matrix) -> Iterator[tuple[str, Callable[[int], Way]]]:
    for factory in ("HNSW32_SQ8", "HNSW32"):
        native: Any = faiss.index_factory(rows.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
        native.train(rows)
        native.add(rows)

        def by_faiss(width: int, native: Any = native) -> Way:
            parameters = getattr(faiss, "SearchParametersHNSW")(efSearch=width)  # noqa: B009
            return lambda query: native.search(query[None], K, params=parameters)[1][0].tolist()

        yield f"raw FAISS {factory}", by_faiss
    if find_spec("hnswlib"):
        graph: Any = import_module("hnswlib").Index("ip", rows.shape[1])
        graph.init_index(len(rows), M=16, ef_construction=100, random_seed=0)
        graph.add_items(rows)

        def by_hnswlib(width: int) -> Way:
            graph.set_ef(width)
            return lambda query: graph.knn_query(query, K)[0][0].tolist()

        yield "hnswlib (M 16)", by_hnswlib
    if find_spec("usearch"):
        make: Any = import_module("usearch.index").Index
        other = make(ndim=rows.shape[1], metric="ip", connectivity=16, dtype="f32")
        other.add(np.arange(len(rows)), rows)

        def by_usearch(width: int) -> Way:
            other.expansion_search = width
            return lambda query: other.search(query, K).keys.tolist()

        yield "usearch (M 16)", by_usearch


_COLD = """
import sys, time
started = time.perf_counter()
import numpy as np
from benchmarks.ingest import Free
from engine import Engine
with Engine.open(sys.argv[1], model=Free()) as engine:
    engine.search_vectors(np.load(sys.argv[2]), rerank=False)
    took = time.perf_counter() - started
    files = {}
    for line in open("/proc/self/status"):
        name, _, value = line.partition(":")
        files[name] = value.split()
peak = int(files["VmHWM"][0]) // 1024
anonymous = int(files["RssAnon"][0]) // 1024
print(f"a fresh process: first answer after {took:.2f} s, peak resident {peak} MiB "
      f"({anonymous} MiB of it not files)")
"""


def _cold(store: Path, query: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _COLD, str(store), str(query)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[1],
    )
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--approximate", action="store_true", help="measure hnsw and ivf too")
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    limits()
    real = embedded(options.texts, options.cache)
    for n in options.rows:
        rng = np.random.default_rng(n)
        with tempfile.TemporaryDirectory() as scratch:
            measure(*collection(real, n, rng), Path(scratch), options.approximate)


if __name__ == "__main__":
    main()
