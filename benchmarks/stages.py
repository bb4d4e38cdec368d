"""Where the time of a query goes, stage by stage, as the store grows.

    python benchmarks/stages.py --synsets SYNSETS.TSV [--work DIR] [--passages N …]

Stores of so many WordNet glosses are made under DIR, with word vectors, and kept for the next run.
Other glosses are the queries, asked one by one with explanations; medians of each stage.
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
from collections import defaultdict
from itertools import islice
from pathlib import Path

import click

from benchmarks.wordnet import documents
from engine import Engine

QUERIES = 50
STAGES = ("embed", "dense", "lexical", "fuse", "fetch", "rerank", "explain")


def measured(store: Path, synsets: Path, count: int) -> dict[str, float]:
    """Median milliseconds by stage over the queries."""
    with Engine.create(store, exist_ok=True) as engine:
        if engine.stats().documents < count:
            engine.add(islice(documents(synsets, None), count))
        rows = islice(documents(synsets, None), count, None, 17)
        queries = [row.text.partition(": ")[2] for row in islice(rows, QUERIES)]
        queries = queries or [row.text for row in islice(documents(synsets, None), QUERIES)]
        engine.search(queries[0], explain=True)
        spent: dict[str, list[float]] = defaultdict(list)
        for query in queries:
            for stage, seconds in engine.search(query, explain=True).seconds_by_stage.items():
                spent[stage].append(1000 * seconds)
    return {stage: statistics.median(spent[stage]) for stage in STAGES}


@click.command()
@click.option("--synsets", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--work", type=click.Path(file_okay=False, path_type=Path))
@click.option("--passages", multiple=True, type=int, default=(1_000, 10_000, 100_000))
def main(synsets: Path, work: Path | None, passages: tuple[int, ...]) -> None:
    """Print a table of milliseconds by stage and size."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) if work is None else work
        root.mkdir(parents=True, exist_ok=True)
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
        print(f"| passages | {' | '.join(STAGES)} |\n|---|{'---|' * len(STAGES)}")
        for count in passages:
            found = measured(root / f"{count}.store", synsets, count)
            print(
                f"| {count:,} | " + " | ".join(f"{found[stage]:.2f} ms" for stage in STAGES) + " |"
            )


if __name__ == "__main__":
    main()
