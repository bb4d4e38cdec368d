"""Which sense of a word is meant: ways to ask for a word in its context, measured on WordNet.

    python benchmarks/senses.py --synsets SYNSETS.TSV [--sentences N]

For a word with several senses and an example sentence of one of them, each way makes a query
vector, and the nearest definition among the word's senses is its choice: right where that is the
example's own. And among all definitions of all these words, as a search would: the share of
sentences whose own definition is among the first ten. Sentences are drawn with a seed; the first
half is to choose a way by, the second reports it.
"""

from __future__ import annotations

import argparse
import csv
import platform
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.embedding.base import WordEmbedder
from engine.models import ModelSource
from engine.senses import occurrence
from engine.settings import DEFAULT_MODEL
from engine.vectors import unit_rows

SEED = 17
FIRST = 10
Matrix = NDArray[np.float32]


class Example(NamedTuple):
    """A word, a sentence it stands in, its senses' definitions and which one is right."""

    word: str
    sentence: str
    senses: list[str]
    right: int


class Vectors(NamedTuple):
    """Unit rows, one an example: the word alone, its sentence, itself within it, and all of
    `word: sentence` as one text."""

    word: Matrix
    sentence: Matrix
    state: Matrix
    joined: Matrix


WAYS: dict[str, Callable[[Vectors], Matrix]] = {
    "word alone": lambda v: v.word,
    "sentence": lambda v: v.sentence,
    "word's state in the sentence": lambda v: v.state,
    "'word: sentence' as one text": lambda v: v.joined,
    "word + sentence": lambda v: v.word + v.sentence,
    "word + state": lambda v: v.word + v.state,
    "sentence + state": lambda v: v.sentence + v.state,
    "word + sentence + state": lambda v: v.word + v.sentence + v.state,
    "word + 2 sentence + state": lambda v: v.word + 2 * v.sentence + v.state,
    "word + 4 sentence": lambda v: v.word + 4 * v.sentence,
    "joined + sentence": lambda v: v.joined + v.sentence,
    "joined + state": lambda v: v.joined + v.state,
    "joined + sentence + state": lambda v: v.joined + v.sentence + v.state,
}


def examples(path: Path, count: int) -> list[Example]:
    """Words of several senses in example sentences that hold them, drawn with a seed."""
    senses: dict[str, list[tuple[str, list[str]]]] = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            sentences = [one for one in (row["examples"] or "").split("|") if one]
            for word in row["words"].split("|"):
                senses[word].append((row["definition"], sentences))
    found = [
        Example(word, sentence, [definition for definition, _ in own], right)
        for word, own in senses.items()
        if len(own) > 1
        for right, (_, sentences) in enumerate(own)
        for sentence in sentences
        if occurrence(word, sentence) is not None
    ]
    return random.Random(SEED).sample(found, min(count, len(found)))


def vectors_of(embedder: WordEmbedder, drawn: list[Example]) -> Vectors:
    words, sentences = [one.word for one in drawn], [one.sentence for one in drawn]
    alone, _ = embedder.embed_with_words(words, query=True)
    pooled, inner = embedder.embed_with_words(sentences, query=True)
    joined, _ = embedder.embed_with_words(
        [f"{one.word}: {one.sentence}" for one in drawn], query=True
    )
    states = []
    for one, own in zip(drawn, inner, strict=True):
        start, end = occurrence(one.word, one.sentence) or (0, 0)
        inside = (own.spans[:, 0] < end) & (own.spans[:, 1] > start)
        states.append(own.vectors[inside].sum(axis=0))
    return Vectors(*map(unit_rows, (alone, pooled, np.array(states), joined)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--synsets", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=2000)
    arguments = parser.parse_args()
    drawn = examples(arguments.synsets, arguments.sentences)
    embedder = ModelSource(DEFAULT_MODEL, offline=True).load()
    if not isinstance(embedder, WordEmbedder):
        raise SystemExit(f"{embedder.name} gives no word vectors")
    texts = list(dict.fromkeys(sense for one in drawn for sense in one.senses))
    rows = dict(zip(texts, unit_rows(embedder.embed_documents(texts)), strict=True))
    vectors = vectors_of(embedder, drawn)
    half = len(drawn) // 2
    print(f"{len(drawn)} sentences, {len(texts)} definitions, {platform.machine()}")
    chance = np.mean([1 / len(one.senses) for one in drawn])
    print(f"chance of the right sense: {chance:.3f}")
    print(f"{'':32s} {'right sense':>16s}  {'first ten of all':>16s}  (chosen by, reported)")
    matrix = np.stack(list(rows.values()))
    places = {text: n for n, text in enumerate(rows)}
    own = np.array([places[one.senses[one.right]] for one in drawn])
    for name, way in WAYS.items():
        asked = way(vectors)
        right = [
            int(np.argmax(np.stack([rows[sense] for sense in one.senses]) @ query)) == one.right
            for one, query in zip(drawn, asked, strict=True)
        ]
        scores = asked @ matrix.T
        found = (scores > scores[np.arange(len(drawn)), own][:, None]).sum(axis=1) < FIRST
        figures = [np.mean(part) for one in (right, found) for part in (one[:half], one[half:])]
        print(f"{name:32s} " + "  ".join(f"{figure:6.3f}" for figure in figures))


if __name__ == "__main__":
    main()
