"""How well each stage of the ranking answers judged queries.

The measures are those of trec_eval, by ir-measures, which is imported when something is measured
and nowhere else. As in trec_eval a query counts the same whatever number of documents it has,
one that found nothing counts 0, and documents of equal score are ordered by id, not as the engine
does. Every stage is asked the same queries for the same number of documents, so that the
differences of two stages can be paired query by query.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from engine.arrays import Float64Array
from engine.errors import EngineError, InvalidInputError
from engine.judgements import HIGHEST, Qrels, Queries
from engine.settings import Mode
from engine.types import SearchResult

DEPTH = 100
"""How many documents a query is asked for."""
COMPARED = "nDCG@10"
"""The measure that stages are compared by."""
MEASURES = (COMPARED, "MRR@10", "Recall@100", "MAP@100")

_QUERIES_A_BLOCK = 64
_IDS_A_BLOCK = 1024
_CONFIDENCE = 0.95
_SAME = 1e-12
"""Differences that differ by no more are one number, rounded differently."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A way to rank, and what `Engine.search_many` is given for it."""

    name: str
    mode: Mode
    rerank: bool


STAGES = (
    Stage("dense", Mode.DENSE, rerank=False),
    Stage("lexical", Mode.LEXICAL, rerank=False),
    Stage("dense + attention", Mode.DENSE, rerank=True),
    Stage("fused", Mode.HYBRID, rerank=False),
    Stage("reranked", Mode.HYBRID, rerank=True),
)
"""Every stage, each after the one that it is compared with; all are compared with the first."""


@dataclass(frozen=True, slots=True)
class StageScores:
    """What one stage reached: `measures` are means over the judged queries, in [0, 1].

    `per_query` are those means' parts, by query id. `seconds` is the time all queries took, text
    to hits, with model and index loaded before.
    """

    name: str
    measures: Mapping[str, float]
    seconds: float
    per_query: Mapping[str, Mapping[str, float]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A stage against another by `measure`, query by query.

    `difference` is the mean of stage less `against`, [`low`, `high`] its 95 % interval and `p` the
    two-sided p of a paired t-test: of this comparison alone, not corrected for there being several.
    """

    stage: str
    against: str
    measure: str
    difference: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Every stage's scores, and how they differ.

    Of the `queries` given those with judgements, `judged`, count. `absent` are judged documents
    that are not in the store: they count as not found. `failed` are queries that could not be
    answered, by id, with the reason: they count 0. `notes` say all this in sentences.
    `comparisons` are empty where fewer than two queries were judged.
    """

    stages: tuple[StageScores, ...]
    comparisons: tuple[Comparison, ...]
    queries: int
    judged: int
    absent: int
    failed: Mapping[str, str]
    notes: tuple[str, ...]


Ask = Callable[[list[str], Stage, int], list[SearchResult]]
"""Texts, a stage and how many documents -> a result for each text."""
Existing = Callable[[Sequence[str]], Collection[str]]
"""Document ids -> those in the store."""


def chosen(names: Sequence[str] | None) -> tuple[Stage, ...]:
    """The stages of these names (None: all), in their own order. Raises `InvalidInputError`."""
    if names is None:
        return STAGES
    if isinstance(names, str) or not names:
        raise InvalidInputError(f"stages must be a list of names, not {names!r}")
    known = [stage.name for stage in STAGES]
    for name in names:
        if name not in known:
            listed = ", ".join(known)
            raise InvalidInputError(f"unknown stage {name!r}; choose some of: {listed}")
    return tuple(stage for stage in STAGES if stage.name in names)


def evaluate(
    queries: Queries, qrels: Qrels, stages: Sequence[Stage], ask: Ask, existing: Existing
) -> Evaluation:
    """Ask the judged queries of every stage and measure the answers.

    Raises `InvalidInputError` where no query has judgements, `EngineError` without the library.
    """
    judged = _judged(queries, qrels)
    measure = _measurer(judged)
    failed: dict[str, str] = {}
    scores = []
    for stage in stages:
        run, seconds = _run({id_: queries[id_] for id_ in judged}, stage, ask, failed)
        per_query = measure(run)
        means = {
            name: float(np.mean([values[name] for values in per_query.values()]))
            for name in MEASURES
        }
        scores.append(StageScores(stage.name, means, seconds, per_query))
    documents = list(dict.fromkeys(id_ for found in judged.values() for id_ in found))
    absent = len(documents) - _count(documents, existing)
    return Evaluation(
        stages=tuple(scores),
        comparisons=tuple(_comparisons(scores)) if len(judged) > 1 else (),
        queries=len(queries),
        judged=len(judged),
        absent=absent,
        failed=failed,
        notes=tuple(_notes(queries, qrels, judged, len(documents), absent, failed)),
    )


def summary(report: Evaluation) -> dict[str, Any]:
    """The report as plain values, without those of single queries."""
    fields = asdict(report)
    for stage in fields["stages"]:
        del stage["per_query"]
    return fields


def paired_t(differences: Float64Array) -> tuple[float, float, float, float]:
    """Mean of the differences (n,), n > 1, its 95 % interval, and p: (mean, low, high, p).

    Student's paired t-test: t = mean / (sd / sqrt(n)) with n - 1 degrees of freedom. On topics'
    measures it agrees with the randomisation test, which has no interval (Smucker, Allan and
    Carterette, "A comparison of statistical significance tests for information retrieval
    evaluation", CIKM 2007). Differences that are all alike have no variance: p is then 1 where
    they are 0, else 0.
    """
    from scipy import stats

    mean = float(differences.mean())
    if np.ptp(differences) <= _SAME:
        return mean, mean, mean, float(abs(mean) <= _SAME)
    test = stats.ttest_1samp(differences, 0.0)
    interval = test.confidence_interval(_CONFIDENCE)
    return mean, float(interval.low), float(interval.high), float(test.pvalue)


def _judged(queries: Queries, qrels: Qrels) -> dict[str, dict[str, int]]:
    """The judgements of the queries given, in their order, as plain numbers."""
    judged: dict[str, dict[str, int]] = {}
    for query in queries:
        for document, judgement in qrels.get(query, {}).items():
            if isinstance(judgement, bool) or not isinstance(judgement, int | np.integer):
                fault = f"{judgement!r} is no whole number"
            elif abs(judgement) > HIGHEST:
                fault = f"{judgement} is beyond {HIGHEST}"
            elif not isinstance(query, str) or not isinstance(document, str):
                fault = "ids must be texts"
            else:
                judged.setdefault(query, {})[document] = int(judgement)
                continue
            raise InvalidInputError(f"the judgement of {document!r} for query {query!r}: {fault}")
    if not judged:
        raise InvalidInputError(
            f"none of the {len(queries):,} queries is among the {len(qrels):,} that have "
            "judgements; both must name queries by the same ids"
        )
    return judged


def _run(
    queries: Mapping[str, str], stage: Stage, ask: Ask, failed: dict[str, str]
) -> tuple[dict[str, dict[str, float]], float]:
    """The scores of the documents found for each query, and the seconds it took."""
    ids, texts = list(queries), list(queries.values())
    ask(texts[:1], stage, 1)
    run: dict[str, dict[str, float]] = {}
    seconds = 0.0
    for start in range(0, len(ids), _QUERIES_A_BLOCK):
        block = slice(start, start + _QUERIES_A_BLOCK)
        started = time.perf_counter()
        results = ask(texts[block], stage, DEPTH)
        seconds += time.perf_counter() - started
        for id_, result in zip(ids[block], results, strict=True):
            if result.error is not None:
                failed[id_] = str(result.error)
            elif result.hits:
                run[id_] = {hit.id: hit.score for hit in result.hits}
    return run, seconds


Measurer = Callable[[Mapping[str, Mapping[str, float]]], dict[str, dict[str, float]]]
"""Query id -> document id -> score to query id -> measure -> value."""


def _measurer(judged: Mapping[str, Mapping[str, int]]) -> Measurer:
    """ir-measures with trec_eval behind it, for these judgements.

    nDCG is trec_eval's: gains are the judgements themselves, discounts log2(rank + 1). trec_eval
    has no cut-off for the reciprocal rank, so below 1/10 it is made 0.
    """
    try:
        import ir_measures as ir
        import scipy  # noqa: F401
    except ImportError:
        raise EngineError(
            "evaluation needs ir-measures: pip install 'attendex[evaluate]'"
        ) from None
    measures: dict[Any, str] = {
        ir.nDCG @ 10: "nDCG@10",
        ir.RR: "MRR@10",
        ir.R @ DEPTH: "Recall@100",
        ir.AP @ DEPTH: "MAP@100",
    }
    evaluator = ir.pytrec_eval.evaluator(list(measures), judged)

    def measure(run: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {id_: {} for id_ in judged}
        for one in evaluator.iter_calc(run):
            found[one.query_id][measures[one.measure]] = float(one.value)
        for values in found.values():
            if values["MRR@10"] < 1 / 10:
                values["MRR@10"] = 0.0
        return {id_: {name: values[name] for name in MEASURES} for id_, values in found.items()}

    return measure


def _comparisons(scores: Sequence[StageScores]) -> list[Comparison]:
    """Each stage with the one before it and with the first."""
    pairs = {(n, m): None for n in range(1, len(scores)) for m in (n - 1, 0)}
    compared = []
    for n, m in pairs:
        one, other = scores[n], scores[m]
        differences = np.array(
            [one.per_query[id_][COMPARED] - other.per_query[id_][COMPARED] for id_ in one.per_query]
        )
        compared.append(Comparison(one.name, other.name, COMPARED, *paired_t(differences)))
    return compared


def _count(documents: Sequence[str], existing: Existing) -> int:
    blocks = range(0, len(documents), _IDS_A_BLOCK)
    return sum(len(existing(documents[start : start + _IDS_A_BLOCK])) for start in blocks)


def _notes(
    queries: Queries,
    qrels: Qrels,
    judged: Mapping[str, Mapping[str, int]],
    documents: int,
    absent: int,
    failed: Mapping[str, str],
) -> list[str]:
    notes = [f"query '{id_}' counts 0: {reason}" for id_, reason in failed.items()]
    hopeless = sum(max(found.values()) < 1 for found in judged.values())
    for count, of, what in (
        (len(queries) - len(judged), len(queries), "queries have no judgement and were left out"),
        (len(qrels) - len(judged), len(qrels), "judged queries are not among those given"),
        (hopeless, len(judged), "judged queries have no relevant document and count 0"),
        (absent, documents, "judged documents are not in the store and count as not found"),
    ):
        if count:
            notes.append(f"{count:,} of {of:,} {what}")
    return notes
