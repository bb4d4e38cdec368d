"""What users of other engines reported: the same input here, and what is right.

The numbers are those of the collection the cases come from; each names where it was seen.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
from engine import Document, Engine, IndexSpec
from engine.arrays import Float32Array
from engine.embedding.plain import PlainEmbedder
from engine.errors import DocumentNotFoundError
from engine.settings import IndexKind, Metric
from engine.types import SkipReason
from tests.words import WordEmbedder

ROOT = Path(__file__).resolve().parents[1]


def none(texts: list[str]) -> list[list[float]]:
    raise AssertionError(f"nothing is to be embedded, and {texts} are")


Made = Callable[..., Engine]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Made]:
    """A new store of ready vectors of some width."""
    made: list[Engine] = []

    def make(width: int, **options: Any) -> Engine:
        model = PlainEmbedder("none", width, none, fingerprint=f"none-{width}")
        made.append(Engine.create(tmp_path / f"s{len(made)}", model=model, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def nearest(engine: Engine, vector: object, k: int = 10, **options: Any) -> list[str]:
    """The ids that a vector finds by its similarity alone."""
    (result,) = engine.search_vectors(np.array([vector]), k=k, rerank=False, **options)
    if result.error is not None:
        raise result.error
    return [hit.id for hit in result.hits]


def test_b1_more_asked_for_than_there_is(engine: Engine) -> None:
    """sentence-transformers 3887: the last row came again, or -1."""
    engine.add(["a dog", "a cat", "a cow"])
    found = engine.search("dog", k=5)
    assert sorted(hit.text for hit in found.hits) == ["a cat", "a cow", "a dog"]


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_b2_k_near_and_past_the_number_of_rows(store: Made, kind: str) -> None:
    """usearch 640: duplicates and ids that were never added."""
    rows = np.random.default_rng(2).standard_normal((65, 768))
    engine = store(768, index=IndexSpec(kind=IndexKind(kind)))
    engine.add_vectors(rows, ids=[str(n) for n in range(65)])
    engine.rebuild()
    for k, count in ((100, 65), (63, 63)):
        for row in rows:
            found = nearest(engine, row, k)
            assert len(found) == len(set(found)) == count
            assert set(found) <= {str(n) for n in range(65)}


def test_b3_an_id_that_is_not_there_is_no_other(engine: Engine) -> None:
    """usearch 494: get 3 of 1 and 2 gave another's row."""
    engine.add([Document("one", id="1"), Document("two", id="2")])
    with pytest.raises(DocumentNotFoundError, match="3"):
        engine.get(["3"])


def test_b4_an_empty_store_opens_and_answers(tmp_path: Path, words: WordEmbedder) -> None:
    """usearch 195: an index that was saved empty could not be loaded."""
    Engine.create(tmp_path / "s", model=words).close()
    with Engine.open(tmp_path / "s", model=words) as engine:
        assert engine.search("dog").hits == ()
        assert engine.verify().problems == ()


def test_b5_what_is_deleted_takes_nothing_along(engine: Engine) -> None:
    """faiss 224: after a removal the last rows were others'."""
    engine.add([Document(f"word{n}", id=str(n)) for n in range(100)])
    engine.delete([str(n) for n in range(5)])
    engine.add([Document(f"word{n}", id=str(n)) for n in range(100, 105)])
    assert engine.stats().documents == 100
    for n in (*range(5, 105),):
        assert [(hit.id, hit.text) for hit in engine.search(f"word{n}", k=1).hits] == [
            (str(n), f"word{n}")
        ]


def test_b6_b7_the_last_of_an_id_wins(engine: Engine) -> None:
    """faiss 2566, chroma 295: an id twice in one call was kept twice, or refused the call."""
    ids = ["1", "2", "2", "3", "3", "3"]
    report = engine.add([Document(f"text{n}", id=id_) for n, id_ in enumerate(ids)])
    assert (report.added, report.skipped) == (3, {SkipReason.DUPLICATE: 3})
    assert [one.text for one in engine.get(["1", "2", "3"])] == ["text0", "text2", "text5"]
    assert sorted(hit.id for hit in engine.search("text5").hits) == ["1", "2", "3"]


@pytest.mark.model
def test_b8_a_sentence_is_most_like_itself(minilm: Any, tmp_path: Path) -> None:
    """chroma 1754: a sentence was found with a score above 1, or not first."""
    texts = ["The cat sat on the mat.", "The cat sat on the mat", "A dog ran.", "Cats sit."]
    with Engine.create(tmp_path / "s", model=minilm) as engine:
        engine.add(texts)
        for text in texts:
            best = engine.search(text).hits[0]
            assert best.text == text
            assert best.similarity == pytest.approx(1, abs=1e-6)
            assert best.similarity is not None
            assert best.similarity <= 1


def test_b9_cosine_does_not_depend_on_length(store: Made) -> None:
    """faiss 1119: scores of 400 where cosine was wanted."""
    rows = np.random.default_rng(9).standard_normal((50, 16))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    engine = store(16)
    engine.add_vectors(20 * unit, ids=[str(n) for n in range(50)])
    (found,) = engine.search_vectors(20 * unit[:1], k=50, rerank=False)
    cosines = unit @ unit[0]
    assert [int(hit.id) for hit in found.hits] == np.argsort(-cosines, kind="stable").tolist()
    np.testing.assert_allclose([hit.score for hit in found.hits], np.sort(cosines)[::-1], atol=1e-6)


def test_b10_a_row_of_zeros_is_refused_by_name(store: Made) -> None:
    """a fork of sqlite-vec: NaN in the answers."""
    engine = store(3)
    report = engine.add_vectors(
        np.array([[1, 0, 0], [0, 0, 0], [0.9, 0.1, 0]]), ids=["1", "2", "3"]
    )
    (refused,) = report.refusals
    assert "2" in str(refused)
    assert "zeros" in str(refused)
    assert nearest(engine, [1, 0, 0]) == ["1", "3"]


def test_b11_one_query_of_zeros_spoils_no_other(store: Made) -> None:
    """nmslib 321: one empty query failed the batch."""
    engine = store(2)
    engine.add_vectors(np.eye(2), ids=["x", "y"])
    found = engine.search_vectors(np.array([[1.0, 0], [0, 0], [0, 1]]), k=1)
    assert [result.error is None for result in found] == [True, False, True]
    assert [result.hits[0].id for result in found[::2]] == ["x", "y"]


def test_b12_a_row_of_nan_is_refused_by_its_place(store: Made) -> None:
    """faiss 5557: one NaN made whole searches empty."""
    rows = np.eye(4)
    rows[2, 1] = np.nan
    engine = store(4)
    report = engine.add_vectors(rows, ids=["a", "b", "c", "d"])
    (refused,) = report.refusals
    assert "c" in str(refused)
    assert "NaN" in str(refused)
    assert set(nearest(engine, [1, 1, 1, 1])) == {"a", "b", "d"}


def test_b13_b14_the_filter_comes_first(store: Made) -> None:
    """mem0 7416, mempalace 1886: k nearest were filtered afterwards, and few or none were left."""
    engine = store(2, index=IndexSpec(metric=Metric.IP))
    line = np.array([[float(n), 1.0] for n in range(10)])
    kinds = [{"kind": "B" if n >= 6 else "A"} for n in range(10)]
    engine.add_vectors(line, ids=[str(n) for n in range(10)], metadata=kinds)
    assert nearest(engine, [1, 0], 5, where="kind = 'A'") == ["5", "4", "3", "2", "1"]
    near = np.array([[1000.0 - n, 1.0] for n in range(30)])
    far = np.array([[100.0 - n, 1.0] for n in range(10)])
    engine.add_vectors(near, ids=[f"near{n}" for n in range(30)], metadata=[{"kind": "near"}] * 30)
    engine.add_vectors(far, ids=[f"far{n}" for n in range(10)], metadata=[{"kind": "far"}] * 10)
    assert nearest(engine, [1, 0], 5, where={"kind": "far"}) == [f"far{n}" for n in range(5)]


def test_b15_nested_conditions_give_k(engine: Engine) -> None:
    """chroma 2251: fewer than k, though nine matched."""
    engine.add(
        [Document("dog", id=str(n), metadata={"a": n % 3, "b": n % 5, "c": n}) for n in range(30)]
    )
    condition = "(a = 0 and (b < 3 or c > 12)) or (not a = 1 and c in (1, 2, 4))"
    right = [n for n in range(30) if (n % 3 == 0 and (n % 5 < 3 or n > 12)) or n == 2]
    assert len(right) == 9
    assert [hit.id for hit in engine.search("dog", k=5, where=condition).hits] == [
        str(n) for n in right[:5]
    ]
    assert len(engine.search("dog", k=50, where=condition).hits) == len(right)


@pytest.mark.parametrize("name", ["O'Brien", "x' OR 1=1 --", 'a"b', "%", "_", "a\\"])
def test_b18_an_id_is_data(engine: Engine, name: str) -> None:
    """cocoindex 2119: a quote in an id broke the statement."""
    engine.add([Document("dog", id=name), Document("dog", id="Obrien"), Document("dog", id="x")])
    assert engine.delete([name]) == 1
    assert [hit.id for hit in engine.search("dog").hits] == ["Obrien", "x"]


@pytest.mark.parametrize(
    "query",
    [
        "what's the budget, roughly?",
        "don't use agents",
        "POL-358",
        '"--error-on-warnings"',
        "ubuntu 20.04",
        "NEAR(",
        "budget AND",
        "a:b",
        "^budget",
        "{budget",
        "budget OR NOT",
    ],
)
def test_b19_any_text_is_a_query_of_words(engine: Engine, query: str) -> None:
    """msgvault 366 and others: FTS5 read the query as its own language."""
    engine.add([Document(f"{query} said here", id="it"), Document("something else", id="other")])
    for mode in ("lexical", "hybrid"):
        found = engine.search(query, mode=mode)
        assert found.hits[0].id == "it"
        assert "lexical" in found.legs


def test_b20_a_lone_surrogate_costs_one_row(engine: Engine, tmp_path: Path) -> None:
    """MemOS 1048: an emoji cut in two failed the file."""
    good = [json.dumps({"id": str(n), "text": f"line {n} 👋"}) for n in range(9)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([*good, '{"id": "bad", "text": "Hello 👋 \\ud800"}']))
    report = engine.add_files([path])
    assert report.added == 9
    assert len(report.refusals) == 1
    assert engine.get(["3"])[0].text == "line 3 👋"


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", ""), ("a.txt", "\n \n\t\n"), ("a.jsonl", '{"id": 1, "text": null}\n{"text": ""}\n')],
)
def test_b21_nothing_to_read(engine: Engine, tmp_path: Path, name: str, content: str) -> None:
    """sentence-transformers 2751: an empty batch failed."""
    (tmp_path / name).write_text(content)
    report = engine.add_files([tmp_path / name])
    assert (report.added, engine.stats().documents) == (0, 0)
    assert engine.search("dog").hits == ()


def test_b22_reading_one_file_forgets_no_other(engine: Engine, tmp_path: Path) -> None:
    """memsearch 613: indexing a again took b away."""
    (tmp_path / "a.txt").write_text("dogs bark\n")
    (tmp_path / "b.txt").write_text("cats sleep\n")
    engine.add_files([tmp_path / "a.txt", tmp_path / "b.txt"])
    engine.add_files([tmp_path / "a.txt"])
    assert engine.search("cats sleep", k=1).hits[0].text == "cats sleep"


@pytest.mark.parametrize("kind", [kind.value for kind in IndexKind if kind.value != "factory"])
@pytest.mark.parametrize("count", [1, 2, 38, 39, 71])
def test_b24_few_rows_are_enough(store: Made, kind: str, count: int) -> None:
    """faiss 2513, ColBERT 162: training needed more rows than there were."""
    rows = np.random.default_rng(count).standard_normal((count, 48))
    engine = store(48, index=IndexSpec(kind=IndexKind(kind)))
    engine.add_vectors(rows, ids=[str(n) for n in range(count)])
    engine.rebuild()
    assert nearest(engine, rows[-1], 1) == [str(count - 1)]
    assert engine.verify().problems == ()


def test_b25_status_opens_neither_model_nor_index(tmp_path: Path, words: WordEmbedder) -> None:
    """basic-memory 886: the status of a large store took minutes."""
    with Engine.create(tmp_path / "s", model=words) as engine:
        engine.add(["a dog"])
        engine.rebuild()
    script = f"""
import sys
import cli
assert cli.run(["status", "--store", {str(tmp_path / "s")!r}, "--json"]) == 0
print(sorted({{"faiss", "torch", "onnxruntime", "sqlalchemy", "tokenizers"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.model
def test_b26_what_went_in_is_no_answer(minilm: Any, tmp_path: Path) -> None:
    """word2vecjson 3: king - man + woman answered king."""
    with Engine.create(tmp_path / "s", model=minilm) as engine:
        engine.add(["king", "queen", "man", "woman", "king ", " King", "KING", "prince", "carrot"])
        found = engine.combine(plus=["king", "woman"], minus=["man"], k=10)
    assert found.hits[0].text == "queen"
    assert not {"king", "man", "woman"} & {hit.text.strip().lower() for hit in found.hits}


def test_b27_metadata_are_kept_as_given(engine: Engine) -> None:
    """chroma 1552, 3644: lists, null and nested objects were refused or flattened."""
    given: dict[str, Any] = {
        "list": [1, "two", None, [3.5]],
        "null": None,
        "yes": True,
        "no": False,
        "nested": {"a": {"b": []}, "": "empty key"},
        "big": 2**70,
        "small": 1e-300,
    }
    engine.add([Document("dog", id="d", metadata=given)])
    assert engine.get(["d"])[0].metadata == given
    assert engine.search("dog").hits[0].metadata == given


def test_b28_a_folder_of_any_name(tmp_path: Path, words: WordEmbedder) -> None:
    """faiss 3073: files could not be opened where a folder's name was not ASCII."""
    path = tmp_path / "ベクターストア %41 #?'"
    with Engine.create(path, model=words, index=IndexSpec(kind=IndexKind.HNSW)) as engine:
        engine.add(["a dog", "a cat"])
        engine.rebuild()
    with Engine.open(path, model=words) as engine:
        assert engine.search("dog", k=1).hits[0].text == "a dog"
        assert engine.verify().problems == ()


@pytest.mark.model
@pytest.mark.parametrize("runtime", ["onnx", "sentence-transformers"])
def test_b30_the_batch_changes_no_vector(runtime: str) -> None:
    """sentence-transformers 3197: vectors depended on the batch they were in."""
    from engine.models import ModelSource

    embedder = ModelSource("all-MiniLM-L6-v2", offline=True, runtime=runtime).load()
    texts = ["test test"] * 100 + ["another text " * 30]
    together = embedder.embed_documents(texts)
    alone: list[Float32Array] = [embedder.embed_documents([text]) for text in texts[::20]]
    np.testing.assert_allclose(together[::20], np.concatenate(alone), atol=1e-6)
    assert np.ptp(together[:100], axis=0).max() < 1e-6


def test_the_command_line_answers_what_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: WordEmbedder
) -> None:
    """B3 and B4 from a shell."""
    path = str(tmp_path / "s")
    Engine.create(path, model=words).close()
    assert cli.run(["get", "3", "--store", path]) == 1
    assert cli.run(["query", "dog", "--mode", "lexical", "--store", path]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "3" in told.err


@pytest.mark.parametrize("query", ["*", "?!", '"', "'", "…", "👋"])
def test_b19_a_query_without_words_finds_no_words(engine: Engine, query: str) -> None:
    engine.add(["a dog", query])
    assert engine.search(query, mode="lexical").hits == ()
