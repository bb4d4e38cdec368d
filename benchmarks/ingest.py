"""Ingest against the limits: the bare encoder, the bare database, flat memory.

    python benchmarks/ingest.py encode --texts SYNSETS.TSV [--column definition] [--limit 8192]
    python benchmarks/ingest.py vectors [--rows 40000] [--rounds 5]
    python benchmarks/ingest.py memory [--rows 1000000]

`encode`: engine.add against one call of SentenceTransformer.encode on the same texts, taken in
turns in one process; the median of the rounds' ratios. `vectors`: rows a second with metadata,
committed, by each way that ready vectors go in, against executemany of the same rows by sqlite3.
`memory`: the peak resident memory of a process that indexes short texts from a generator by an
embedder that costs nothing, less that of the process before.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import resource
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine import Document, Engine
from engine.settings import DEFAULT_MODEL

Matrix = NDArray[np.float32]
WIDTH = 384


def column(path: Path, name: str, limit: int | None) -> list[str]:
    """The texts of one column of a table (tab separated) or key of JSON lines."""
    with path.open(encoding="utf-8", newline="") as lines:
        rows: Iterator[dict[str, str]]
        if path.suffix == ".jsonl":
            rows = map(json.loads, lines)
        else:
            rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row[name] for row in islice(rows, limit)]


def encode(options: argparse.Namespace, scratch: Path) -> None:
    from engine.embedding.fingerprint import fingerprint
    from engine.embedding.locate import locate
    from engine.embedding.sentence_transformer import load

    located = locate(DEFAULT_MODEL, offline=True)
    embedder = load(located, fingerprint(located.path))
    texts = column(options.texts, options.column, options.limit)
    bare_seconds: list[float] = []
    ours: list[float] = []
    shares: list[float] = []
    embedded = 0
    for turn in range(options.rounds):
        started = time.perf_counter()
        embedder.model.encode(texts, show_progress_bar=False)
        bare_seconds.append(time.perf_counter() - started)
        with Engine.create(scratch / str(turn), model=embedder) as engine:
            report = engine.add(texts)
        embedded = report.embedded
        ours.append(report.seconds)
        shares.append(1 - report.seconds_by_stage["embedding"] / report.seconds)
    ratios = [bare / own for bare, own in zip(bare_seconds, ours, strict=True)]
    print(f"{len(texts):,} texts, {embedded:,} different; medians of {options.rounds} rounds:")
    print(f"  encode, one call: {len(texts) / statistics.median(bare_seconds):.0f} texts/s")
    print(f"  engine.add: {len(texts) / statistics.median(ours):.0f} texts/s")
    print(f"  ratio {statistics.median(ratios):.3f} (of {_listed(ratios, '.2f')})")
    print(f"  time not embedding: {statistics.median(shares):.1%}")


class Free:
    """An embedder that costs nothing: pseudo-random vectors, the same for the same batch."""

    name = "free"
    fingerprint = f"free-{WIDTH}"
    dimension = WIDTH
    max_tokens = None

    def __init__(self) -> None:
        self._rows = np.random.default_rng(0).standard_normal((4096, WIDTH)).astype(np.float32)

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        return np.resize(self._rows, (len(texts), WIDTH))

    embed_queries = embed_documents

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [1] * len(texts)

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


def vectors(options: argparse.Namespace, scratch: Path) -> None:
    n = options.rows
    matrix = np.random.default_rng(0).standard_normal((n, WIDTH)).astype(np.float32)
    ids = [f"row-{i}" for i in range(n)]
    texts = [f"text number {i}" for i in range(n)]
    labels = [{"n": i, "lang": "en"} for i in range(n)]
    rows_csv, rows_npy = scratch / "rows.csv", scratch / "rows.npy"
    with rows_csv.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "text", "n", "lang"))
        writer.writerows(zip(ids, texts, range(n), ["en"] * n, strict=True))
    np.save(rows_npy, matrix)
    rows_jsonl = scratch / "rows.jsonl"
    with rows_jsonl.open("w") as file:
        for key, text, label, row in zip(ids, texts, labels, matrix, strict=True):
            numbers = [float(str(x)) for x in row]
            file.write(json.dumps({"id": key, "text": text, **label, "vector": numbers}) + "\n")
    rows_parquet = scratch / "rows.parquet"
    _write_parquet(rows_parquet, ids, texts, labels, matrix)

    from engine.text.readers import ReadOptions

    options_column = ReadOptions(vector_column="vector")
    ways: dict[str, Callable[[Engine], object]] = {
        "add_vectors": lambda e: e.add_vectors(matrix, ids=ids, texts=texts, metadata=labels),
        "add, Document(vector=…)": lambda e: e.add(
            Document(t, i, m, v) for t, i, m, v in zip(texts, ids, labels, matrix, strict=True)
        ),
        "rows.csv --vectors rows.npy": lambda e: e.add_files(
            [str(rows_csv)], vectors=str(rows_npy)
        ),
        "parquet --vector-column": lambda e: e.add_files(
            [str(rows_parquet)], options=options_column
        ),
        "jsonl --vector-column": lambda e: e.add_files([str(rows_jsonl)], options=options_column),
    }
    rates: dict[str, list[float]] = {name: [] for name in ("sqlite3 executemany", *ways)}
    for turn in range(options.rounds):
        os.sync()  # what the way before left to be written is not this one's
        seconds = _bare_sqlite(scratch / f"bare-{turn}.db", ids, texts, labels, matrix)
        rates["sqlite3 executemany"].append(n / seconds)
        for number, (name, way) in enumerate(ways.items()):
            with Engine.create(scratch / f"{turn}-{number}", model=Free()) as engine:
                os.sync()
                started = time.perf_counter()
                way(engine)
                rates[name].append(n / (time.perf_counter() - started))
                assert engine.stats().documents == n
            shutil.rmtree(scratch / f"{turn}-{number}")
    print(f"{n:,} vectors of {WIDTH} with metadata; medians of {options.rounds} rounds:")
    for name, found in rates.items():
        print(f"  {name}: {statistics.median(found):,.0f} rows/s (of {_listed(found, ',.0f')})")


def _write_parquet(
    path: Path, ids: list[str], texts: list[str], labels: list[dict[str, object]], matrix: Matrix
) -> None:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    column = pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), WIDTH)
    numbers = [label["n"] for label in labels]
    langs = [label["lang"] for label in labels]
    table = pa.table({"id": ids, "text": texts, "n": numbers, "lang": langs, "vector": column})
    pq.write_table(table, path)


def _bare_sqlite(
    path: Path, ids: list[str], texts: list[str], labels: list[dict[str, object]], matrix: Matrix
) -> float:
    """The same rows by the driver alone, as durable: seconds."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA page_size = 16384")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute(
            "CREATE TABLE rows (id INTEGER PRIMARY KEY, key TEXT UNIQUE, text, meta, vector BLOB)"
        )
        started = time.perf_counter()
        for first in range(0, len(ids), 4096):
            block = range(first, min(first + 4096, len(ids)))
            db.execute("BEGIN")
            db.executemany(
                "INSERT INTO rows VALUES (?, ?, ?, ?, ?)",
                [(i, ids[i], texts[i], json.dumps(labels[i]), matrix[i].tobytes()) for i in block],
            )
            db.execute("COMMIT")
        return time.perf_counter() - started


def memory(options: argparse.Namespace, scratch: Path) -> None:
    import faiss  # noqa: F401  (loaded before, as the model's libraries are)
    import torch  # noqa: F401

    def texts() -> Iterator[Document]:
        for number in range(options.rows):
            yield Document(f"short text number {number}", metadata={"n": number})

    with Engine.create(scratch / "memory", model=Free()) as engine:
        before = _peak_mib()
        started = time.perf_counter()
        report = engine.add(texts())
        seconds = time.perf_counter() - started
        stats = engine.stats()
    print(f"{report.documents:,} short texts from a generator in {seconds:.0f} s:")
    print(f"  peak resident memory {_peak_mib() - before:.0f} MiB above {before:.0f} MiB before")
    print(f"  database {stats.database_bytes >> 20:,} MiB, index {stats.index_bytes >> 20:,} MiB")


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _listed(values: list[float], form: str) -> str:
    return " ".join(format(value, form) for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parts = parser.add_subparsers(required=True)
    one = parts.add_parser("encode")
    one.add_argument("--texts", type=Path, required=True)
    one.add_argument("--column", default="definition")
    one.add_argument("--limit", type=int, default=8192)
    one.add_argument("--rounds", type=int, default=5)
    one.set_defaults(run=encode)
    two = parts.add_parser("vectors")
    two.add_argument("--rows", type=int, default=40_000)
    two.add_argument("--rounds", type=int, default=5)
    two.set_defaults(run=vectors)
    three = parts.add_parser("memory")
    three.add_argument("--rows", type=int, default=1_000_000)
    three.set_defaults(run=memory)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as scratch:
        options.run(options, Path(scratch))


if __name__ == "__main__":
    main()
