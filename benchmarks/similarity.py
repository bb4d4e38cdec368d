"""How well cosines follow human judgements of sentence pairs: Spearman's rank correlation.

    python benchmarks/similarity.py PAIRS.TSV… [--model NAME]

A file has lines of sentence, sentence, judgement (or judgement first), with or without a header.
"""

from __future__ import annotations

import csv
from pathlib import Path

import click
import numpy as np
from scipy import stats

from engine.models import ModelSource
from engine.settings import DEFAULT_MODEL
from engine.vectors import unit_rows


def pairs(path: Path) -> list[tuple[str, str, float]]:
    """The judged pairs of a file."""
    found = []
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            numbers = [cell for cell in row if _is_number(cell)]
            texts = [cell for cell in row if not _is_number(cell)]
            if len(numbers) == 1 and len(texts) == 2:
                found.append((texts[0], texts[1], float(numbers[0])))
    return found


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
def main(files: tuple[Path, ...], model: str) -> None:
    """Print a line for each file."""
    embedder = ModelSource(model).load()
    for path in files:
        first, second, judged = zip(*pairs(path), strict=True)
        rows, others = (unit_rows(embedder.embed_documents(list(one))) for one in (first, second))
        found = stats.spearmanr(np.einsum("ij,ij->i", rows, others), judged)
        print(f"{path.name}: {len(judged)} pairs, {model}: {100 * float(found.statistic):.2f}")


if __name__ == "__main__":
    main()
