"""Answers against human judgements, stage by stage, over folders of collections.

    python benchmarks/quality.py FOLDER… [--work DIR] [--model NAME] [--precision int8]

A folder holds corpus.jsonl, queries.jsonl and qrels.tsv in BEIR's layout. Its documents, title and
text joined by a space, are indexed into a store under DIR, where they stay for the next run (with
another model, take another DIR). Prints a table in markdown, and for each folder what
`attendex evaluate --json` does.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from engine import Engine, notes
from engine.evaluation import MEASURES, Evaluation, summary
from engine.judgements import read_qrels, read_queries
from engine.settings import DEFAULT_MODEL, Precision
from engine.text.readers import ReadOptions

FILES = ("corpus.jsonl", "queries.jsonl", "qrels.tsv")


def evaluated(folder: Path, work: Path, model: str, precision: Precision) -> Evaluation:
    """Every stage on one collection."""
    corpus, queries, qrels = (folder / name for name in FILES)
    with corpus.open(encoding="utf-8") as lines:
        first = json.loads(next(lines))
    options = ReadOptions(
        id_column="_id",
        text_columns=tuple(name for name in ("title", "text") if name in first),
        joiner=" ",
        metadata_columns=(),
    )
    named = "store" if precision is Precision.FLOAT32 else f"{precision.value}.store"
    with Engine.create(
        work / f"{folder.name}.{named}", model=model, precision=precision, exist_ok=True
    ) as engine:
        notes.of_report(engine.add_files([corpus], options=options))
        return engine.evaluate(read_queries(queries), read_qrels(qrels))


def rows(name: str, report: Evaluation) -> Iterator[str]:
    """A line of the table for each stage; the difference is from the first one."""
    first = report.stages[0].name
    apart = {one.stage: one for one in report.comparisons if one.against == first}
    for stage in report.stages:
        measures = " | ".join(f"{stage.measures[measure]:.4f}" for measure in MEASURES)
        one = apart.get(stage.name)
        less = "" if one is None else f"{one.difference:+.4f} ({one.low:+.4f} to {one.high:+.4f})"
        p = "" if one is None else f"{one.p:.4f}"
        each = 1000 * stage.seconds / report.judged
        yield f"| {name} | {stage.name} | {measures} | {less} | {p} | {each:.1f} ms |"


@contextmanager
def directory(given: Path | None) -> Iterator[Path]:
    if given is None:
        with tempfile.TemporaryDirectory() as scratch:
            yield Path(scratch)
    else:
        given.mkdir(parents=True, exist_ok=True)
        yield given


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument(
    "folders",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option("--work", type=click.Path(path_type=Path), help="Where stores are kept.")
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
@click.option(
    "--precision",
    type=click.Choice([one.value for one in Precision]),
    default=Precision.FLOAT32.value,
    show_default=True,
)
def main(folders: tuple[Path, ...], work: Path | None, model: str, precision: str) -> None:
    for folder in folders:
        for name in FILES:
            if not (folder / name).is_file():
                raise click.UsageError(f"{folder} has no {name}")
    lines = []
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    print(f"| collection | stage | {' | '.join(MEASURES)} | nDCG@10 less dense | p | a query |")
    print("|---" * (len(MEASURES) + 5) + "|")
    with directory(work) as stores:
        for folder in folders:
            report = evaluated(folder, stores, model, Precision(precision))
            for note in report.notes:
                notes.note(note)
            print("\n".join(rows(folder.name, report)), flush=True)
            lines.append(json.dumps({"collection": folder.name, **summary(report)}))
    print("\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
