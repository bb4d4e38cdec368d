"""`attendex evaluate`."""

from __future__ import annotations

import click

from engine import console, notes
from engine.commands.options import json_option, model_options, store_option


@click.command()
@click.argument("queries")
@click.argument("qrels")
@click.option(
    "--stage",
    "stages",
    multiple=True,
    help="Only this stage of the ranking; repeat for more. Default: all.",
)
@click.option("--where", help="Only documents whose metadata match; written as for query.")
@click.option("--per-query", is_flag=True, help="Before the means, the measures of each query.")
@store_option
@model_options
@json_option
def evaluate(
    queries: str,
    qrels: str,
    stages: tuple[str, ...],
    where: str | None,
    per_query: bool,
    store: str,
    model: str | None,
    offline: bool,
    runtime: str | None,
    as_json: bool | None,
) -> None:
    """Measure how well the store answers QUERIES, judged by QRELS.

    QUERIES are BEIR's JSON lines (_id, text) or lines of id, tab, text; QRELS are BEIR's tab
    separated lines or TREC's four columns. Prints nDCG@10, MRR@10, Recall@100 and MAP@100 of each
    stage of the ranking, and how the stages differ in nDCG@10, with the 95 % interval and the p
    of a paired t-test.
    """
    from engine.core import Engine
    from engine.judgements import read_qrels, read_queries

    asked, judged = read_queries(queries), read_qrels(qrels)
    with Engine.open(store, model=model, offline=offline, runtime=runtime) as engine:
        report = engine.evaluate(asked, judged, stages=stages or None, where=where)
    for line in report.notes:
        notes.note(line)
    out = console.Console(as_json)
    if per_query:
        out.judged_queries(report)
    out.evaluation(report)
    if report.failed:
        raise SystemExit(1)
