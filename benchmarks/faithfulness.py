"""Does the word that an explanation weighs most matter most? Measured by leaving it out.

    python benchmarks/faithfulness.py FOLDER [--queries N]

FOLDER holds corpus.jsonl and queries.jsonl in BEIR's layout. For each query the first hit's text is
embedded as it is, without its hottest word, and without a word drawn at random among its others
(drawn with a seed); each time its score is that of the rerank stage, cosine and attention. The
share of queries is printed where leaving out the hottest word costs more.
"""

from __future__ import annotations

import json
import platform
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np

from engine import AttentionReranker, Document, Engine, Hit
from engine.embedding.base import WordEmbedder
from engine.models import ModelSource
from engine.ranking.contract import RerankInput, WordInput
from engine.settings import DEFAULT_MODEL
from engine.text.stopwords import content
from engine.types import Words
from engine.vectors import unit_rows

SEED = 11


def lines(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8") as rows:
        yield from map(json.loads, rows)


def without(text: str, start: int, end: int) -> str:
    return f"{text[:start].rstrip()} {text[end:].lstrip()}"


def variants(hit: Hit, rng: random.Random) -> list[str]:
    """The hit's text, that without its hottest word, and that without another."""
    assert hit.explanation is not None
    words = hit.explanation.words_b
    inside = [n for n, word in enumerate(words) if hit.start <= word.start < word.end <= hit.end]
    hottest = max(inside, key=lambda n: hit.explanation.heat[n] if hit.explanation else 0.0)
    other = rng.choice([n for n in inside if n != hottest])
    cut = [
        without(hit.text, words[n].start - hit.start, words[n].end - hit.start)
        for n in (hottest, other)
    ]
    return [hit.text, *cut]


def scores(
    embedder: WordEmbedder, query: str, weights: Sequence[float], texts: list[str]
) -> list[float]:
    """The score of each text for a query whose words have these weights."""
    asked, (own,) = embedder.embed_with_words([query], query=True)
    rows, found = embedder.embed_with_words(texts, query=False)
    kept: list[Words] = [content(text, one) for text, one in zip(texts, found, strict=True)]
    rows, asked = unit_rows(rows), unit_rows(asked)
    given = RerankInput(
        query=asked[0],
        vectors=rows,
        similarities=(rows @ asked[0]).astype(np.float64),
        words=WordInput(
            query=content(query, own).vectors,
            weights=np.array(weights),
            texts=np.concatenate([one.vectors for one in kept]),
            cuts=np.cumsum([0, *(len(one.spans) for one in kept)]),
        ),
    )
    (ranked,) = AttentionReranker().rerank([given], len(texts))
    return [float(ranked.scores[ranked.order.tolist().index(n)]) for n in range(len(texts))]


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--queries", default=225, show_default=True)
def main(folder: Path, queries: int) -> None:
    """Print the share of queries whose hottest word matters more than one drawn at random."""
    embedder = ModelSource(DEFAULT_MODEL, offline=True).load()
    if not isinstance(embedder, WordEmbedder):
        raise click.ClickException(f"{embedder.name} gives no word vectors")
    rng = random.Random(SEED)
    with tempfile.TemporaryDirectory() as work, Engine.create(Path(work) / "s") as engine:
        engine.add(
            Document(f"{row.get('title', '')} {row['text']}".strip(), id=row["_id"])
            for row in lines(folder / "corpus.jsonl")
        )
        asked = [row["text"] for row in lines(folder / "queries.jsonl")][:queries]
        results = engine.search_many(asked, k=1, mode="dense", explain=True)
    drops = []
    for query, result in zip(asked, results, strict=True):
        hit = result.hits[0]
        if hit.explanation is not None:
            whole, hottest, other = scores(
                embedder, query, hit.explanation.weight, variants(hit, rng)
            )
            drops.append((whole - hottest, whole - other))
    more = np.mean([hottest > other for hottest, other in drops])
    mean = np.mean(drops, axis=0)
    print(f"{folder.name}, {len(drops)} queries, {platform.machine()}")
    print(f"the hottest word costs more than another: {more:.1%}")
    print(f"mean loss of score: {mean[0]:.4f} without the hottest, {mean[1]:.4f} without another")


if __name__ == "__main__":
    main()
