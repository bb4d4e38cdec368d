"""Commands on what a store holds: status, get, delete, verify, rebuild, compact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from engine import console
from engine.commands.options import json_option, store_option
from engine.errors import DocumentNotFoundError

if TYPE_CHECKING:
    from engine.core import Engine


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


@click.command()
@store_option
def rebuild(store: str) -> None:
    """Make the index file anew from the database."""
    from engine.core import Engine

    with Engine.open(store) as engine:
        engine.rebuild()
    console.note(f"the index of {store} was made anew")


@click.command()
@store_option
@json_option
def compact(store: str, as_json: bool | None) -> None:
    """Drop deleted rows from the index and give their room back to the disk."""
    from engine.core import Engine

    with Engine.open(store) as engine:
        console.Console(as_json).values({"freed_bytes": engine.compact()})
