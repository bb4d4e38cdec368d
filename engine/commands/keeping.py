"""Commands on what a store holds: status, get, delete, verify, rebuild, compact, tune."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from engine import console, notes
from engine.commands.options import json_option, model_options, store_option
from engine.errors import DocumentNotFoundError
from engine.settings import IndexKind

if TYPE_CHECKING:
    from engine.core import Engine

_SIZE = r"\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(?:([KMGT])i?)?B?\s*"


@click.command()
@store_option
@json_option
def status(store: str, as_json: bool | None) -> None:
    """Show what the store holds. Loads neither model nor index."""
    from engine.core import Engine

    with Engine.open(store, read_only=True) as engine:
        console.Console(as_json).stats(engine.stats())


@click.command()
@click.argument("ids", nargs=-1, required=True)
@store_option
@json_option
def get(ids: tuple[str, ...], store: str, as_json: bool | None) -> None:
    """Show documents by id."""
    from engine.core import Engine

    out = console.Console(as_json)
    with Engine.open(store, read_only=True) as engine:
        found, missing = _existing(engine, ids)
        out.documents(engine.get(found))
    if missing is not None:
        raise missing


@click.command()
@click.argument("ids", nargs=-1, required=True)
@store_option
@json_option
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


@click.command()
@store_option
@json_option
def verify(store: str, as_json: bool | None) -> None:
    """Check the database, and the index file against it."""
    from engine.core import Engine

    with Engine.open(store, read_only=True) as engine:
        report = engine.verify()
    for problem in report.problems:
        notes.note(problem)
    console.Console(as_json).values(
        {
            "documents": report.documents,
            "passages": report.passages,
            "problems": len(report.problems),
        }
    )
    if report.problems:
        raise SystemExit(1)


@click.command()
@click.option("--store", envvar="ATTENDEX_STORE", help="Check this store too.")
@json_option
def doctor(store: str | None, as_json: bool | None) -> None:
    """Show what this installation is made of, and what is wrong with it or with a store."""
    from engine.doctor import examine

    out = console.Console(as_json)
    faults = 0
    for finding in examine(store):
        out.finding(finding.name, finding.value, finding.fault)
        faults += finding.fault is not None
    if faults:
        raise SystemExit(1)


@click.command()
@click.argument("new")
@store_option
@model_options
@json_option
def recover(
    new: str,
    store: str,
    model: str | None,
    offline: bool,
    runtime: str | None,
    as_json: bool | None,
) -> None:
    """Save what can still be read of a damaged store into a NEW one.

    The damaged one stays as it is. Texts and vectors are checked by their hashes; a document that
    lost its vectors is embedded again. Says what is missing, and ends with status 1 where
    anything is.
    """
    from engine.recovery import recover as save

    with notes.progress() as show:
        report = save(store, new, model=model, offline=offline, runtime=runtime, on_progress=show)
    for line in report.notes:
        notes.note(line)
    notes.wordless(report.wordless)
    console.Console(as_json).values(
        {
            "documents": report.documents,
            "passages": report.passages,
            "embedded": report.embedded,
            "expected": report.expected,
            "lost": report.lost,
            "partial": report.partial,
        }
    )
    if report.lost != 0 or report.notes:
        raise SystemExit(1)


@click.command()
@store_option
def rebuild(store: str) -> None:
    """Make the index file anew from the database."""
    from engine.core import Engine

    with Engine.open(store) as engine:
        engine.rebuild()
    notes.note(f"the index of {store} was made anew")


@click.command()
@store_option
@json_option
def compact(store: str, as_json: bool | None) -> None:
    """Drop deleted rows from the index and give their room back to the disk."""
    from engine.core import Engine

    with Engine.open(store) as engine:
        console.Console(as_json).values({"freed_bytes": engine.compact()})


@click.command()
@click.option("--recall", type=float, help="Share of the nearest rows to be found (first 0.98).")
@click.option("--factory", help="Measure this FAISS index alone, as IVF1024,PQ48x4fs.")
@click.option("--memory", help="At most so large an index, as 500MB or 2GB.")
@click.option(
    "--kind",
    type=click.Choice([kind.value for kind in IndexKind if kind is not IndexKind.FACTORY]),
    default=IndexKind.AUTO.value,
    show_default=True,
    help="flat: exact; hnsw: a graph; ivf: cells; auto: the fastest that is good enough.",
)
@store_option
@json_option
def tune(
    recall: float | None,
    factory: str | None,
    memory: str | None,
    kind: str,
    store: str,
    as_json: bool | None,
) -> None:
    """Measure the kinds of index on the store's own rows and use the best from now on.

    Prints what was measured of those that no other beat in both recall and time. The chosen one's
    recall is that of queries that had no part in the choice, with its 95 % interval.
    """
    from engine.core import Engine

    limit = None if memory is None else _bytes(memory)
    with Engine.open(store) as engine:
        report = engine.tune(kind=kind, recall=recall, memory=limit, factory=factory)
    console.Console(as_json).tuning(report)


def _bytes(text: str) -> int:
    found = re.fullmatch(_SIZE, text, re.IGNORECASE)
    if found is None:
        raise click.BadParameter("must be a size such as 500MB or 2GB", param_hint="--memory")
    power = " KMGT".index((found[2] or " ").upper())
    return int(float(found[1]) * 1024**power)


@click.group()
def tokens() -> None:
    """Make or drop the vectors of the texts' words, which rank and explain."""


@tokens.command("build")
@store_option
@model_options
@json_option
def build_tokens(
    store: str, model: str | None, offline: bool, runtime: str | None, as_json: bool | None
) -> None:
    """Give word vectors to the passages that have none; goes on where it was interrupted."""
    from engine.core import Engine

    with (
        Engine.open(store, model=model, offline=offline, runtime=runtime) as engine,
        notes.progress() as show,
    ):
        made = engine.build_tokens(on_progress=show)
    console.Console(as_json).values({"built": made})


@tokens.command("drop")
@store_option
@json_option
def drop_tokens(store: str, as_json: bool | None) -> None:
    """Forget all word vectors and keep none from now on."""
    from engine.core import Engine

    with Engine.open(store) as engine:
        console.Console(as_json).values({"dropped": engine.drop_tokens()})
