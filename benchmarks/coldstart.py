"""What one question costs from a shell: fresh processes, wall and CPU time, peak memory.

    python benchmarks/coldstart.py --synsets SYNSETS.TSV [--work DIR] [--passages N …]
        [--peers PYTHON]

Stores of so many WordNet glosses are made under DIR and kept for the next run; beyond those there
are, glosses come again under other ids, with the vectors they have moved by a tenth (such a store
has no word vectors). Beside attendex's commands stands a plain script: it loads the same model
with sentence-transformers, embeds the question and multiplies it with a matrix of that many
vectors. With --peers, stores of txtai and chromadb are asked too, by an interpreter that has them,
of the first size alone: they embed all passages anew. Medians of a few runs, in turns.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from benchmarks.search import moved
from benchmarks.wordnet import documents
from engine import Engine
from engine.embedding.locate import locate
from engine.settings import DEFAULT_MODEL

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 5
GLOSSES = 100_000
"""So many are embedded; a larger store repeats them."""
BLOCK = 20_000
LAUNCH = """
import os, subprocess, sys, time
started = time.perf_counter()
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(child.pid, 0)
print(time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""A small process starts each command: a child's greatest size counts what its parent takes."""
PLAIN = """
import sys
import numpy as np
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], local_files_only=True)
query = model.encode([sys.argv[3]], normalize_embeddings=True)[0]
scores = np.load(sys.argv[2], mmap_mode="r") @ query
print(np.argsort(-scores)[:10])
"""
TXTAI = """
import sys
from txtai import Embeddings
embeddings = Embeddings(path=sys.argv[1], content=True)
if len(sys.argv) > 4:
    embeddings.index(open(sys.argv[4], encoding="utf-8").read().splitlines())
    embeddings.save(sys.argv[2])
else:
    embeddings.load(sys.argv[2])
    print(embeddings.search(sys.argv[3], 10))
"""
CHROMA = """
import sys
import chromadb
from chromadb.utils.embedding_functions import SentenceTransformerEmbeddingFunction
client = chromadb.PersistentClient(
    sys.argv[2], settings=chromadb.Settings(anonymized_telemetry=False)
)
made = client.get_or_create_collection(
    "glosses", embedding_function=SentenceTransformerEmbeddingFunction(sys.argv[1])
)
if len(sys.argv) > 4:
    lines = open(sys.argv[4], encoding="utf-8").read().splitlines()
    for start in range(0, len(lines), 1000):
        block = lines[start : start + 1000]
        made.add(ids=[str(start + n) for n in range(len(block))], documents=block)
else:
    print(made.query(query_texts=[sys.argv[3]], n_results=10))
"""
PEERS = {"txtai": TXTAI, "chromadb": CHROMA}


class Cost(NamedTuple):
    """Seconds of wall time and of CPU, and MiB of memory at most."""

    wall: float
    cpu: float
    memory: float


def cost(command: Sequence[str], cache: Path) -> Cost:
    """One run of a command as a process of its own; nothing is fetched."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LAUNCH, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "ATTENDEX_CACHE": str(cache),
            "HF_HUB_OFFLINE": "1",
        },
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    wall, cpu, kibibytes = map(float, done.stdout.split()[-3:])
    return Cost(wall, cpu, kibibytes / 1024)


def commands(store: Path, indexed: str, peers: Path | None) -> dict[str, list[str]]:
    """What is run, by name."""
    attendex = [sys.executable, str(ROOT / "cli.py")]
    asked = [*attendex, "query", "--store", str(store)]
    located = str(locate(DEFAULT_MODEL, offline=True).path)
    script = [sys.executable, "-c", PLAIN, located, str(store.with_suffix(".npy")), "harbour"]
    found = {
        "--help": [*attendex, "--help"],
        "status": [*attendex, "status", "--store", str(store)],
        "query, a word": [*asked, "harbour"],
        "query, a sentence": [*asked, "where ships lie safely in a storm"],
        "query, asked before": [*asked, "harbour"],
        "query, an indexed text": [*asked, indexed],
        "query, by words alone": [*asked, "harbour", "--mode", "lexical"],
        "plain script": script,
    }
    for name in PEERS if peers is not None else ():
        found[name] = [str(peers), *_peer(name, store, located), "harbour"]
    return found


def _peer(name: str, store: Path, located: str) -> list[str]:
    return ["-c", PEERS[name], located, str(store.with_suffix(f".{name}"))]


def prepare(store: Path, synsets: Path, count: int) -> str:
    """Make the store, where it is not, and a matrix of as many vectors for the plain script.

    Returns one of its texts.
    """
    with Engine.create(store, exist_ok=True) as engine:
        if engine.stats().documents < count:
            glosses = list(islice(documents(synsets, None), min(count, GLOSSES)))
            engine.add(glosses)
            if count > GLOSSES:
                _repeat(engine, [one.text for one in glosses], count)
            engine.rebuild()
        width = engine.stats().dimension
    path = store.with_suffix(".npy")
    rows = np.random.default_rng(0).standard_normal((count, width), dtype=np.float32)
    np.save(path, rows)
    return next(documents(synsets, None)).text


def _repeat(engine: Engine, texts: list[str], count: int) -> None:
    """The glosses that are held again and again, without words of their own."""
    with engine._store.reading() as view:
        matrix = np.concatenate([rows for _, rows in view.all_vectors()])
    engine.drop_tokens()
    rng = np.random.default_rng(0)
    for start in range(len(texts), count, BLOCK):
        chosen = rng.integers(0, len(texts), min(BLOCK, count - start))
        engine.add_vectors(
            moved(matrix[chosen], 0.1, rng),
            ids=[f"again {start + n}" for n in range(len(chosen))],
            texts=[texts[n] for n in chosen],
        )


def make_peers(peers: Path, store: Path, synsets: Path, count: int) -> None:
    """Index the glosses with the peers, where they have not been."""
    located = str(locate(DEFAULT_MODEL, offline=True).path)
    with tempfile.TemporaryDirectory() as scratch:
        lines = Path(scratch) / "lines.txt"
        texts = [one.text for one in islice(documents(synsets, None), count)]
        lines.write_text("\n".join(texts), encoding="utf-8")
        for name in PEERS:
            if not store.with_suffix(f".{name}").exists():
                asked = [str(peers), *_peer(name, store, located), "", str(lines)]
                subprocess.run(asked, check=True)


@click.command()
@click.option("--synsets", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--work", type=click.Path(file_okay=False, path_type=Path))
@click.option("--passages", multiple=True, type=int, default=(1_000, 100_000, 1_000_000))
@click.option(
    "--peers",
    type=click.Path(exists=True, path_type=Path),
    help="An interpreter with txtai and chromadb, to measure them too.",
)
def main(synsets: Path, work: Path | None, passages: tuple[int, ...], peers: Path | None) -> None:
    """Print a table of seconds and memory by command and size."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) if work is None else work
        root.mkdir(parents=True, exist_ok=True)
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
        print("| passages | command | wall | CPU | memory |\n|---|---|---|---|---|")
        for count in passages:
            store = root / f"{count}.store"
            indexed = prepare(store, synsets, count)
            compared = peers if count == passages[0] else None
            if compared is not None:
                make_peers(compared, store, synsets, count)
            measure(root, commands(store, indexed, compared), count)


def measure(root: Path, asked: dict[str, list[str]], count: int) -> None:
    """Run all commands in turns and print their medians. A query that was asked before is
    forgotten before the commands that stand for new ones."""
    cache = root / "cache"
    found: dict[str, list[Cost]] = {name: [] for name in asked}
    cost(asked["query, a word"], cache)  # makes the export for onnxruntime
    for _ in range(ROUNDS):
        shutil.rmtree(cache / "queries", ignore_errors=True)
        for name, command in asked.items():
            found[name].append(cost(command, cache))
    for name, costs in found.items():
        wall, cpu, memory = map(statistics.median, zip(*costs, strict=True))
        print(f"| {count:,} | {name} | {wall:.2f} s | {cpu:.2f} s | {memory:.0f} MiB |")


if __name__ == "__main__":
    main()
