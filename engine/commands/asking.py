"""`attendex query` and `attendex explain`."""

from __future__ import annotations

import sys

import click

from engine import console
from engine.commands.options import json_option, model_options, store_option
from engine.settings import DEFAULT_K

STDIN = "-"


@click.command()
@click.argument("text")
@click.option("-k", "k", type=click.IntRange(min=1), default=DEFAULT_K, show_default=True)
@click.option("--exact", is_flag=True, help="Compare every row, whatever index there is.")
@click.option("--passages", is_flag=True, help="Every near passage, not each document once.")
@click.option("--where", help="Filter on metadata, as \"year >= 2000 and lang = 'en'\".")
@store_option
@model_options
@json_option
def query(
    text: str,
    k: int,
    where: str | None,
    passages: bool,
    exact: bool,
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
            results = [engine.search(text, k=k, where=where, passages=passages, exact=exact)]
        else:
            results = engine.search_many(queries, k=k, where=where, passages=passages, exact=exact)
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


@click.command()
@click.argument("a")
@click.argument("b")
@store_option
@model_options
@json_option
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
