"""The command line: parse, one engine call, print.

One file, though a long one: it is declarations. Exit status: 0 answered (or an empty answer),
1 error, 2 wrong usage, 3 the store is being written by another process, 4 another model than
the store's, 130 interrupted.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine import __version__, console
from engine.errors import (
    DocumentNotFoundError,
    EngineError,
    InvalidInputError,
    LockedError,
    ModelMismatchError,
)
from engine.settings import DEFAULT_K, DEFAULT_MODEL, IndexSpec, Metric
from engine.types import Refusal

if TYPE_CHECKING:
    from engine.core import Engine
    from engine.intake import Intake

DEFAULT_STORE = "attendex.store"
STDIN = "-"
DEMO_QUERIES = (
    ("instrument for measuring temperature", None),
    ("an institution that lends money", None),
    ("sloping land beside a river", None),
    ("to go on foot", "pos = 'verb'"),
)

Command = TypeVar("Command", bound=Callable[..., Any])

_store = click.option(
    "--store",
    envvar="ATTENDEX_STORE",
    default=DEFAULT_STORE,
    show_default=True,
    show_envvar=True,
    help="The store's directory.",
)
_json = click.option(
    "--json/--table",
    "as_json",
    default=None,
    help="JSON lines or a table; by default a table on a terminal, JSON lines in a pipe.",
)


def _model(command: Command) -> Command:
    """The options of commands that may embed."""
    model = click.option(
        "--model",
        help=f"A sentence-transformers model, by hub name or local path. A new store takes "
        f"{DEFAULT_MODEL}; an existing one knows its own.",
    )
    offline = click.option("--offline", is_flag=True, help="Never fetch a model.")
    return model(offline(command))


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="attendex")
@click.option("--debug", is_flag=True, help="Show the trace of an internal error.")
def cli(debug: bool) -> None:
    """Semantic search that shows its work.

    \b
    attendex index notes/ talks.csv     make or update the store ./attendex.store
    attendex query "how to prune roses" ask it
    """
    if debug:
        os.environ["ATTENDEX_DEBUG"] = "1"


@cli.command()
@click.argument("paths", nargs=-1, required=True)
@_store
@_model
@click.option(
    "--metric",
    type=click.Choice([metric.value for metric in Metric]),
    help="How a new store compares vectors (default cosine).",
)
@click.option("--whole", is_flag=True, help="A .txt file is one text, not one text a line.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["txt", "md", "csv", "tsv", "jsonl", "json"]),
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
@click.option("--delimiter", help="Of .csv files (default: comma, or semicolon if no comma).")
@_json
def index(
    paths: tuple[str, ...],
    store: str,
    model: str | None,
    offline: bool,
    metric: str | None,
    whole: bool,
    format_: str | None,
    text_columns: tuple[str, ...],
    joiner: str,
    id_column: str | None,
    metadata_columns: tuple[str, ...],
    vector_column: str | None,
    delimiter: str | None,
    as_json: bool | None,
) -> None:
    """Index files, directories and standard input (-) into the store, making it if need be.

    Reads .txt (one text a line), .md (whole), .csv, .tsv (no quoting), .jsonl and .json. The same
    id again replaces its document; unchanged texts are not embedded again; rows that cannot be
    read are named and skipped, and the exit status is then 1.
    """
    from engine.intake import Intake
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
    )
    exists = _has_store(store)
    if not exists and not intake.has_documents():
        _report_nothing(intake)
        return
    with (
        _opened_for_index(store, exists, model, offline, metric) as engine,
        console.progress() as show,
    ):
        report = engine.ingest(intake, on_progress=show, fraction=intake.fraction)
    console.notes(report)
    console.Console(as_json).report(report, store)
    if report.failed:
        raise SystemExit(1)


def _has_store(store: str) -> bool:
    from engine.storage.database import FILE_NAME

    return (Path(store) / FILE_NAME).exists()


def _report_nothing(intake: Intake) -> None:
    refusals = [item for item in intake if isinstance(item, Refusal)]
    for refusal in refusals:
        console.note(f"skipped {refusal}")
    console.note("nothing to index; no store was made")
    if refusals:
        raise SystemExit(1)


def _opened_for_index(
    store: str, exists: bool, model: str | None, offline: bool, metric: str | None
) -> Engine:
    from engine.core import Engine

    if not exists:
        spec = IndexSpec(metric=Metric(metric or Metric.COSINE.value))
        return Engine.create(store, model=model or DEFAULT_MODEL, index=spec, offline=offline)
    opened = Engine.open(store, model=model, offline=offline)
    own = opened.stats().metric
    if metric is not None and metric != own:
        opened.close()
        raise InvalidInputError(
            f"the store {store} compares by {own}, which was fixed when it was made; "
            f"index into a new store for {metric}"
        )
    return opened


@cli.command()
@click.argument("text")
@click.option("-k", "k", type=click.IntRange(min=1), default=DEFAULT_K, show_default=True)
@click.option("--where", help="Filter on metadata, as \"year >= 2000 and lang = 'en'\".")
@_store
@_model
@_json
def query(
    text: str,
    k: int,
    where: str | None,
    store: str,
    model: str | None,
    offline: bool,
    as_json: bool | None,
) -> None:
    """Find the texts closest to TEXT; "-" reads queries from standard input, one a line.

    Every hit has its rank, its score (cosine similarity), its weight (its softmax share of the
    attention among the hits: they sum to 1), its id and its text.

    \b
    Filters: = != < <= > >=, in (…), contains, is null, not, and, or, parentheses;
    nested fields are dotted, odd names stand in `backquotes`, texts in 'quotes'.
    """
    from engine.core import Engine

    queries = _lines_of_stdin() if text == STDIN else [text]
    out = console.Console(as_json)
    with Engine.open(store, model=model, offline=offline) as engine:
        if text != STDIN:
            results = [engine.search(text, k=k, where=where)]
        else:
            results = engine.search_many(queries, k=k, where=where)
    failed = 0
    for number, result in enumerate(results, start=1):
        if result.error is not None:
            failed += 1
            console.note(f"query {number}: {result.error}")
            continue
        for line in result.notes:
            console.note(line)
        out.result(result, titled=len(results) > 1)
    if failed:
        raise SystemExit(1)


def _lines_of_stdin() -> list[str]:
    read = sys.stdin.buffer.read().decode("utf-8-sig", errors="surrogateescape")
    return read.splitlines()


@cli.command()
@click.argument("a")
@click.argument("b")
@_store
@_model
@_json
def explain(
    a: str, b: str, store: str, model: str | None, offline: bool, as_json: bool | None
) -> None:
    """Show which words of A, read as a query, find an answer in which words of B.

    For every word of A: its match (how well B answers it), its share of the attention score (the
    shares sum to it), and the words of B it attends to most, with their softmax weights.
    """
    from engine.core import Engine

    with Engine.open(store, model=model, offline=offline) as engine:
        console.Console(as_json).explanation(engine.explain(a, b))


@cli.command()
@_store
@_json
def status(store: str, as_json: bool | None) -> None:
    """Show what the store holds. Loads neither model nor index."""
    from engine.core import Engine

    with Engine.open(store, read_only=True) as engine:
        console.Console(as_json).stats(engine.stats())


@cli.command()
@click.argument("ids", nargs=-1, required=True)
@_store
@_json
def get(ids: tuple[str, ...], store: str, as_json: bool | None) -> None:
    """Show documents by id."""
    from engine.core import Engine

    out = console.Console(as_json)
    with Engine.open(store, read_only=True) as engine:
        found, missing = _existing(engine, ids)
        out.documents(engine.get(found))
    if missing is not None:
        raise missing


@cli.command()
@click.argument("ids", nargs=-1, required=True)
@_store
@_json
def delete(ids: tuple[str, ...], store: str, as_json: bool | None) -> None:
    """Delete documents by id."""
    from engine.core import Engine

    with Engine.open(store) as engine:
        found, missing = _existing(engine, ids)
        console.Console(as_json).values({"deleted": engine.delete(found)})
    if missing is not None:
        raise missing


def _existing(engine: Engine, ids: Sequence[str]) -> tuple[list[str], DocumentNotFoundError | None]:
    """The ids that exist, each once, and the error that names the others."""
    wanted = list(dict.fromkeys(ids))
    try:
        engine.get(wanted)
    except DocumentNotFoundError as error:
        return [id_ for id_ in wanted if id_ not in error.ids], error
    return wanted, None


@cli.command()
@_store
@_json
def verify(store: str, as_json: bool | None) -> None:
    """Check the database, and the index file against it."""
    from engine.core import Engine

    with Engine.open(store, read_only=True) as engine:
        report = engine.verify()
    for problem in report.problems:
        console.note(problem)
    console.Console(as_json).values(
        {
            "documents": report.documents,
            "passages": report.passages,
            "problems": len(report.problems),
        }
    )
    if report.problems:
        raise SystemExit(1)


@cli.command()
@_store
def rebuild(store: str) -> None:
    """Make the index file anew from the database."""
    from engine.core import Engine

    with Engine.open(store) as engine:
        engine.rebuild()
    console.note(f"the index of {store} was made anew")


@cli.command()
@_store
@_json
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


class _NoteHandler(logging.Handler):
    """What the engine logs is a note for the person at the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        console.note(record.getMessage())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    log = logging.getLogger("attendex")
    if not any(isinstance(handler, _NoteHandler) for handler in log.handlers):
        log.addHandler(_NoteHandler())
        log.propagate = False
    try:
        cli.main(args=arguments, prog_name="attendex", standalone_mode=False)
        sys.stdout.flush()
        return 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        console.note("interrupted; what was committed is kept, the same command goes on from there")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except EngineError as error:
        console.note(str(error))
        return _status(error)
    except Exception as error:
        if os.environ.get("ATTENDEX_DEBUG", "") not in ("", "0"):
            traceback.print_exc()
        console.note(
            f"internal error: {type(error).__name__}: {error} (a fault of attendex; "
            "run `attendex --debug …` to see the trace)"
        )
        return 1


def _status(error: EngineError) -> int:
    match error:
        case LockedError():
            return 3
        case ModelMismatchError():
            return 4
        case InvalidInputError():
            return 2
        case _:
            return 1


def main() -> None:
    """The `attendex` command."""
    sys.exit(run())


if __name__ == "__main__":
    main()
