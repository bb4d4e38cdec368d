"""Texts to vectors: each runtime beside bare sentence-transformers, in turns.

    python benchmarks/encode.py --synsets SYNSETS.TSV [--texts N]

WordNet's glosses, and the same joined by tens into paragraphs, are embedded by one call of
`SentenceTransformer.encode` with a batch size of 32, and by attendex's runtimes; the ratios are
those of one round, their medians and extremes over the rounds.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import click

from benchmarks.wordnet import documents
from engine.embedding.sentence_transformer import SentenceTransformerEmbedder
from engine.models import ModelSource
from engine.settings import DEFAULT_MODEL, Precision, Runtime

ROUNDS = 5
PARAGRAPH = 10


def rate(run: Callable[[list[str]], object], texts: list[str]) -> float:
    started = time.perf_counter()
    run(texts)
    return len(texts) / (time.perf_counter() - started)


def table(name: str, texts: list[str], ways: dict[str, Callable[[list[str]], object]]) -> None:
    for run in ways.values():
        run(texts[:64])
    rounds = [{way: rate(run, texts) for way, run in ways.items()} for _ in range(ROUNDS)]
    first = next(iter(ways))
    for way in ways:
        ratios: Sequence[float] = [found[way] / found[first] for found in rounds]
        median = statistics.median(found[way] for found in rounds)
        print(
            f"| {name} | {way} | {median:,.0f}/s | {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}) |"
        )


@click.command()
@click.option("--synsets", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--texts", default=2000, show_default=True)
def main(synsets: Path, texts: int) -> None:
    """Print a table of texts per second by runtime."""
    reference = ModelSource(
        DEFAULT_MODEL, offline=True, runtime=Runtime.SENTENCE_TRANSFORMERS
    ).load()
    if not isinstance(reference, SentenceTransformerEmbedder):
        raise click.ClickException("there is no sentence-transformers model")
    by_onnx = ModelSource(DEFAULT_MODEL, offline=True, runtime=Runtime.ONNX).load()
    in_int8 = ModelSource(DEFAULT_MODEL, offline=True, precision=Precision.INT8).load()
    bare = reference.model
    ways: dict[str, Callable[[list[str]], object]] = {
        "SentenceTransformer.encode": lambda some: bare.encode(
            some, batch_size=32, show_progress_bar=False
        ),
        "attendex, sentence-transformers": reference.embed_documents,
        "attendex, onnx": by_onnx.embed_documents,
        "attendex, onnx, int8": in_int8.embed_documents,
    }
    glosses = [row.text for row in islice(documents(synsets, None), texts)]
    paragraphs = [
        " ".join(glosses[start : start + PARAGRAPH]) for start in range(0, texts, PARAGRAPH)
    ]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    print("| texts | way | rate | of the first |\n|---|---|---|---|")
    table("glosses", glosses, ways)
    table("paragraphs", paragraphs, ways)


if __name__ == "__main__":
    main()
