"""`attendex query` and `attendex explain`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine import console, notes, page
from engine.commands.options import (
    check_target,
    helper_option,
    json_option,
    model_options,
    overwrite_option,
    store_option,
    write_page,
)
from engine.serving.client import Asking, Options
from engine.serving.questions import Explain, Reasons, Search
from engine.settings import DEFAULT_K, DEFAULT_MODEL, Mode

if TYPE_CHECKING:
    from engine.core import Engine
    from engine.ranking.contract import Reranker
    from engine.serving.server import Line

STDIN = "-"


@click.command()
@click.argument("text", required=False)
@click.option("-k", "k", type=click.IntRange(min=1), default=DEFAULT_K, show_default=True)
@click.option("--context", help="A sentence that says in which sense TEXT is meant.")
@click.option("--like", multiple=True, metavar="ID", help="Near to this document; repeatable.")
@click.option("--not", "unlike", multiple=True, metavar="TEXT", help="Not about this; repeatable.")
@click.option("--arithmetic", is_flag=True, help='TEXT is a sum, as "king - man + woman".')
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    help="What finds the candidates: the meaning, the words, or both (default hybrid).",
)
@click.option(
    "--rerank/--no-rerank",
    default=None,
    help="Rank the candidates by attention, or leave them as found (default: rank, but for "
    "--mode lexical).",
)
@click.option(
    "--cross-encoder",
    metavar="MODEL",
    help="Rank the candidates by this sentence-transformers CrossEncoder (name or path).",
)
@click.option("--explain", is_flag=True, help="Show of each hit which words made it match.")
@click.option("--html", type=click.Path(), help="Write the explained answers as a page to a file.")
@overwrite_option
@click.option("--mass", type=float, help="Of the -k hits only the first that hold this share.")
@click.option("--exact", is_flag=True, help="Compare every row, whatever index there is.")
@click.option("--passages", is_flag=True, help="Every near passage, not each document once.")
@click.option("--where", help="Filter on metadata, as \"year >= 2000 and lang = 'en'\".")
@click.option("--timings", is_flag=True, help="Show the time of each stage.")
@store_option
@model_options
@helper_option
@json_option
def query(
    text: str | None,
    k: int,
    context: str | None,
    like: tuple[str, ...],
    unlike: tuple[str, ...],
    arithmetic: bool,
    mode: str | None,
    rerank: bool | None,
    cross_encoder: str | None,
    explain: bool,
    html: str | None,
    overwrite: bool,
    mass: float | None,
    where: str | None,
    passages: bool,
    exact: bool,
    timings: bool,
    store: str,
    model: str | None,
    offline: bool,
    runtime: str | None,
    helper: bool | None,
    as_json: bool | None,
) -> None:
    """Find the texts that answer TEXT best; "-" reads queries from standard input, one a line.

    Every hit has its rank, its score, its weight (its softmax share among the hits: they sum to
    1; relative, not a probability), its id and its text. The score is made of the cosine of the
    two texts, the attention of the query's words over the hit's, and BM25, each where there is one.
    With --like, --not or --arithmetic it is the cosine alone, and what went in is no answer.

    \b
    Filters: = != < <= > >=, in (…), contains, is null, not, and, or, parentheses;
    nested fields are dotted, odd names stand in `backquotes`, texts in 'quotes'.
    """
    out = console.Console(as_json)
    question = _question(
        text=text,
        k=k,
        context=context,
        like=like,
        unlike=unlike,
        arithmetic=arithmetic,
        mode=mode,
        rerank=rerank,
        cross_encoder=cross_encoder,
        explain=explain,
        html=html,
        mass=mass,
        where=where,
        passages=passages,
        exact=exact,
    )
    if html is not None:
        check_target(html, overwrite)
    with _asking(store, model, offline, runtime, helper, cross_encoder) as asking:
        if text == STDIN:
            question = replace(question, texts=tuple(_lines_of_stdin()))
        results = asking.ask(question)
    if text != STDIN and results[0].error is not None:
        raise results[0].error
    failed = 0
    for number, result in enumerate(results, start=1):
        if result.error is not None:
            failed += 1
            notes.note(f"query {number}: {result.error}")
            continue
        for line in result.notes:
            notes.note(line)
        out.result(result, titled=len(results) > 1)
    if timings:
        console.timings(results)
    if html is not None:
        write_page(html, page.of_results(results), overwrite)
    if failed:
        raise SystemExit(1)


def _question(
    *,
    text: str | None,
    k: int,
    context: str | None,
    like: tuple[str, ...],
    unlike: tuple[str, ...],
    arithmetic: bool,
    mode: str | None,
    rerank: bool | None,
    cross_encoder: str | None,
    explain: bool,
    html: str | None,
    mass: float | None,
    where: str | None,
    passages: bool,
    exact: bool,
) -> Search:
    """What the options of `query` ask. Raises `UsageError` where they do not go together."""
    combined = bool(like or unlike or arithmetic)
    others = (context, mode, rerank, mass, html, cross_encoder, explain or None, passages or None)
    if combined and any(other is not None for other in others):
        raise click.UsageError(
            "--like, --not and --arithmetic go with -k, --where, --exact and --timings only"
        )
    if combined and text == STDIN:
        raise click.UsageError("--like, --not and --arithmetic take one TEXT, not standard input")
    if text is None and not like:
        raise click.UsageError("give a TEXT to search for, or --like ID")
    return Search(
        texts=() if text is None else (text,),
        k=k,
        where=where,
        exact=exact,
        mode=mode,
        rerank=rerank,
        passages=passages,
        explain=explain or html is not None,
        mass=mass,
        context=context,
        combined=combined,
        like=like,
        unlike=unlike,
        arithmetic=arithmetic,
    )


def read_line(arguments: list[str]) -> Line | None:
    """What the arguments of `query` ask, where the answer is lines of JSON and nothing else."""
    from engine.serving.server import Line

    try:
        given = query.make_context("query", arguments).params
        simple = (
            given["as_json"] is True and given["text"] != STDIN and given["helper"] is not False
        )
        if not simple or given["html"] is not None or given["timings"]:
            return None
        question = _question(**{name: given[name] for name in signature(_question).parameters})
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        return None
    named = (given["model"], given["cross_encoder"])
    if any(name is not None and not os.path.isabs(name) for name in named):
        return None
    return Line(question, given["store"], Options.of(named[0], given["runtime"], named[1]))


def _asking(
    store: str,
    model: str | None,
    offline: bool,
    runtime: str | None,
    helper: bool | None,
    cross_encoder: str | None = None,
) -> Asking:
    """The store opened, or its daemon."""

    def opened() -> Engine:
        from engine.core import Engine

        reranker = reranker_of(cross_encoder, offline)
        return Engine.open(store, model=model, offline=offline, runtime=runtime, reranker=reranker)

    options = Options.of(model, runtime, cross_encoder)
    return Asking(store, options, opened, notes.note, use=helper, offline=offline)


def reranker_of(cross_encoder: str | None, offline: bool) -> Reranker | None:
    """The cross-encoder of a name, if one is named."""
    if cross_encoder is None:
        return None
    from engine.ranking.cross import CrossEncoderReranker

    return CrossEncoderReranker(cross_encoder, offline=offline)


def _lines_of_stdin() -> list[str]:
    read = sys.stdin.buffer.read().decode("utf-8-sig", errors="surrogateescape")
    return read.splitlines()


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--html", type=click.Path(), help="Write both texts, shaded, as a page to a file.")
@overwrite_option
@store_option
@model_options
@helper_option
@json_option
def explain(
    a: str,
    b: str,
    html: str | None,
    overwrite: bool,
    store: str,
    model: str | None,
    offline: bool,
    runtime: str | None,
    helper: bool | None,
    as_json: bool | None,
) -> None:
    """Show which words of A, read as a query, find an answer in which words of B, and back.

    For every word of A: its weight, its match (how well B answers it), its share of the attention
    score (the shares sum to it), and the words of B it attends to most, with their softmax
    weights. Needs no store; where there is one, its model is taken.
    """
    from engine.storage.store import store_exists

    if html is not None:
        check_target(html, overwrite)
    if store_exists(Path(store)):
        with _asking(store, model, offline, runtime, helper) as asking:
            there, back = asking.ask(Explain(a, b))
    else:
        from engine.core import explain_texts

        named = DEFAULT_MODEL if model is None else model
        there = explain_texts(a, b, model=named, offline=offline, runtime=runtime)
        back = explain_texts(b, a, model=named, offline=offline, runtime=runtime)
    console.Console(as_json).explanation(there, back)
    if html is not None:
        write_page(html, page.of_texts(there, back), overwrite)


@click.command()
@click.argument("id")
@click.argument("text")
@click.option("-k", "k", type=click.IntRange(min=1), default=DEFAULT_K, show_default=True)
@click.option("--mode", type=click.Choice([mode.value for mode in Mode]), help="As of query.")
@click.option("--where", help="Filter on metadata, as of query.")
@store_option
@model_options
@helper_option
@json_option
def why(
    id: str,
    text: str,
    k: int,
    mode: str | None,
    where: str | None,
    store: str,
    model: str | None,
    offline: bool,
    runtime: str | None,
    helper: bool | None,
    as_json: bool | None,
) -> None:
    """Say why the document ID is, or is not, among the first answers to TEXT.

    Its rank by meaning and by words among all documents, its rank and score among the answers,
    the words of TEXT that it does not hold, whether the filter or the model's window left it out.
    """
    with _asking(store, model, offline, runtime, helper) as asking:
        found = asking.ask(Reasons(id, text, k=k, where=where, mode=mode))
        console.Console(as_json).why(found)
