"""`attendex export`, `attendex import` and `attendex backup`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine import console, notes
from engine.commands.options import (
    half_option,
    json_option,
    model_options,
    precision_option,
    store_option,
)
from engine.errors import StoreExistsError
from engine.settings import DEFAULT_MODEL

if TYPE_CHECKING:
    from engine.core import Engine
    from engine.transfer import ExportFile

STREAM = "-"

format_option = click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "parquet"]),
    help="The file's format, whatever its name.",
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Write over a FILE that exists.")


@click.command()
@click.argument("file")
@format_option
@click.option(
    "--vectors/--no-vectors",
    default=True,
    help="With the vectors (the default) or only texts and metadata.",
)
@click.option("--where", help="Only documents whose metadata match; written as for query.")
@overwrite_option
@store_option
@json_option
def export(
    file: str,
    format_: str | None,
    vectors: bool,
    where: str | None,
    overwrite: bool,
    store: str,
    as_json: bool | None,
) -> None:
    """Write the documents to FILE (.jsonl, .jsonl.gz, .parquet, or - for standard output).

    With the vectors, `attendex import` gives the same store back and embeds nothing. The file
    holds one generation, whatever is written to the store meanwhile, and appears whole or not at
    all.
    """
    from engine.core import Engine

    with Engine.open(store, read_only=True) as engine:
        count = engine.export_file(
            file, format=format_, vectors=vectors, where=where, overwrite=overwrite
        )
    if file != STREAM:
        console.Console(as_json).values({"documents": count, "file": file})


@click.command("import")
@click.argument("file")
@format_option
@click.option(
    "--vectors/--no-vectors",
    default=True,
    help="Take the vectors of FILE (the default) or embed its texts.",
)
@store_option
@model_options
@half_option
@precision_option
@json_option
def import_(
    file: str,
    format_: str | None,
    vectors: bool,
    store: str,
    model: str | None,
    offline: bool,
    runtime: str | None,
    half: bool,
    precision: str | None,
    as_json: bool | None,
) -> None:
    """Take in what `attendex export` wrote to FILE (- for standard input), making the store if
    need be.

    The same id again replaces its document. Vectors must be of the store's own model; without
    vectors, in FILE or by --no-vectors, the texts are embedded.
    """
    from engine.transfer import ExportFile

    with (
        ExportFile(file, format_) as exported,
        _opened(exported, vectors, store, model, offline, runtime, half, precision) as engine,
        notes.progress() as show,
    ):
        report = engine.import_file(exported, vectors=vectors, on_progress=show)
        wordless = engine.stats().wordless
    notes.of_report(report)
    notes.wordless(wordless)
    console.Console(as_json).report(report, store)
    if report.failed:
        raise SystemExit(1)


def _opened(
    exported: ExportFile,
    vectors: bool,
    store: str,
    model: str | None,
    offline: bool,
    runtime: str | None,
    half: bool,
    precision: str | None,
) -> Engine:
    from engine.core import Engine
    from engine.storage.store import store_exists

    like_the_vectors = model is None and vectors and exported.header is not None
    if like_the_vectors and not store_exists(Path(store)):
        with suppress(StoreExistsError):  # another process was faster
            return Engine.create_for(
                store,
                exported,
                offline=offline,
                runtime=runtime,
                half=half,
                precision=precision,
            )
    if store_exists(Path(store)):
        return Engine.open(
            store, model=model, offline=offline, runtime=runtime, half=half, precision=precision
        )
    given = DEFAULT_MODEL if model is None else model
    return Engine.create(
        store,
        model=given,
        exist_ok=True,
        offline=offline,
        runtime=runtime,
        half=half,
        precision=precision,
    )


@click.command()
@click.argument("file")
@overwrite_option
@store_option
def backup(file: str, overwrite: bool, store: str) -> None:
    """Copy the store's database into FILE, while others may write.

    Put into an empty directory as store.db, it is the same store; the index is made anew.
    """
    from engine.core import Engine

    with Engine.open(store, read_only=True) as engine:
        engine.backup(file, overwrite=overwrite)
    notes.note(f"{store} was copied into {file}")
