"""What one question costs from a shell: fresh processes, wall and CPU time.

    python benchmarks/coldstart.py --synsets SYNSETS.TSV [--work DIR] [--passages N …]

Stores of so many WordNet glosses are made under DIR and kept for the next run. Beside attendex's
commands stands a plain script: it loads the same model with sentence-transformers, embeds the
question and multiplies it with a matrix of that many vectors. Medians of a few runs, in turns.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from benchmarks.wordnet import documents
from engine import Engine
from engine.embedding.locate import locate
from engine.settings import DEFAULT_MODEL

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 5
PLAIN = """
import sys
import numpy as np
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], local_files_only=True)
query = model.encode([sys.argv[3]], normalize_embeddings=True)[0]
scores = np.load(sys.argv[2], mmap_mode="r") @ query
print(np.argsort(-scores)[:10])
"""


class Cost(NamedTuple):
    """Seconds of wall time and of CPU."""

    wall: float
    cpu: float


def cost(command: Sequence[str]) -> Cost:
    """One run of a command as a process of its own."""
    started = time.perf_counter()
    child = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return Cost(time.perf_counter() - started, used.ru_utime + used.ru_stime)


def commands(store: Path, matrix: Path) -> dict[str, list[str]]:
    attendex = [sys.executable, str(ROOT / "cli.py")]
    asked = [*attendex, "query", "--store", str(store)]
    located = str(locate(DEFAULT_MODEL, offline=True).path)
    return {
        "--help": [*attendex, "--help"],
        "status": [*attendex, "status", "--store", str(store)],
        "query, a word": [*asked, "harbour"],
        "query, a sentence": [*asked, "where ships lie safely in a storm"],
        "query, by words alone": [*asked, "harbour", "--mode", "lexical"],
        "plain script": [sys.executable, "-c", PLAIN, located, str(matrix), "harbour"],
    }


def prepared(store: Path, synsets: Path, count: int) -> Path:
    """Make the store, where it is not, and a matrix of as many vectors for the plain script."""
    with Engine.create(store, exist_ok=True) as engine:
        if engine.stats().documents < count:
            engine.add(islice(documents(synsets, None), count))
        width = engine.stats().dimension
    path = store.with_suffix(".npy")
    rows = np.random.default_rng(0).standard_normal((count, width)).astype(np.float32)
    np.save(path, rows)
    return path


@click.command()
@click.option("--synsets", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--work", type=click.Path(file_okay=False, path_type=Path))
@click.option("--passages", multiple=True, type=int, default=(1_000, 100_000))
def main(synsets: Path, work: Path | None, passages: tuple[int, ...]) -> None:
    """Print a table of seconds by command and size."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) if work is None else work
        root.mkdir(parents=True, exist_ok=True)
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
        print("| passages | command | wall | CPU |\n|---|---|---|---|")
        for count in passages:
            store = root / f"{count}.store"
            asked = commands(store, prepared(store, synsets, count))
            found: dict[str, list[Cost]] = {name: [] for name in asked}
            for _ in range(ROUNDS):
                for name, command in asked.items():
                    found[name].append(cost(command))
            for name, costs in found.items():
                wall, cpu = map(statistics.median, zip(*costs, strict=True))
                print(f"| {count:,} | {name} | {wall:.2f} s | {cpu:.2f} s |")


if __name__ == "__main__":
    main()
