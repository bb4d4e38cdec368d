"""Index WordNet with the real model through the public API, ask, and time the parts.

    python benchmarks/wordnet.py --synsets SYNSETS.TSV [--store DIR] [--pos noun] [--limit N]

The file has the columns id, pos, words, definition. A store that exists is used as it is.
"""

from __future__ import annotations

import argparse
import csv
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from engine import Document, Engine

QUERIES = ("instrument for measuring temperature", "a large body of salt water", "happiness")
REPEATS = 30
BATCH = 256


def documents(path: Path, pos: str | None) -> Iterator[Document]:
    """A synset is one document: its words, then its definition."""
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            if pos is None or row["pos"] == pos:
                words = row["words"].replace("|", ", ")
                text = f"{words}: {row['definition']}"
                yield Document(text, id=row["id"], metadata={"pos": row["pos"]})


def median_ms(run: Callable[[], object], repeats: int) -> float:
    """Median wall time of a call in milliseconds, after one call to warm up."""
    run()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def measure(engine: Engine) -> None:
    """Answers and times of an open store."""
    for query in QUERIES:
        best = engine.search(query, k=1).hits[0]
        print(f"  {query!r} -> {best.text[:70]!r} ({best.score:.4f})")
    text = QUERIES[1]
    print(f"  search, text to hits: {median_ms(lambda: engine.search(text), REPEATS):.1f} ms")
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((BATCH, engine.stats().dimension)).astype(np.float32)
    one = median_ms(lambda: engine.search_vectors(vectors[:1]), REPEATS)
    print(f"  search, vector to hits: {one:.1f} ms")
    many = median_ms(lambda: engine.search_vectors(vectors), 5)
    print(f"  search, {BATCH} vectors to hits: {many:.0f} ms ({1000 * BATCH / many:,.0f}/s)")
    stats = engine.stats()
    mib = 1 << 20
    raw = stats.passages * stats.dimension * 4 / mib
    print(
        f"  database {stats.database_bytes / mib:.0f} MiB, index {stats.index_bytes / mib:.0f} MiB "
        f"(raw vectors {raw:.0f} MiB)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--synsets", type=Path, required=True)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--pos", help="only this part of speech")
    parser.add_argument("--limit", type=int, help="only the first N synsets")
    options = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as scratch:
        store = options.store or Path(scratch) / "wordnet.store"
        engine = Engine.open(store) if (store / "store.db").exists() else Engine.create(store)
        with engine:
            report = engine.add(islice(documents(options.synsets, options.pos), options.limit))
            rate = report.embedded / report.seconds
            rest = 1 - report.seconds_by_stage["embedding"] / report.seconds
            print(
                f"  {report.documents:,} synsets in {report.seconds:.0f} s: {report.embedded:,} "
                f"texts embedded, {rate:.0f} texts/s, {rest:.1%} of the time not embedding"
            )
            measure(engine)


if __name__ == "__main__":
    main()
