"""The engine end to end on word-count vectors, whose cosines are known."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine import Document, Engine, IndexSpec, SearchResult, admission
from engine.arrays import Float32Array
from engine.errors import (
    DimensionError,
    DocumentNotFoundError,
    FilterError,
    InvalidInputError,
    ModelError,
    ModelMismatchError,
    ModelUnavailableError,
)
from engine.settings import Metric
from engine.storage.connection import dump_json
from engine.types import AddReport, EndOfSource, Incoming, Item, SkipReason
from tests.words import WordEmbedder


def ids(result: SearchResult) -> list[str]:
    return [hit.id for hit in result.hits]


def test_cosines_are_those_computed_by_hand(engine: Engine) -> None:
    engine.add(
        [
            Document("red apple", id="1"),
            Document("red red apple pie", id="2"),
            Document("green pear", id="3"),
        ]
    )
    result = engine.search("red apple")
    assert ids(result) == ["1", "2", "3"]
    expected = [1.0, (2 + 1) / math.sqrt(2 * 6), 0.0]
    assert [hit.similarity for hit in result.hits] == pytest.approx(expected, abs=1e-7)
    assert [hit.rank for hit in result.hits] == [1, 2, 3]
    assert sum(hit.weight or 0 for hit in result.hits) == pytest.approx(1.0)
    assert (result.hits[0].similarity or 2.0) <= 1.0


def test_weights_are_the_softmax_of_the_scores(engine: Engine) -> None:
    engine.add(["red apple", "red pear", "blue pear"])
    result = engine.search("red apple", k=2, mode="dense")
    similarities = np.array([1.0, 0.5, 0.0])
    tau = 1.3 * float(similarities.std())
    assert result.temperature == pytest.approx(tau)
    powers = np.exp(similarities[:2] / tau)
    assert [hit.weight for hit in result.hits] == pytest.approx(list(powers / powers.sum()))
    assert result.context is not None
    assert engine.search_vectors(result.context[None, :], k=1)[0].hits[0].text == "red apple"


def test_without_rerank_there_is_no_weight(engine: Engine) -> None:
    engine.add(["red apple"])
    (hit,) = engine.search("red", mode="dense", rerank=False).hits
    assert (hit.weight, hit.score) == (None, hit.similarity)


def test_metric_ip_keeps_lengths(tmp_path: Path, words: WordEmbedder) -> None:
    with Engine.create(tmp_path / "ip", model=words, index=IndexSpec(metric="ip")) as engine:  # type: ignore[arg-type]
        engine.add([Document("red", id="1"), Document("red red red", id="3")])
        result = engine.search("red red")
        assert [(hit.id, hit.similarity) for hit in result.hits] == [("3", 6.0), ("1", 2.0)]
        assert engine.stats().metric == "ip"


def test_ties_are_in_the_order_of_insertion(engine: Engine) -> None:
    engine.add([Document("same text", id=str(i)) for i in range(30)])
    assert ids(engine.search("same text", k=30)) == [str(i) for i in range(30)]
    assert engine.stats().documents == 30


def test_same_text_under_two_ids_is_embedded_once(engine: Engine, words: WordEmbedder) -> None:
    report = engine.add([Document("one text", id="a"), Document("one text", id="b")])
    assert (report.added, report.embedded, words.embedded) == (2, 1, ["one text"])
    report = engine.add([Document("one text", id="c")])
    assert (report.added, report.embedded) == (1, 0)


def test_unchanged_texts_are_not_embedded_again(engine: Engine, words: WordEmbedder) -> None:
    documents = [Document(f"text {i}", id=str(i), metadata={"n": i}) for i in range(5)]
    engine.add(documents)
    before = engine.stats()
    words.embedded.clear()
    report = engine.add(documents)
    assert (report.unchanged, report.added, words.embedded) == (5, 0, [])
    assert engine.stats() == before


def test_the_same_id_replaces(engine: Engine, words: WordEmbedder) -> None:
    engine.add([Document("old words", id="a", metadata={"v": 1})])
    report = engine.add([Document("new words", id="a", metadata={"v": 2})])
    assert (report.replaced, report.added) == (1, 0)
    (hit,) = engine.search("old words").hits
    assert (hit.id, hit.text, hit.metadata) == ("a", "new words", {"v": 2})
    words.embedded.clear()
    assert engine.add([Document("new words", id="a", metadata={"v": True})]).replaced == 1
    assert words.embedded == []
    assert engine.get(["a"])[0].metadata == {"v": True}


def test_one_and_true_are_different_metadata(engine: Engine) -> None:
    engine.add([Document("x", id="a", metadata={"v": 1})])
    assert engine.add([Document("x", id="a", metadata={"v": True})]).replaced == 1
    assert engine.get(["a"])[0].metadata["v"] is True


def test_last_of_duplicate_ids_counts(engine: Engine) -> None:
    documents = [Document(f"{i} {n}", id=i) for n, i in enumerate("abbccc")]
    report = engine.add(documents)
    assert (report.added, report.skipped[SkipReason.DUPLICATE]) == (3, 3)
    assert report.refusals[0].where == "document 1"
    assert [d.text for d in engine.get(["a", "b", "c"])] == ["a 0", "b 2", "c 5"]


def test_delete_then_add_keeps_every_other_id(engine: Engine) -> None:
    engine.add([Document(f"text {i}", id=str(i)) for i in range(100)])
    assert engine.delete([str(i) for i in range(5)]) == 5
    engine.add([Document(f"fresh {i}", id=f"n{i}") for i in range(5)])
    found = ids(engine.search("text", k=1000))
    assert len(found) == len(set(found)) == 100
    assert [d.text for d in engine.get([str(i) for i in range(95, 100)])] == [
        f"text {i}" for i in range(95, 100)
    ]


def test_missing_ids(engine: Engine) -> None:
    engine.add([Document("x", id="1"), Document("y", id="2")])
    with pytest.raises(DocumentNotFoundError, match="'3'") as error:
        engine.get(["1", "3"])
    assert error.value.ids == ("3",)
    assert engine.delete(["3"]) == 0


@pytest.mark.parametrize(
    "name", ["O'Brien", "x' OR 1=1 --", "ベクター", "a" * 5000, "{}", "\n", "o\0", "\0"]
)
def test_any_text_is_an_id(engine: Engine, name: str) -> None:
    engine.add([Document("one", id=name), Document("two", id="other"), Document("six", id="o")])
    assert engine.get([name])[0].text == "one"
    engine.add([Document("one", id=name, metadata={name: name, "o": 1})])
    assert engine.get([name])[0].metadata == {name: name, "o": 1}
    assert engine.delete([name]) == 1
    assert sorted(ids(engine.search("one two six"))) == ["o", "other"]


def test_a_list_is_wanted_not_one_text(engine: Engine) -> None:
    for call in (
        lambda: engine.add("text"),
        lambda: engine.add(Document("text")),  # type: ignore[arg-type]
        lambda: engine.get("ab"),
        lambda: engine.delete("ab"),
        lambda: engine.add_files("ab"),
        lambda: engine.get(None),  # type: ignore[arg-type]
        lambda: engine.add(None),  # type: ignore[arg-type]
        lambda: engine.search_many(None),  # type: ignore[arg-type]
        lambda: engine.search_many("ab"),
    ):
        with pytest.raises(InvalidInputError):
            call()


def test_an_empty_store_answers_nothing(engine: Engine, tmp_path: Path) -> None:
    assert engine.search("anything").hits == ()
    assert engine.search("anything", where="year = 3").hits == ()
    assert engine.add([]).documents == 0
    engine.close()
    with Engine.open(tmp_path / "s", model=WordEmbedder()) as opened:
        assert opened.search("anything").hits == ()
        assert opened.stats().documents == 0


@pytest.mark.parametrize("k", [0, -1, 1.5, True, "3", None])
def test_k_must_be_a_whole_number_of_at_least_one(engine: Engine, k: Any) -> None:
    for call in (
        lambda: engine.search("x", k=k),
        lambda: engine.search_many([], k=k),
        lambda: engine.search_vectors(np.zeros((0, 512)), k=k),
    ):
        with pytest.raises(InvalidInputError, match="k must be"):
            call()


@pytest.mark.parametrize("query", ["", "  \n", "\0", "\u200b", "a\ud800", 3, None])
def test_unusable_queries(engine: Engine, query: Any) -> None:
    engine.add(["a"])
    with pytest.raises(InvalidInputError):
        engine.search(query)
    good, bad = engine.search_many(["a", query])
    assert ids(good)
    assert isinstance(bad.error, InvalidInputError)
    assert bad.hits == ()


def test_fewer_rows_than_k(engine: Engine) -> None:
    engine.add(["a", "b", "c"])
    assert len(engine.search("a", k=5).hits) == 3
    assert len(engine.search_many(["a", "b"], k=5)[1].hits) == 3


def test_search_many_equals_search(engine: Engine) -> None:
    engine.add([f"word{i % 7} word{i % 11} word{i}" for i in range(400)])
    queries = [f"word{i} word{i + 1}" for i in range(40)]
    for query, many in zip(queries, engine.search_many(queries, k=5), strict=True):
        one = engine.search(query, k=5)
        assert ids(many) == ids(one)
        assert [h.similarity for h in many.hits] == [h.similarity for h in one.hits]
        assert [h.weight for h in many.hits] == pytest.approx([h.weight for h in one.hits])


def test_search_vectors_normalises_and_names_bad_rows(engine: Engine, words: WordEmbedder) -> None:
    engine.add([Document("red", id="1"), Document("blue", id="2")])
    matrix = words.embed_queries(["red", "blue", "blue"]) * 20
    matrix[1] = 0
    before = matrix.copy()
    first, second, third = engine.search_vectors(matrix, k=1)
    np.testing.assert_array_equal(matrix, before)
    assert (ids(first), first.hits[0].similarity) == (["1"], 1.0)
    assert ids(third) == ["2"]
    assert str(second.error) == "query vector 1 is all zeros and has no direction"
    matrix[1, 3] = np.nan
    assert "query vector 1 holds NaN" in str(engine.search_vectors(matrix)[1].error)


@pytest.mark.parametrize(
    ("matrix", "error"),
    [
        (np.zeros((2, 3)), DimensionError),
        (np.zeros(512), InvalidInputError),
        ([["a"] * 512], InvalidInputError),
        ([[1.0], [1.0, 2.0]], InvalidInputError),
        (None, InvalidInputError),
    ],
)
def test_query_matrices_that_do_not_fit(
    engine: Engine, matrix: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        engine.search_vectors(matrix)


def test_own_vectors_are_kept_and_bad_ones_refused(engine: Engine, words: WordEmbedder) -> None:
    good: Float32Array = np.full(512, 2.0, np.float32)
    nan, zero = good.copy(), np.zeros(512)
    nan[7] = np.nan
    report = engine.add(
        [
            Document("one", id="good", vector=good),
            Document("two", id="nan", vector=nan),
            Document("three", id="zero", vector=zero),
            Document("four", id="narrow", vector=good[:5]),
            Document("five", id="words", vector=np.array(["a"] * 512)),
            Document("six", id="huge", vector=np.full(512, 1e300)),
            Document("seven", id="model"),
        ]
    )
    assert (report.added, report.skipped[SkipReason.VECTOR], report.failed) == (2, 5, 5)
    assert [str(r) for r in report.refusals[:3]] == [
        "document 1: the vector of id 'nan' holds NaN or infinity",
        "document 2: the vector of id 'zero' is all zeros and has no direction",
        "document 3: the vector of id 'narrow': of dimension 5, and the store's vectors are of "
        "dimension 512; they must come from the same model",
    ]
    (result,) = engine.search_vectors(good[None, :], k=1)
    assert ids(result) == ["good"]
    assert result.hits[0].similarity == pytest.approx(1.0, abs=1e-6)
    assert (good == 2).all()
    assert words.embedded == ["seven"]


def test_own_vectors_are_not_taken_for_the_models(engine: Engine, words: WordEmbedder) -> None:
    vector = words.embed_queries(["blue"])[0]
    engine.add([Document("red", id="own", vector=vector)])
    engine.add([Document("red", id="model")])
    assert words.embedded == ["red"]
    assert ids(engine.search("red", k=1)) == ["model"]
    assert engine.add([Document("red", id="own", vector=vector)]).unchanged == 1
    assert engine.add([Document("red", id="own", vector=vector * 3)]).unchanged == 1
    assert engine.add([Document("red", id="own")]).replaced == 1
    assert engine.search("red", k=2).hits[1].similarity == pytest.approx(1.0)


@pytest.mark.parametrize("path", [None, 3, b"bytes", "", "a\0b"])
def test_store_paths_are_texts(path: Any, words: WordEmbedder) -> None:
    with pytest.raises(InvalidInputError, match="a store's path"):
        Engine.create(path, model=words)
    with pytest.raises(InvalidInputError, match="a store's path"):
        Engine.open(path)


@pytest.mark.parametrize("model", [3, None, object(), b"x"])
def test_models_are_names_or_embedders(tmp_path: Path, model: Any) -> None:
    with pytest.raises(InvalidInputError, match="a model is"):
        Engine.create(tmp_path / "s", model=model)
    with pytest.raises(InvalidInputError, match="IndexSpec"):
        Engine.create(tmp_path / "s", model=WordEmbedder(), index="ip")  # type: ignore[arg-type]
    assert not (tmp_path / "s").exists()


def test_create_with_exist_ok_opens(tmp_path: Path, words: WordEmbedder) -> None:
    for step in (1, 2):
        with Engine.create(tmp_path / "s", model=words, exist_ok=True) as engine:
            engine.add([f"text {step}"])
            assert engine.stats().documents == step
    with pytest.raises(InvalidInputError, match="compares by cosine"):
        Engine.create(tmp_path / "s", model=words, exist_ok=True, index=IndexSpec(Metric.IP))
    with pytest.raises(ModelMismatchError):
        Engine.create(tmp_path / "s", model=WordEmbedder(64), exist_ok=True)


class NoWords(WordEmbedder):
    def embed_queries(self, texts: Any) -> Any:
        return [[float("nan") if "nan" in t else float("zero" not in t)] * 512 for t in texts]


def test_a_query_without_a_direction(tmp_path: Path) -> None:
    with Engine.create(tmp_path / "s", model=NoWords()) as engine:
        engine.add(["a b c"])
        with pytest.raises(InvalidInputError, match="its vector is all zeros"):
            engine.search("zero")
        zero, nan, fine = engine.search_many(["zero", "nan", "fine"])
        assert "NaN" in str(nan.error)
        assert zero.hits == nan.hits == ()
        assert len(fine.hits) == 1


def test_files_are_named_from_the_stores_place(
    tmp_path: Path, words: WordEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / "home" / name).mkdir(parents=True)
        (tmp_path / "home" / name / "f.txt").write_text(f"text of {name}\n")
    (tmp_path / "out.txt").write_text("elsewhere\n")
    with Engine.create(tmp_path / "home" / "s", model=words) as engine:
        for name in ("a", "b"):
            monkeypatch.chdir(tmp_path / "home" / name)
            assert engine.add_files(["f.txt"]).added == 1
        monkeypatch.chdir(tmp_path)
        assert engine.add_files(["home/a", "home/../home/b/f.txt"]).unchanged == 2
        engine.add_files(["out.txt"])
        hits = engine.search("text elsewhere").hits
        assert {hit.id for hit in hits} == {"a/f.txt:1", "b/f.txt:1", f"{tmp_path}/out.txt:1"}


def test_a_file_reached_twice_is_read_once(tmp_path: Path, words: WordEmbedder) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f.txt").write_text("one\ntwo\n")
    (tmp_path / "link").symlink_to(tmp_path / "d")
    with Engine.create(tmp_path / "s", model=words) as engine:
        for _ in range(2):
            paths = [str(tmp_path / p) for p in ("d", "d/f.txt", "d/../d", "link")]
            report = engine.add_files(paths)
            assert (report.documents, report.removed, dict(report.skipped)) == (2, 0, {})
        assert engine.stats().documents == 2


def test_prune_removes_what_is_gone_from_the_root_alone(
    tmp_path: Path, words: WordEmbedder
) -> None:
    for name in ("a", "ab", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f.txt").write_text(f"text of {name}\n")
        (tmp_path / name / "g.txt").write_text(f"more of {name}\n")
    with Engine.create(tmp_path / "s", model=words) as engine:
        engine.add_files([str(tmp_path)])
        for name in ("a", "ab"):
            (tmp_path / name / "f.txt").unlink()
        gone = ((tmp_path / "a" / "f.txt").as_posix(),)
        for dry_run, left in ((True, 6), (False, 5)):
            report = engine.prune([str(tmp_path / "a")], dry_run=dry_run)
            assert (report.sources, report.documents) == (gone, 1)
            assert engine.stats().documents == left
        assert engine.prune([str(tmp_path / "a")]).sources == ()
        assert engine.stats().sources == 5
        assert engine.search("text of ab", k=1).hits[0].id == "ab/f.txt:1"
        assert engine.verify().problems == ()


def test_a_file_whose_name_is_no_text(tmp_path: Path, words: WordEmbedder) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    with open(odd, "wb") as handle:
        handle.write(b"one\n")
    (tmp_path / "good.txt").write_text("two\n")
    with Engine.create(tmp_path / "s", model=words) as engine:
        report = engine.add_files([str(tmp_path)])
        assert (report.added, report.failed) == (1, 1)
        assert (
            str(report.refusals[0]) == f"{tmp_path}/caf\\xe9.txt: its name is not UTF-8; rename it"
        )
        for call in (engine.get, engine.delete):
            with pytest.raises(InvalidInputError, match="not UTF-8"):
                call([os.fsdecode(b"\xff")])


def test_a_source_that_ends_twice_keeps_its_rows(engine: Engine) -> None:
    rows = [Incoming(f"f:{n}", Document(f"text {n}", id=str(n)), "/f") for n in range(3)]
    end = EndOfSource("/f")
    report = engine.ingest([*rows, end, *rows[:1], end])
    assert (engine.stats().documents, report.removed) == (3, 0)
    assert engine.ingest([rows[0], end]).removed == 2


def of(source: str, *keys: str, text: str = "text") -> list[Item]:
    return [Incoming(f"{source}:{key}", Document(f"{text} {key}", id=key), source) for key in keys]


def test_a_document_that_moved_belongs_to_its_new_file(engine: Engine) -> None:
    engine.ingest([*of("/f", "a", "b"), EndOfSource("/f")])
    assert engine.ingest([*of("/g", "a"), EndOfSource("/g")]).unchanged == 1
    assert engine.ingest([EndOfSource("/f")]).removed == 1
    assert [d.source for d in engine.get(["a"])] == ["/g"]


@pytest.mark.parametrize("text", ["text", "another text"])
def test_a_document_that_moves_while_its_old_file_is_cleared_stays(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """The batch that clears the old file is in flight while the new file's rows are looked up."""
    monkeypatch.setattr("engine.ingest.BATCH", 1)
    monkeypatch.setattr("engine.ingest.ROW_COST", 1)
    engine.ingest([*of("/f", "a"), EndOfSource("/f")])
    report = engine.ingest([EndOfSource("/f"), *of("/g", "a", text=text), EndOfSource("/g")])
    assert (report.removed, report.added) == (1, 1)
    assert [(d.source, d.text) for d in engine.get(["a"])] == [("/g", f"{text} a")]
    assert engine.verify().problems == ()


def test_a_feed_that_writes_to_the_store_it_feeds(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted and added by the iterable itself while the batches before are being committed."""
    monkeypatch.setattr("engine.ingest.BATCH", 8)
    engine.add([Document(f"old {n}", id=str(n)) for n in range(200)])

    def feed() -> Iterator[Document]:
        for n in range(200):
            changed = {"n": n} if n % 2 else {}
            yield Document(f"old {n}" if n % 3 else f"new {n}", id=str(n), metadata=changed)
            if n % 16 == 15:
                engine.delete([str(n - 4), str(n + 4)])
                engine.add([Document(f"nested {n}", id=f"nested {n + 1}")])
                engine.add([Document(f"nested {n}", id=str(n + 2))])

    engine.add(feed())
    assert engine.verify().problems == ()
    for document in engine.get([str(n) for n in range(0, 200, 7) if n % 16 < 8]):
        assert document.text.endswith(f" {document.id}") or document.text.startswith("nested")


def test_unreadable_lines_keep_what_the_file_held(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [f'{{"id": "{n}", "text": "text {n}"}}' for n in range(3)]
    path.write_text("\n".join(lines))
    engine.add_files([path])
    path.write_text("\n".join([lines[0], "{oops", lines[2]]))
    report = engine.add_files([path])
    assert (report.failed, report.removed, engine.stats().documents) == (1, 0, 3)
    path.write_text("\n".join([lines[0], lines[2]]))
    assert engine.add_files([path]).removed == 1


def test_nothing_vanishes_from_a_file_with_faults(engine: Engine) -> None:
    engine.ingest([*of("/f", "a", "b"), EndOfSource("/f")])
    assert engine.ingest([*of("/f", "a"), EndOfSource("/f", complete=False)]).removed == 0
    bad = Incoming("/f:3", Document("x\ud800", id="b"), "/f")
    assert engine.ingest([*of("/f", "a"), bad, EndOfSource("/f")]).removed == 0
    blank = Incoming("/f:3", Document(" ", id="b"), "/f")
    assert engine.ingest([*of("/f", "a"), blank, EndOfSource("/f")]).removed == 1


def test_the_same_id_in_a_later_batch_replaces(
    engine: Engine, words: WordEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch in flight is seen by the one that is prepared meanwhile."""
    monkeypatch.setattr("engine.ingest.BATCH", 1)
    documents = [
        Document("one", id="a"),
        Document("one", id="b"),
        Document("two", id="a"),
        Document("two", id="a"),
        Document("one", id="a", metadata={"n": 1}),
        Document("one", id="a", metadata={"n": 2}),
    ]
    report = engine.add(documents)
    assert (report.added, report.replaced, report.unchanged) == (2, 3, 1)
    assert words.embedded == ["one", "two"]
    assert [(d.text, d.metadata) for d in engine.get(["a", "b"])] == [
        ("one", {"n": 2}),
        ("one", {}),
    ]
    assert engine.stats().passages == 2
    assert engine.verify().problems == ()


def test_interrupted_sources_are_pending(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.ingest.BATCH", 2)

    def items(stop: int) -> Iterator[Item]:
        for n in range(5):
            if n == stop:
                raise KeyboardInterrupt
            yield Incoming(f"f:{n}", Document(f"text {n}", id=str(n)), "/f")
        yield EndOfSource("/f")

    with pytest.raises(KeyboardInterrupt):
        engine.ingest(items(3))
    assert engine.stats().pending == ("/f",)
    engine.ingest(items(9))
    assert engine.stats().pending == ()


class Faulty(WordEmbedder):
    def embed_documents(self, texts: Any) -> Float32Array:
        rows = super().embed_documents(texts)
        rows[[text == "zero" for text in texts]] = 0
        rows[[text == "nan" for text in texts]] = np.nan
        return rows


def test_a_model_that_fails_on_one_text_spoils_no_other(tmp_path: Path) -> None:
    with Engine.create(tmp_path / "s", model=Faulty()) as engine:
        report = engine.add([Document(t, id=t) for t in ("a", "zero", "b", "nan")])
        assert report.added == 2
        assert [str(r) for r in report.refusals] == [
            "document 1: its vector is all zeros and has no direction",
            "document 3: its vector holds NaN or infinity",
        ]
        assert ids(engine.search("a b", mode="dense")) == ["a", "b"]


class Wrong(WordEmbedder):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self._shape = rows, width

    def embed_documents(self, texts: Any) -> Float32Array:
        return np.ones(self._shape, np.float32)


@pytest.mark.parametrize(("rows", "width"), [(1, 512), (2, 511)])
def test_a_model_of_the_wrong_shape(tmp_path: Path, rows: int, width: int) -> None:
    with Engine.create(tmp_path / "s", model=Wrong(rows, width)) as engine:
        with pytest.raises(ModelError, match="words"):
            engine.add(["a", "b"])
        assert engine.stats().documents == 0


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (Document(""), SkipReason.BLANK),
        (Document(" \n\t\u200b"), SkipReason.BLANK),
        (Document("a\ud800"), SkipReason.INVALID),
        (Document("a", id="\udcff"), SkipReason.INVALID),
        (Document("a", id=""), SkipReason.INVALID),
        (Document("a", id=3), SkipReason.INVALID),  # type: ignore[arg-type]
        (Document(3), SkipReason.INVALID),  # type: ignore[arg-type]
        (Document(None), SkipReason.INVALID),  # type: ignore[arg-type]
        (7, SkipReason.INVALID),
        (Document("a", metadata={"x": float("nan")}), SkipReason.INVALID),
        (Document("a", metadata={"x": {1, 2}}), SkipReason.INVALID),
        (Document("a", metadata={"x": "\ud800"}), SkipReason.INVALID),
        (Document("a", metadata=[1]), SkipReason.INVALID),  # type: ignore[arg-type]
        (Document("a", metadata={"x": [[[]]] * 2}), None),
    ],
)
def test_one_bad_document_among_good_ones(
    engine: Engine, document: Any, reason: SkipReason | None
) -> None:
    report = engine.add(["first", document, "last"])
    assert report.added == 2 + (reason is None)
    assert report.skipped == ({} if reason is None else {reason: 1})
    assert {hit.text for hit in engine.search("first last").hits} >= {"first", "last"}


def test_metadata_nested_beyond_reason_is_refused(engine: Engine) -> None:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"a": deep}
    report = engine.add([Document("x", id="x", metadata=deep), Document("y", metadata={"b": 1})])
    assert (report.added, report.skipped) == (1, {SkipReason.INVALID: 1})
    assert engine.search("y", where="b = 1").hits[0].text == "y"


def test_metadata_comes_back_as_given(engine: Engine) -> None:
    given = {
        "list": [1, "zwei", None, [True]],
        "null": None,
        "flag": False,
        "nested": {"a": {"b": 1.5}, "ключ": "значение"},
        "big": 2**70,
        "": "empty name",
        'quo"te': "x",
    }
    engine.add([Document("x", id="x", metadata=given)])
    assert engine.get(["x"])[0].metadata == given
    assert engine.search("x").hits[0].metadata == given


def test_nfc_and_nfd_are_one_text_and_the_original_is_shown(
    engine: Engine, words: WordEmbedder
) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    engine.add([Document(composed, id="c"), Document(decomposed, id="d")])
    assert words.embedded == [composed]
    result = engine.search(decomposed)
    assert [hit.similarity for hit in result.hits] == pytest.approx([1.0, 1.0])
    assert [hit.text for hit in result.hits] == [composed, decomposed]


@pytest.mark.parametrize(
    "text", ["\0a\0b", "a\x07b", "👩‍👩‍👧 семья", "שלום עולם", "漢字" * 50, "x" * 10**6]
)
def test_any_text_comes_back_as_given(engine: Engine, text: str) -> None:
    engine.add([Document(text, id="it")])
    assert engine.get(["it"])[0].text == text
    assert engine.search(text[:1000] if "\0" not in text else "a").hits[0].text == text


def test_filters_find_the_nearest_of_those_that_match(engine: Engine) -> None:
    near = [Document("red " * (5 + i), id=f"near{i}", metadata={"c": "B"}) for i in range(30)]
    far = [
        Document("red " + "blue " * (i + 1), id=f"far{i}", metadata={"c": "A", "n": i})
        for i in range(10)
    ]
    engine.add(near + far)
    assert ids(engine.search("red", k=5, where="c = 'A'")) == [f"far{i}" for i in range(5)]
    assert ids(engine.search("red", k=5, where={"c": "A", "n": [7, 8]})) == ["far7", "far8"]
    assert engine.search("red", where="c = 'C'").hits == ()
    (many, _) = engine.search_many(["red", "blue"], k=3, where="n >= 4")
    assert ids(many) == ["far4", "far5", "far6"]


@pytest.mark.parametrize("where", ["yeer = 1", "c ==", {"c": {}}, 3, {"zz": 1}])
def test_filters_that_cannot_be_used(engine: Engine, where: Any) -> None:
    engine.add([Document("x", metadata={"year": 1, "c": 2})])
    with pytest.raises(FilterError):
        engine.search("x", where=where)


def test_a_misspelt_field_is_told(engine: Engine) -> None:
    engine.add([Document("x", metadata={"year": 1, "by": {"name": "me"}})])
    with pytest.raises(FilterError, match=r"'yeer'; did you mean 'year'\? \(fields: by, by.name"):
        engine.search("x", where="yeer = 1")
    assert engine.search("x", where="by.name = 'me'").hits


def test_long_texts_are_found_by_their_best_passage(tmp_path: Path) -> None:
    model = WordEmbedder(max_tokens=8)
    filler = " ".join(f"Filler{i} is here." for i in range(40))
    text = f"{filler} The zebra crossed the lake. {filler}"
    with Engine.create(tmp_path / "s", model=model) as engine:
        report = engine.add([Document(text, id="long"), Document("another zebra", id="short")])
        assert (report.chunked, report.truncated) == (1, 0)
        result = engine.search("zebra crossed the lake")
        assert sorted(ids(result)) == ["long", "short"]
        hit = next(hit for hit in result.hits if hit.id == "long")
        assert "zebra crossed" in hit.text
        assert text[hit.start : hit.end] == hit.text
        assert engine.get(["long"])[0].text == text
        stats = engine.stats()
        assert (stats.documents, stats.chunked) == (2, 1)
        assert stats.passages > 10
        near = engine.search("filler1 filler2", k=50, passages=True).hits
        assert len(near) == engine.stats().passages
        assert {hit.id for hit in near} == {"long", "short"}
        many = engine.search_many(["here filler", "zebra"], k=2)
        assert [sorted(ids(one)) for one in many] == [["long", "short"]] * 2
        engine.delete(["long"])
        assert engine.stats().passages == 1


def test_a_document_grows_and_shrinks(tmp_path: Path) -> None:
    long = "one two three four. " * 8
    with Engine.create(tmp_path / "s", model=WordEmbedder(max_tokens=8)) as engine:
        for text in ("short", long, "short again", long + "end", "short"):
            engine.add([Document(text, id="a")])
            assert engine.get(["a"])[0].text == text
            assert engine.stats().documents == 1
        assert engine.stats().passages == 1
        assert engine.verify().problems == ()


@pytest.mark.parametrize("rerank", [False, True])
def test_k_documents_are_found_behind_many_passages_of_one(tmp_path: Path, rerank: bool) -> None:
    with Engine.create(tmp_path / "s", model=WordEmbedder(max_tokens=4)) as engine:
        engine.add([Document("red red red blue. " * 100, id="many"), Document("red pear", id="b")])
        assert engine.stats().passages > 60
        for k in (2, 3):
            assert ids(engine.search("red blue", k=k, rerank=rerank)) == ["many", "b"]


def test_texts_that_differ_only_past_the_window_differ(tmp_path: Path) -> None:
    model = WordEmbedder(max_tokens=8)
    start = "one two three four five six seven eight. " * 3
    with Engine.create(tmp_path / "s", model=model) as engine:
        engine.add([Document(start + "Apples.", id="a"), Document(start + "Pears.", id="p")])
        assert ids(engine.search("apples", k=1)) == ["a"]
        assert ids(engine.search("pears", k=1)) == ["p"]


def test_a_truncated_query_says_so(tmp_path: Path) -> None:
    with Engine.create(tmp_path / "s", model=WordEmbedder(max_tokens=3)) as engine:
        engine.add(["a b c"])
        (text,) = engine.search("a b c d e").notes
        assert "5 tokens and the model reads 3" in text
        assert engine.search("a b c").notes == ()


def test_the_store_remembers_its_model(tmp_path: Path, words: WordEmbedder) -> None:
    Engine.create(tmp_path / "s", model=words).close()
    with pytest.raises(ModelMismatchError) as error:
        Engine.open(tmp_path / "s", model=WordEmbedder(dimension=64))
    assert error.value.store_model == "words"
    with Engine.open(tmp_path / "s") as engine, pytest.raises(ModelUnavailableError, match="own"):
        engine.search("x")


def test_progress_is_told_after_every_batch(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.ingest.BATCH", 10)
    seen: list[int] = []
    engine.add((f"text {i}" for i in range(25)), on_progress=lambda p: seen.append(p.documents))
    assert seen == [10, 20, 25]


def test_what_was_committed_stays_when_the_source_fails(
    engine: Engine, words: WordEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.ingest.BATCH", 10)

    def documents(stop: int) -> Iterator[Document]:
        for i in range(stop):
            yield Document(f"text {i}", id=str(i))
        if stop < 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.add(documents(25))
    assert engine.stats().documents == 20
    words.embedded.clear()
    report = engine.add(documents(40))
    assert (report.unchanged, report.added) == (20, 20)
    assert words.embedded == [f"text {i}" for i in range(20, 40)]


TEXTS = st.lists(
    st.sampled_from(["red", "green", "blue", "apple", "pear", "plum"]), min_size=1, max_size=4
)


class AgainstAScan(RuleBasedStateMachine):
    """Whatever is added, replaced, deleted, published or reopened: an answer is a full scan's."""

    @initialize()
    def start(self) -> None:
        import tempfile

        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "s"
        self.model = WordEmbedder(dimension=64)
        self.engine = Engine.create(self.path, model=self.model)
        self.order = 0
        self.rows: dict[str, tuple[int, str, int]] = {}

    @rule(key=st.integers(0, 12), words=TEXTS, n=st.integers(0, 2))
    def add(self, key: int, words: list[str], n: int) -> None:
        text = " ".join(words)
        self.engine.add([Document(text, id=str(key), metadata={"n": n})])
        known = self.rows.get(str(key))
        if known is None or known[1] != text:
            self.order += 1
        self.rows[str(key)] = (
            known[0] if known and known[1] == text else self.order,
            text,
            n,
        )

    @rule(key=st.integers(0, 12))
    def delete(self, key: int) -> None:
        assert self.engine.delete([str(key)]) == (self.rows.pop(str(key), None) is not None)

    @rule()
    def rebuild(self) -> None:
        self.engine.rebuild()

    @rule()
    def reopen(self) -> None:
        self.engine.close()
        self.engine = Engine.open(self.path, model=self.model)

    @rule()
    def lose_the_index(self) -> None:
        for path in self.path.glob("index/*"):
            path.unlink()

    @rule(query=TEXTS, k=st.integers(1, 20), n=st.sampled_from([None, 0, 1]))
    def search(self, query: list[str], k: int, n: int | None) -> None:
        q = self.model.embed_queries([" ".join(query)]).astype(np.float64)[0]
        scored = []
        for key, (order, text, value) in self.rows.items():
            row = self.model.embed_queries([text]).astype(np.float64)[0]
            cosine = float(row @ q / np.linalg.norm(row) / np.linalg.norm(q))
            if n is None or value == n:
                scored.append((-round(cosine, 6), order, key))
        expected = [key for _, _, key in sorted(scored)[:k]]
        where = None if n is None else f"n = {n}"
        found = self.engine.search(" ".join(query), k=k, where=where, mode="dense")
        assert ids(found) == expected

    @invariant()
    def counters_hold(self) -> None:
        if hasattr(self, "engine"):
            assert self.engine.stats().documents == len(self.rows)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            assert [p for p in self.engine.verify().problems if "missing" not in p] == []
            self.engine.close()
            self.directory.cleanup()


AgainstAScan.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestAgainstAScan = AgainstAScan.TestCase


@given(
    st.dictionaries(st.text(), st.text() | st.integers() | st.booleans() | st.none(), min_size=1)
)
def test_metadata_are_written_alike_by_both_encoders(metadata: dict[str, Any]) -> None:
    found = admission._plain_metadata(metadata)
    assert found == (metadata, dump_json(metadata))


def test_the_reports_rate_is_that_of_the_texts_embedded() -> None:
    assert AddReport(embedded=10, added=30, seconds=4.0).texts_per_second == 2.5
    assert AddReport().texts_per_second == 0.0
