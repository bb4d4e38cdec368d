"""`attendex index` and `attendex demo`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine import console, notes
from engine.commands.asking import query
from engine.commands.options import (
    demo_store_option,
    half_option,
    json_option,
    model_options,
    precision_option,
    store_option,
    tokens_option,
)
from engine.errors import InvalidInputError
from engine.settings import DEFAULT_MODEL, IndexSpec, Metric
from engine.types import Refusal

if TYPE_CHECKING:
    from engine.core import Engine
    from engine.intake import Intake

DEMO_QUERIES = (
    ("instrument for measuring temperature", None),
    ("an institution that lends money", None),
    ("sloping land beside a river", None),
    ("to go on foot", "pos = 'verb'"),
)


@click.command()
@click.argument("paths", nargs=-1, required=True)
@store_option
@model_options
@half_option
@precision_option
@tokens_option
@click.option(
    "--metric",
    type=click.Choice([metric.value for metric in Metric]),
    help="How a new store compares vectors (default cosine).",
)
@click.option("--whole", is_flag=True, help="A .txt file is one text, not one text a line.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["txt", "md", "csv", "tsv", "jsonl", "json", "parquet", "html", "pdf"]),
    help="Read every path as this, whatever its name.",
)
@click.option(
    "--text-column",
    "text_columns",
    multiple=True,
    help="Column or key of the text; several are joined. Default: text, content, body, sentence.",
)
@click.option("--joiner", default=": ", show_default=True, help="Between several text columns.")
@click.option("--id-column", help="Column or key of the id (default: id, where there is one).")
@click.option(
    "--metadata-column",
    "metadata_columns",
    multiple=True,
    help="Column or key to keep as metadata; repeat for more. Default: all others.",
)
@click.option("--vector-column", help="Column or key of a ready vector, a JSON list of numbers.")
@click.option("--vectors", help="A .npy file of ready vectors, one for each row of the one file.")
@click.option("--glob", multiple=True, help="In directories, only files that match; repeatable.")
@click.option("--exclude", multiple=True, help="In directories, no files that match; repeatable.")
@click.option("--follow-links", is_flag=True, help="Symbolic links may lead out of a directory.")
@click.option("--prune", is_flag=True, help="Remove documents of files gone from PATHS.")
@click.option("--dry-run", is_flag=True, help="With --prune: show what would go, do nothing.")
@click.option("--delimiter", help="Of .csv files (default: comma, or semicolon if no comma).")
@json_option
def index(
    paths: tuple[str, ...],
    store: str,
    model: str | None,
    offline: bool,
    runtime: str | None,
    half: bool,
    precision: str | None,
    tokens: bool | None,
    metric: str | None,
    whole: bool,
    format_: str | None,
    text_columns: tuple[str, ...],
    joiner: str,
    id_column: str | None,
    metadata_columns: tuple[str, ...],
    vector_column: str | None,
    vectors: str | None,
    delimiter: str | None,
    glob: tuple[str, ...],
    exclude: tuple[str, ...],
    follow_links: bool,
    prune: bool,
    dry_run: bool,
    as_json: bool | None,
) -> None:
    """Index files, directories and standard input (-) into the store, making it if need be.

    Reads .txt (one text a line), .md (whole), .csv, .tsv (no quoting), .jsonl, .json, .parquet,
    .html, .pdf, and .gz of each; in directories --glob, --exclude and a file .attendexignore choose
    by patterns written as in a .gitignore. The same id again replaces its document; unchanged
    texts are not embedded again; rows that cannot be read are named and skipped, and the exit
    status is then 1.
    """
    from engine.intake import Intake
    from engine.storage.store import store_exists
    from engine.text.readers import ReadOptions

    if delimiter is not None and len(delimiter) != 1:
        raise click.BadParameter("must be one character", param_hint="--delimiter")
    intake = Intake(
        paths,
        ReadOptions(
            whole=whole,
            format=format_,
            text_columns=text_columns,
            joiner=joiner,
            id_column=id_column,
            metadata_columns=metadata_columns or None,
            vector_column=vector_column,
            delimiter=delimiter,
        ),
        base=Path(store).parent,
        glob=glob,
        exclude=exclude,
        follow_links=follow_links,
        vectors=vectors,
    )
    if dry_run:
        if not prune:
            raise click.UsageError("--dry-run goes with --prune")
        _show_prunable(paths, store, as_json)
        return
    exists = store_exists(Path(store))
    if not exists and not intake.has_documents():
        _report_nothing(intake)
        return
    with (
        _opened_for_index(
            store, exists, model, offline, runtime, half, precision, metric, tokens
        ) as engine,
        notes.progress() as show,
    ):
        intake.check_width(engine.stats().dimension)
        report = engine.ingest(intake, on_progress=show, fraction=intake.fraction)
        if prune:
            pruned = engine.prune([path for path in paths if path != "-"])
            report = replace(report, removed=report.removed + pruned.documents)
    notes.of_report(report)
    console.Console(as_json).report(report, store)
    if report.failed:
        raise SystemExit(1)


def _show_prunable(paths: tuple[str, ...], store: str, as_json: bool | None) -> None:
    from engine.core import Engine

    with Engine.open(store) as engine:
        report = engine.prune([path for path in paths if path != "-"], dry_run=True)
    for source in report.sources:
        notes.note(f"would remove the documents of {source}")
    console.Console(as_json).values({"sources": len(report.sources), "documents": report.documents})


def _report_nothing(intake: Intake) -> None:
    refusals = [item for item in intake if isinstance(item, Refusal)]
    for refusal in refusals:
        notes.note(f"skipped {refusal}")
    notes.note("nothing to index; no store was made")
    if refusals:
        raise SystemExit(1)


def _opened_for_index(
    store: str,
    exists: bool,
    model: str | None,
    offline: bool,
    runtime: str | None,
    half: bool,
    precision: str | None,
    metric: str | None,
    tokens: bool | None,
) -> Engine:
    from engine.core import Engine

    if not exists:
        return Engine.create(
            store,
            model=DEFAULT_MODEL if model is None else model,
            index=IndexSpec(metric=Metric(metric or Metric.COSINE.value)),
            exist_ok=True,
            offline=offline,
            runtime=runtime,
            half=half,
            precision=precision,
            tokens=tokens,
        )
    opened = Engine.open(
        store, model=model, offline=offline, runtime=runtime, half=half, precision=precision
    )
    held = opened.stats()
    own, kept = held.metric, held.tokens
    if metric is not None and metric != own:
        opened.close()
        raise InvalidInputError(
            f"the store {store} compares by {own}, which was fixed when it was made; "
            f"index into a new store for {metric}"
        )
    if tokens is not None and tokens is not kept:
        opened.close()
        raise InvalidInputError(
            f"the store {store} keeps {'the' if kept else 'no'} word vectors; change it with "
            f"`attendex tokens {'drop' if kept else 'build'}`"
        )
    return opened


@click.command()
@demo_store_option
@json_option
@click.pass_context
def demo(context: click.Context, store: str, as_json: bool | None) -> None:
    """Index about 1,000 WordNet words that come with attendex, and ask a few things.

    Each step is shown as the command that does the same.
    """
    from engine.samples import WORDNET

    columns = ("words", "definition")
    named = " ".join(f"--text-column {column}" for column in columns)
    click.secho(f"$ attendex index {WORDNET} {named} --store {store}", bold=True)
    context.invoke(index, paths=(str(WORDNET),), text_columns=columns, store=store, as_json=as_json)
    for text, where in DEMO_QUERIES:
        condition = f' --where "{where}"' if where else ""
        click.secho(f'\n$ attendex query "{text}" -k 3{condition} --store {store}', bold=True)
        context.invoke(query, text=text, k=3, where=where, store=store, as_json=as_json)
