"""Whether a word finds its synonyms among words: WordNet, by the vectors alone and as built.

    python benchmarks/synonyms.py --synsets SYNSETS.TSV [--words N] [--queries N] [--model NAME]

Three stores of N words each, a document a word: words that are one piece of the model's
vocabulary, words with many synonyms, and any words that have some. A query is one of the words,
and right is any other word of its synsets; reported is the share of queries with one among the
first ten. Words are drawn with a seed; both halves of the queries are reported, and both were
seen when the settings were chosen.
"""

from __future__ import annotations

import csv
import platform
import random
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from engine import Document, Engine
from engine.embedding.base import Embedder, WordTable
from engine.models import ModelSource
from engine.settings import DEFAULT_MODEL
from engine.vectors import unit_rows

SEED = 17
FIRST = 10
Synonyms = dict[str, set[str]]


def synonyms_in(path: Path) -> Synonyms:
    """The other words of each word's synsets, where it has some; words of small letters alone."""
    found: Synonyms = defaultdict(set)
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            words = {word for word in row["words"].split("|") if re.fullmatch("[a-z]+", word)}
            for word in words if len(words) > 1 else ():
                found[word] |= words - {word}
    return found


def pools(known: Synonyms, embedder: Embedder, count: int) -> Iterator[tuple[str, list[str]]]:
    """Names and words of the stores."""
    drawn = sorted(known)
    random.Random(SEED).shuffle(drawn)
    pieces = dict(zip(drawn, embedder.count_tokens(drawn), strict=True))
    yield "one piece each", [word for word in drawn if pieces[word] == 1][:count]
    rich = sorted(drawn, key=lambda word: -len(known[word]))
    for name, order in (("with many synonyms", rich), ("any", drawn)):
        chosen: dict[str, None] = {}
        for word in order:
            others = sorted(known[word], key=lambda other: (pieces[other], other))[:2]
            chosen |= dict.fromkeys([word, *others])
        yield name, list(chosen)[:count]


def by_rows(
    rows: NDArray[np.float32], words: Sequence[str], asked: Sequence[str]
) -> list[set[str]]:
    """The first words by cosine, the query itself left out."""
    places = {word: n for n, word in enumerate(words)}
    own = [places[word] for word in asked]
    scores = unit_rows(rows)[own] @ unit_rows(rows).T
    scores[np.arange(len(own)), own] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :FIRST]
    return [{words[n] for n in row} for row in order.tolist()]


def by_engine(engine: Engine, asked: Sequence[str]) -> list[set[str]]:
    """The first answers of a store, the query itself left out."""
    results = [engine.search(word, k=FIRST + 1) for word in asked]
    return [
        set([hit.text for hit in result.hits if hit.text != word][:FIRST])
        for word, result in zip(asked, results, strict=True)
    ]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--synsets", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--words", "count", default=8000, show_default=True)
@click.option("--queries", default=1000, show_default=True)
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
def main(synsets: Path, count: int, queries: int, model: str) -> None:
    known = synonyms_in(synsets)
    embedder = ModelSource(model, offline=True).load()
    print(f"{platform.machine()}, {model}; share of queries, first half, second half")
    for name, words in pools(known, embedder, count):
        held = set(words)
        asked = [word for word in words if known[word] & held]
        random.Random(SEED).shuffle(asked)
        asked = asked[:queries]
        ways = {"vectors": by_rows(embedder.embed_documents(words), words, asked)}
        table = embedder.table_rows(words) if isinstance(embedder, WordTable) else None
        if table is not None:
            ways["table of input embeddings"] = by_rows(table, words, asked)
        with (
            tempfile.TemporaryDirectory() as scratch,
            Engine.create(Path(scratch) / "s", model=embedder) as engine,
        ):
            engine.add(Document(word, id=word) for word in words)
            ways["as built"] = by_engine(engine, asked)
        print(f"\n{len(words)} words, {name}; {len(asked)} queries")
        for way, found in ways.items():
            hits = [bool(known[word] & one) for word, one in zip(asked, found, strict=True)]
            half = len(hits) // 2
            print(f"{way:28s} {np.mean(hits[:half]):.3f} {np.mean(hits[half:]):.3f}", flush=True)


if __name__ == "__main__":
    main()
