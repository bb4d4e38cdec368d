"""Measures, comparisons and files of judgements, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import cli
from engine import Document, Engine, EngineError, evaluation
from engine.errors import FilterError, InvalidInputError, StorageError
from engine.evaluation import STAGES, Evaluation, paired_t
from engine.judgements import read_qrels, read_queries
from engine.types import Hit, SearchResult
from tests.test_formats import without

TEXTS = {
    "a": "red red red blue",
    "b": "red blue",
    "c": "red blue blue blue",
    "d": "green",
    "e": "green green yellow",
}
"""By cosine "red" finds a (3/√10), b (1/√2), c (1/√10), "green" d (1), e (2/√5)."""
QUERIES = {"1": "red", "2": "green", "3": "yellow", "unjudged": "blue"}
QRELS = {
    "1": {"b": 2, "c": 1, "a": 0, "lost": 1},
    "2": {"d": 1, "e": 0},
    "3": {"e": 1},
    "elsewhere": {"a": 1},
}


@pytest.fixture
def filled(engine: Engine) -> Engine:
    engine.add([Document(text, id_, {"long": len(text) > 6}) for id_, text in TEXTS.items()])
    return engine


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# Measures


def test_measures_by_hand(filled: Engine) -> None:
    """Query 1: a (0), b (2), c (1), d and e (0); the ideal order is 2, 1, 1. log2(2), log2(3),
    log2(4) discount ranks 1 to 3; its relevant documents are b, c and one that is not there."""
    report = filled.evaluate(QUERIES, QRELS)
    assert [stage.name for stage in report.stages] == [stage.name for stage in STAGES]
    dense = report.stages[0]
    assert list(dense.per_query) == ["1", "2", "3"]
    ideal = 2 + 1 / math.log2(3) + 1 / 2
    expected = {
        "nDCG@10": (2 / math.log2(3) + 1 / 2) / ideal,
        "MRR@10": 1 / 2,
        "Recall@100": 2 / 3,
        "MAP@100": (1 / 2 + 2 / 3) / 3,
    }
    assert dense.per_query["1"] == pytest.approx(expected)
    perfect = dict.fromkeys(expected, 1.0)
    assert dense.per_query["2"] == dense.per_query["3"] == pytest.approx(perfect)
    means = {name: (value + 2) / 3 for name, value in expected.items()}
    assert dense.measures == pytest.approx(means)
    assert dense.seconds > 0
    assert (report.queries, report.judged, report.absent, report.failed) == (4, 3, 1, {})
    assert report.notes == (
        "1 of 4 queries have no judgement and were left out",
        "1 of 4 judged queries are not among those given",
        "1 of 6 judged documents are not in the store and count as not found",
    )


class Answers:
    """Ready answers in place of a store: query text -> document ids with scores."""

    def __init__(self, found: Mapping[str, Mapping[str, float]]) -> None:
        self.found = found
        self.asked: list[tuple[int, int]] = []

    def __call__(self, texts: list[str], stage: evaluation.Stage, k: int) -> list[SearchResult]:
        self.asked.append((len(texts), k))
        return [self.result(text, k) for text in texts]

    def result(self, text: str, k: int) -> SearchResult:
        ranked = list(self.found.get(text, {}).items())[:k]
        hits = [Hit(n, id_, score, score, "", {}) for n, (id_, score) in enumerate(ranked, 1)]
        error = InvalidInputError("no words") if text == "broken" else None
        return SearchResult(text, () if error else tuple(hits), error=error)


def measured(found: Mapping[str, float], judged: Mapping[str, int]) -> Mapping[str, float]:
    ask = Answers({"q": found})
    report = evaluation.evaluate({"q": "q"}, {"q": judged}, STAGES[:1], ask, set)
    return report.stages[0].measures


def test_equal_scores_are_ordered_as_trec_eval_does() -> None:
    """By id, from the last to the first, whatever order they came in."""
    assert measured({"a": 0.5, "b": 0.5}, {"a": 1})["MRR@10"] == 0.5
    assert measured({"b": 0.5, "a": 0.5}, {"b": 1})["MRR@10"] == 1.0


def test_the_reciprocal_rank_is_cut_at_ten_and_recall_at_a_hundred() -> None:
    found = {f"{n:03}": 1 - n / 1000 for n in range(1, 102)}
    assert measured(found, {"010": 1})["MRR@10"] == pytest.approx(0.1)
    eleventh = measured(found, {"011": 1})
    assert (eleventh["MRR@10"], eleventh["nDCG@10"]) == (0.0, 0.0)
    assert eleventh["MAP@100"] == pytest.approx(1 / 11)
    assert measured(found, {"100": 1, "101": 1})["Recall@100"] == 0.5


def test_documents_judged_worthless_gain_nothing() -> None:
    report = measured({"a": 0.9, "b": 0.8}, {"a": -1, "b": 1})
    assert report["nDCG@10"] == pytest.approx(1 / math.log2(3))
    ask = Answers({"q": {"a": 0.9}})
    none = evaluation.evaluate({"q": "q"}, {"q": {"a": 0}}, STAGES[:1], ask, set)
    assert none.stages[0].measures["nDCG@10"] == 0.0
    assert none.notes[0] == "1 of 1 judged queries have no relevant document and count 0"


def test_queries_without_an_answer_count_nothing_and_failed_ones_are_named() -> None:
    ask = Answers({"q": {"a": 1.0}})
    queries = {"good": "q", "bad": "broken", "empty": "nothing like it"}
    judged = {id_: {"a": 1} for id_ in queries}
    report = evaluation.evaluate(queries, judged, STAGES, ask, set)
    assert report.failed == {"bad": "no words"}
    assert "query 'bad' counts 0: no words" in report.notes
    assert report.stages[1].measures["nDCG@10"] == pytest.approx(1 / 3)
    assert report.stages[1].per_query["bad"]["nDCG@10"] == 0.0


def test_queries_are_asked_in_blocks_once_a_stage() -> None:
    ask = Answers({})
    queries = {str(n): "q" for n in range(150)}
    evaluation.evaluate(queries, {id_: {"a": 1} for id_ in queries}, STAGES[:1], ask, set)
    assert ask.asked == [(1, 1), (64, 100), (64, 100), (22, 100)]


def test_stages_and_filters(filled: Engine) -> None:
    report = filled.evaluate(QUERIES, QRELS, stages=["dense"], where="long = true")
    assert [stage.name for stage in report.stages] == ["dense"]
    assert report.comparisons == ()
    assert report.stages[0].per_query["2"]["nDCG@10"] == 0.0
    with pytest.raises(FilterError):
        filled.evaluate(QUERIES, QRELS, where="width > 2")


# Differences


def test_paired_t_by_hand() -> None:
    """Of .1, .3, .2, 0: mean .15, variance (.0025 + .0225 + .0025 + .0225) / 3 = 1 / 60,
    t = .15 / sqrt(1 / 240) = 2.3238; t of 3 degrees at .975 is 3.18245."""
    mean, low, high, p = paired_t(np.array([0.1, 0.3, 0.2, 0.0]))
    error = math.sqrt(1 / 240)
    assert mean == pytest.approx(0.15)
    assert (low, high) == pytest.approx((0.15 - 3.18245 * error, 0.15 + 3.18245 * error), abs=1e-6)
    t = 0.15 / error
    angle = math.atan(t / math.sqrt(3))
    by_hand = 1 - 2 / math.pi * (angle + math.sin(angle) * math.cos(angle))
    assert p == pytest.approx(by_hand)
    rng = np.random.default_rng(0)
    one, other = rng.random(50), rng.random(50)
    assert paired_t(one - other)[3] == pytest.approx(stats.ttest_rel(one, other).pvalue)


def test_differences_all_alike() -> None:
    assert paired_t(np.zeros(5)) == (0.0, 0.0, 0.0, 1.0)
    mean, low, high, p = paired_t(np.array([0.1, 0.3 - 0.2, 0.1]))
    assert mean == low == high == pytest.approx(0.1)
    assert p == 0.0


def test_stages_are_compared_with_the_one_before_and_the_first() -> None:
    ranks = {"one": {"x": 1.0, "a": 0.5}, "two": {"a": 1.0}, "three": {"x": 1.0}}

    def ask(texts: list[str], stage: evaluation.Stage, k: int) -> list[SearchResult]:
        return Answers(dict.fromkeys(texts, ranks[stage.name]))(texts, stage, k)

    stages = [replace(STAGES[0], name=name) for name in ranks]
    judged = {"q": {"a": 1}, "r": {"a": 1, "x": 1}}
    report = evaluation.evaluate({"q": "q", "r": "r"}, judged, stages, ask, set)
    pairs = [(one.stage, one.against) for one in report.comparisons]
    assert pairs == [("two", "one"), ("three", "two"), ("three", "one")]
    second = 1 / math.log2(3)
    half = 1 / (1 + second)
    ndcg = {"one": (second, 1.0), "two": (1.0, half), "three": (0.0, half)}
    for one in report.comparisons:
        differences = np.subtract(ndcg[one.stage], ndcg[one.against])
        assert one.measure == "nDCG@10"
        assert one.difference == pytest.approx(differences.mean())
        assert one.p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)


# Wrong input


def test_wrong_input_is_named(filled: Engine) -> None:
    def refused(sentence: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(InvalidInputError) as caught:
            filled.evaluate(*arguments, **options)
        assert str(caught.value) == sentence

    refused(
        "none of the 1 queries is among the 1 that have judgements; both must name queries by the "
        "same ids",
        {"x": "red"},
        {"1": {"a": 1}},
    )
    wrong = "the judgement of 'a' for query '1': "
    refused(wrong + "0.5 is no whole number", QUERIES, {"1": {"a": 0.5}})
    refused(wrong + "True is no whole number", QUERIES, {"1": {"a": True}})
    refused(wrong + "1001 is beyond 1000", QUERIES, {"1": {"a": 1001}})
    refused("the judgement of 7 for query '1': ids must be texts", QUERIES, {"1": {7: 1}})
    refused("stages must be a list of names, not 'dense'", QUERIES, QRELS, stages="dense")
    known = ", ".join(stage.name for stage in STAGES)
    refused(f"unknown stage 'x'; choose some of: {known}", QUERIES, QRELS, stages=["x"])
    filled.close()
    with pytest.raises(StorageError, match="was closed"):
        filled.evaluate(QUERIES, QRELS)


def test_without_the_extra_one_sentence_names_it(
    filled: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    without("ir_measures", monkeypatch)
    with pytest.raises(EngineError) as caught:
        filled.evaluate(QUERIES, QRELS)
    assert str(caught.value) == "evaluation needs ir-measures: pip install 'attendex[evaluate]'"


# Files


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"_id": "a", "text": "x y", "more": 1}\n\n{"_id": 7, "text": ""}', {"a": "x y", "7": ""}),
        ("a\tx\ty\r\n7\t\n", {"a": "x\ty", "7": ""}),
        ("\ufeffa\tü\n", {"a": "ü"}),
    ],
)
def test_queries(content: str, expected: dict[str, str], tmp_path: Path) -> None:
    assert read_queries(write(tmp_path / "q", content)) == expected


@pytest.mark.parametrize(
    "content",
    [
        "query-id\tcorpus-id\tscore\nq\ta\t2\nq\tb c\t0\n\nr\ta\t-1\n",
        "q\ta\t2\nq\tb c\t0\nr\ta\t-1\nr\ta\t-1\n",
    ],
    ids=["BEIR", "no header"],
)
def test_beir_qrels(content: str, tmp_path: Path) -> None:
    found = read_qrels(write(tmp_path / "q", content))
    assert found == {"q": {"a": 2, "b c": 0}, "r": {"a": -1}}


@pytest.mark.parametrize("gap", [" ", "\t", "   "])
def test_trec_qrels(gap: str, tmp_path: Path) -> None:
    lines = [["q", "0", "a", "2"], ["q", "Q0", "b", "0"], ["r", "0", "a", "-1"]]
    path = write(tmp_path / "q", "\r\n".join(gap.join(line) for line in lines))
    assert read_qrels(path) == {"q": {"a": 2, "b": 0}, "r": {"a": -1}}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", " holds no query"),
        (b'{"_id": "a", "text": "x"}\n{"_id"', ":2: is no JSON"),
        (b'{"_id": "a", "text": "x"}\n[]', ":2: is no JSON object with '_id' and 'text'"),
        (b'{"id": "a", "text": "x"}', ":1: has no '_id' that is a text or a whole number"),
        (b'{"_id": true, "text": "x"}', ":1: has no '_id' that is a text or a whole number"),
        (b'{"_id": "a", "text": 1}', ":1: has no 'text'"),
        (b"a\tx\nb", ":2: is neither JSON nor a query's id, a tab and its text"),
        (b"a\tx\n\ta", ":2: is neither JSON nor a query's id, a tab and its text"),
        (b"a\tx\n\na\ty", ":3: the query 'a' was given before"),
        (b"a\tx\nb\t\xff", ":2: is not UTF-8 (invalid start byte)"),
    ],
)
def test_faults_of_queries(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = write(tmp_path / "q", content)
    with pytest.raises(InvalidInputError) as caught:
        read_queries(path)
    assert str(caught.value).startswith(f"{path}{sentence}")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", " holds no judgement"),
        ("query-id\tcorpus-id\tscore\n", " holds no judgement"),
        ("q\ta\t1\nq\ta", ":2: is not query id, document id and judgement between tabs"),
        ("q\ta\t1\nq\t\t1", ":2: is not query id, document id and judgement between tabs"),
        ("q a 1", ":1: is not query id, 0, document id and judgement between blanks (TREC), nor"),
        ("q\ta\t1\nq\tb\tyes", ":2: the judgement 'yes' is no whole number up to 1000"),
        ("q 0 a 0.5", ":1: the judgement '0.5' is no whole number up to 1000"),
        ("q 0 a 9999", ":1: the judgement '9999' is no whole number up to 1000"),
        ("q 0 a 1\nq 0 a 2", ":2: document 'a' of query 'q' was judged 1 before and is 2 here"),
    ],
)
def test_faults_of_qrels(content: str, sentence: str, tmp_path: Path) -> None:
    path = write(tmp_path / "q", content)
    with pytest.raises(InvalidInputError) as caught:
        read_qrels(path)
    assert str(caught.value).startswith(f"{path}{sentence}")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for read in (read_queries, read_qrels):
        with pytest.raises(InvalidInputError, match="none cannot be read"):
            read(tmp_path / "none")


# The command


@pytest.fixture
def files(
    tmp_path: Path, filled: Engine, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, str, Evaluation]:
    """Queries and qrels as files; `attendex` opens the store that is already open."""
    monkeypatch.setattr(Engine, "open", lambda *_, **__: filled)
    queries = tmp_path / "queries.jsonl"
    queries.write_text(
        "".join(json.dumps({"_id": i, "text": t}) + "\n" for i, t in QUERIES.items())
    )
    lines = [f"{q} 0 {d} {j}\n" for q, found in QRELS.items() for d, j in found.items()]
    (tmp_path / "qrels.txt").write_text("".join(lines))
    return str(queries), str(tmp_path / "qrels.txt"), filled.evaluate(QUERIES, QRELS)


def test_command_json(
    files: tuple[str, str, Evaluation], capsys: pytest.CaptureFixture[str]
) -> None:
    queries, qrels, expected = files
    assert cli.run(["evaluate", queries, qrels, "--per-query"]) == 0
    out, err = capsys.readouterr()
    *each, line = map(json.loads, out.splitlines())
    dense = expected.stages[0]
    assert [one["query"] for one in each] == ["1", "2", "3"]
    assert each[0]["stages"]["dense"] == dense.per_query["1"]
    assert line["stages"][0]["measures"] == dense.measures
    assert "per_query" not in line["stages"][0]
    assert (line["queries"], line["judged"], line["absent"]) == (4, 3, 1)
    pairs = [(one["stage"], one["against"]) for one in line["comparisons"]]
    assert pairs[:3] == [
        ("lexical", "dense"),
        ("dense + attention", "lexical"),
        ("dense + attention", "dense"),
    ]
    compared = line["comparisons"][0]
    assert {"difference", "low", "high", "p"} <= compared.keys()
    assert err == "".join(f"attendex: {note}\n" for note in expected.notes)


def test_command_table(
    files: tuple[str, str, Evaluation], capsys: pytest.CaptureFixture[str]
) -> None:
    queries, qrels, expected = files
    assert cli.run(["evaluate", queries, qrels, "--table", "--per-query"]) == 0
    out = capsys.readouterr().out
    mean = expected.stages[0].measures["nDCG@10"]
    (dense,) = (line.split() for line in out.splitlines() if line.startswith("dense  "))
    assert dense[:2] == ["dense", f"{mean:.4f}"]
    one = expected.stages[0].per_query["1"]["nDCG@10"]
    assert f"{one:.4f}" in next(line for line in out.splitlines() if line.startswith("1 "))
    assert "3 judged queries; the stages' nDCG@10, paired by query:" in out


def test_command_statuses(
    files: tuple[str, str, Evaluation], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries, qrels, _ = files
    blank = write(tmp_path / "blank.tsv", "1\tred\n2\t \n")
    assert cli.run(["evaluate", str(blank), qrels, "--stage", "dense"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["failed"].keys() == {"2"}
    assert "query '2' counts 0: the query is empty" in err
    assert cli.run(["evaluate", queries, "none"]) == 2
    assert capsys.readouterr().err.startswith("attendex: none cannot be read (")
