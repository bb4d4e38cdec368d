"""The lexical index: FTS5 in step with the passages, queries of any text, BM25 by hand."""

from __future__ import annotations

import hashlib
import math
import re
import sqlite3
import unicodedata
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Document, Engine
from engine.errors import CorruptionError
from engine.storage import database, lexical
from engine.storage.store import Store
from engine.text import terms
from tests.older import make_older
from tests.words import WordEmbedder


def asked(
    path: Path, query: str, k: int = 10, allowed: list[int] | None = None
) -> list[tuple[int, float]]:
    """(passage id, score) by a store opened for reading only."""
    expression = terms.match_expression(query)
    if expression is None:
        return []
    store = Store(path, read_only=True)
    ids = None if allowed is None else np.array(allowed, dtype=np.int64)
    with store.reading() as view:
        found, scores = view.lexical(expression, k, ids)
    store.close()
    assert [found.dtype.name, scores.dtype.name] == ["int64", "float64"]
    return list(zip(found.tolist(), scores.tolist(), strict=True))


def ids_of(path: Path, query: str) -> list[int]:
    return [key for key, _ in asked(path, query)]


def test_scores_are_bm25(engine: Engine, tmp_path: Path) -> None:
    texts = ["cat dog dog", "dog", "cat cat cat bird fish", "bird", "fish bird fish", "ant"]
    engine.add(texts)

    def score(words: str, text: str) -> float:
        total, length = 0.0, len(text.split())
        mean = sum(len(t.split()) for t in texts) / len(texts)
        for word in words.split():
            held = sum(word in t.split() for t in texts)
            idf = max(math.log((len(texts) - held + 0.5) / (held + 0.5)), 1e-6)
            tf = text.split().count(word)
            total += idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * length / mean))
        return total

    for query in ("dog", "cat fish", "bird", "cat ant dog"):
        expected = sorted(
            ((i + 1, score(query, t)) for i, t in enumerate(texts) if score(query, t) > 0),
            key=lambda pair: (-pair[1], pair[0]),
        )
        found = asked(tmp_path / "s", query)
        assert [key for key, _ in found] == [key for key, _ in expected]
        assert [s for _, s in found] == pytest.approx([s for _, s in expected], rel=1e-9)
    # "bird" is in half of the texts: its idf, ln 1 = 0, is raised to the floor.
    assert 0 < asked(tmp_path / "s", "bird")[0][1] < 2.2e-6


def test_equal_scores_are_in_order_of_ids(engine: Engine, tmp_path: Path) -> None:
    engine.add([f"dog number{i}" for i in range(30)] + ["cat"] * 40)
    assert ids_of(tmp_path / "s", "dog") == list(range(1, 11))
    assert [key for key, _ in asked(tmp_path / "s", "dog", 3, [30, 31, 32])] == [30]


def test_allowed_ids_restrict_answers_and_not_scores(engine: Engine, tmp_path: Path) -> None:
    engine.add([f"dog {'dog ' * (i % 3)}and {i} cats" for i in range(100)] + ["fish"] * 200)
    everything = asked(tmp_path / "s", "dog", 1000)
    assert len(everything) == 100
    for allowed in ([7], [1, 100], [5, 6, 50, 250], list(range(1, 301)), [2, 3, 99]):
        expected = [pair for pair in everything if pair[0] in allowed]
        assert asked(tmp_path / "s", "dog", 1000, allowed) == expected
        assert asked(tmp_path / "s", "dog", 2, allowed) == expected[:2]
    assert asked(tmp_path / "s", "dog", 10, []) == []
    assert asked(tmp_path / "s", "dog", 10, [150, 400]) == []


def test_the_index_follows_every_change(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "s"
    engine.add([Document(f"dog {i} café {'x' * (i % 4)}", id=str(i)) for i in range(40)])
    engine.delete(["3", "17", "39"])
    engine.add([Document("a cat", id="5"), Document("東京の dog", id="6"), "another dog"])
    engine.add([Document("dog 7 café xxx", "7", {"lang": "fr"})])
    (tmp_path / "f.txt").write_text("a wolf\n\nno wolf")
    engine.add_files([str(tmp_path / "f.txt")])
    (tmp_path / "f.txt").unlink()
    assert ids_of(path, "wolf") == [44, 45]
    engine.prune([str(tmp_path)])
    assert ids_of(path, "wolf") == []
    assert ids_of(path, "東京") == [42]
    assert ids_of(path, "cat") == [41]
    assert engine.verify().problems == ()
    queries = ("dog", "café", "東京", "cat another", "5 17 39")
    before = [asked(path, query, 100) for query in queries]
    assert [len(found) for found in before] == [37, 35, 1, 2, 0]
    engine.compact()
    assert [asked(path, query, 100) for query in queries] == before
    engine.rebuild()
    assert [asked(path, query, 100) for query in queries] == before


def test_what_is_rolled_back_leaves_no_trace(engine: Engine, tmp_path: Path) -> None:
    engine.add([Document("a dog", id="dog"), "one more"])
    before = asked(tmp_path / "s", "dog more")
    store = Store(tmp_path / "s")
    with store.reading() as view:
        (row,) = [known.row_id for known in view.known(["dog"]).values()]
    with pytest.raises(RuntimeError, match="half way"), store.writing() as writer:
        writer.delete([row])
        writer.close()
        raise RuntimeError("half way")
    store.close()
    assert asked(tmp_path / "s", "dog more") == before
    assert engine.verify().problems == ()


def test_a_reader_keeps_its_snapshot(engine: Engine, tmp_path: Path) -> None:
    engine.add([Document("a dog", id="dog"), "a cat", "a fish"])
    store = Store(tmp_path / "s", read_only=True)
    with store.reading() as view:
        assert view.lexical('"dog"', 5)[0].tolist() == [1]
        engine.add([Document("a wolf", id="dog"), "dog and dog"])
        assert view.lexical('"dog"', 5)[0].tolist() == [1]
        assert view.document_frequencies(["dog", "wolf"]) == [1, 0]
    with store.reading() as view:
        assert view.lexical('"dog"', 5)[0].tolist() == [5]
        assert view.document_frequencies(["dog", "wolf"]) == [1, 1]
    store.close()


def test_blank_passages_are_no_rows(engine: Engine, tmp_path: Path) -> None:
    vectors = np.eye(4, 512, dtype=np.float32)
    texts = ["dog", "", " \t\n", "cat"]
    engine.add_vectors(vectors, ids=["a", "b", "c", "d"], texts=texts)
    with closing(sqlite3.connect(tmp_path / "s" / "store.db")) as raw:
        assert raw.execute("SELECT id FROM lexical_docsize").fetchall() == [(1,), (4,)]
    assert engine.delete(["a", "b", "c"]) == 3
    assert engine.verify().problems == ()
    assert ids_of(tmp_path / "s", "dog cat") == [4]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("don't", [1]),
        ("don’t", [1]),
        ("POL-358", [2, 3]),
        ("pol‑358", [2, 3]),
        ("NEAR(", [4]),
        ("NEAR(dog, cat)", [4, 5]),
        ("*", []),
        ("do*", []),
        ('"', []),
        ('""', []),
        ('"near"', [4]),
        ("text:near", [4]),
        ("-near", [4]),
        ("^near + 2", [4]),
        ("near\0cat", [4, 5]),
        ("{near}", [4]),
        ("", []),
        ("🎉", []),
        ("the", [5, 6]),
        ("the dog", [5]),
        ("snake_case", [7]),
        ("dogs' running", [5, 8]),
    ],
)
def test_any_text_is_a_query(
    engine: Engine, tmp_path: Path, query: str, expected: list[int]
) -> None:
    engine.add(
        [
            "I don't know",
            "error POL-358 appeared",
            "number 358 of pol is not pol 35 8",
            "near or far",
            "the cat and the dog",
            "the OR the",
            "snake_case",
            "he runs",
            *(f"filler{i}" for i in range(10)),
        ]
    )
    assert sorted(ids_of(tmp_path / "s", query)) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("the dog and The DOG", '"dog"'),
        ("to be", '"to" OR "be"'),
        ("I'm hungry", '"hungry"'),
        ("I'm", '"I m"'),
        ("U.S.A. law", '"U S A" OR "law"'),
        ("POL-358", '"POL 358" OR "POL" OR "358"'),
        ("state-of-the-art", '"state" OR "art"'),
        ("Ohm's", '"Ohm"'),
        ("A猫 東京都", '"A" OR "猫" * OR "東京" OR "京都"'),
        ("-- \ud800 *", None),
    ],
)
def test_expressions(query: str, expected: str | None) -> None:
    assert terms.match_expression(query) == expected


def test_a_code_ranks_above_its_parts(engine: Engine, tmp_path: Path) -> None:
    engine.add(["358 of pol", "see pol 358", "pol and 358", "POL", "nothing", "else", "here"])
    found = dict(asked(tmp_path / "s", "POL-358"))
    assert set(found) == {1, 2, 3, 4}
    assert max(found, key=lambda key: found[key]) == 2
    assert found[1] == found[3]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("中文", [1]),
        ("文", [1]),
        ("搜索引擎", [1]),
        ("東京", [2]),
        ("都", [2]),
        ("日本語", [3]),
        ("にほん", []),
        ("한국어", [4]),
        (unicodedata.normalize("NFD", "한국어"), [4]),
        ("ไทย", [5]),
        ("café", [6, 7, 8]),
        ("cafe", [6, 7, 8]),
        (unicodedata.normalize("NFD", "CAFÉ"), [6, 7, 8]),
        ("strasse", [9]),
        ("STRAẞE", [9]),
        ("ﬁsh", [10]),
        ("ＦＩＳＨ", [10]),
        ("हिन्दी", [11]),
        ("हिन्द", []),
        ("שלום", [12]),
        ("σοφός", [13]),
        ("ΣΟΦΟΣ", [13]),
        ("ёлка", [17]),
        ("елка", [17]),
        ("coop", [14]),
        ("カタカナ", [15]),
        ("ｶﾀｶﾅ", [15]),
        ("Python入門", [16]),
        ("AI模型", [18, 19, 20]),
        ("模型", [18]),
        ("ＡＩ", [18, 19, 20]),
        ("型", [18]),
        ("학교", [21]),
        ("공부", [21]),
        ("학교는", [21]),
        ("ﾓﾃﾞﾙ", [20]),
        ("雨", [22]),
        ("大雨", []),
    ],
)
def test_scripts_and_spellings(
    engine: Engine, tmp_path: Path, query: str, expected: list[int]
) -> None:
    engine.add(
        [
            "支持中文的搜索引擎",
            "東京都に住む",
            "日本語です",
            "한국어를 배우다",
            "ภาษาไทยง่าย",
            "a café",
            "a cafe",
            unicodedata.normalize("NFD", "the CAFÉ"),
            "eine Straße",
            "a fish",
            "हिन्दी भाषा",
            "שָׁלוֹם",
            "ὁ σοφός",
            "co\u00adop",
            "カタカナ",
            "Python入門",
            "зелёная ёлка",
            "新的AI模型",
            "ai 2",
            "AIモデル",
            "아이들이 학교에서 공부한다",
            "明日は雨が降る",
        ]
    )
    assert sorted(ids_of(tmp_path / "s", query)) == expected


def test_document_frequencies(engine: Engine, tmp_path: Path) -> None:
    engine.add(
        ["dogs run", "a dog, don't", "東京都", "東京と京都", "Café 猫", "黒い猫と", "POL-358"]
    )
    words = ["dog", "running", "don't", "東京", "東京都", "猫", "cafe", "pol-358", "", "*", "cow"]
    store = Store(tmp_path / "s", read_only=True)
    with store.reading() as view:
        assert view.document_frequencies(words) == [2, 1, 1, 2, 1, 2, 1, 1, 0, 0, 0]
        assert lexical.document_frequencies(view.connection, ["dog", "cow"], 1) == [1, 0]
    store.close()


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.one_of(TEXTS, st.sampled_from(["東京", "don't", "NEAR(", "\0", '"', "-"]))))
def test_no_text_breaks_the_index(parts: list[str]) -> None:
    text = " ".join(parts)
    with closing(sqlite3.connect(":memory:")) as raw:
        raw.execute(f"CREATE VIRTUAL TABLE lexical USING {lexical._DEFINITION}")
        raw.execute("INSERT INTO lexical (rowid, text) VALUES (1, ?)", (terms.fold(text),))
        raw.execute("INSERT INTO lexical (rowid, text) VALUES (2, 'other')")
        for expression in (terms.match_expression(text), terms.phrase(text)):
            if expression is not None:
                query = "SELECT rowid FROM lexical WHERE lexical MATCH ?"
                assert len(raw.execute(query, (expression,)).fetchall()) <= 2


@given(TEXTS)
def test_composed_and_decomposed_texts_fold_alike(text: str) -> None:
    old = unicodedata.ucd_3_2_0
    composed, decomposed = (old.normalize(form, text) for form in ("NFC", "NFD"))
    assert terms.fold(composed) == terms.fold(decomposed)


def test_the_fold_is_that_of_the_schema() -> None:
    """Where this fails, stores hold another fold: a revision must make their index anew."""
    state = hashlib.sha256()
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000:
            state.update(terms.fold(f"a{chr(code)}b").encode())
    assert state.hexdigest() == "94238878dfdf18231b3557deda84960a50b763cce04f2108ec81a4067c5489e0"


def test_long_queries_end_somewhere(engine: Engine, tmp_path: Path) -> None:
    engine.add([f"w{i}" for i in range(300)])
    expression = terms.match_expression(" ".join(f"w{i} W{i}" for i in range(5000)))
    assert expression is not None
    assert expression.count(" OR ") == terms.MOST_TERMS - 1
    assert len(asked(tmp_path / "s", " ".join(f"w{i}" for i in range(300)), 1000)) == 256


def test_an_old_store_is_filled(
    engine: Engine, tmp_path: Path, words: WordEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    engine.add([Document(f"dog {i} café", id=str(i)) for i in range(25)] + ["東京都"])
    engine.delete(["3"])
    expected = [asked(path, query, 100) for query in ("dog", "cafe", "東京")]
    engine.close()
    make_older(path, "0001")
    monkeypatch.setattr(lexical, "_ROWS", 10)
    with Engine.open(path, model=words) as opened:
        assert opened.stats().schema == database.HEAD
        assert opened.verify().problems == ()
    assert [asked(path, query, 100) for query in ("dog", "cafe", "東京")] == expected
    (saved,) = (path / "backups").iterdir()
    assert saved.name.startswith("schema-0001-")
    with closing(sqlite3.connect(saved)) as raw:
        names = {name for (name,) in raw.execute("SELECT name FROM sqlite_master")}
    assert not names & lexical.OWNED


ONE_ROW = r"its rows \(1\), tokens \(1\), totals \(1\) differ from the passages"
DAMAGES = {
    "DROP TABLE lexical": "no such table: lexical",
    "DROP TABLE lexical_config": "vtable constructor failed",
    "DROP TABLE lexical_data": "vtable constructor failed",
    "DROP TABLE lexical_docsize": "no such table: lexical_docsize",
    "DELETE FROM lexical_data": "vtable constructor failed",
    "DELETE FROM lexical_data WHERE id > 1000": "malformed",
    "UPDATE lexical_config SET v = 99 WHERE k = 'version'": "invalid fts5 file format",
    "DELETE FROM lexical_docsize WHERE id = 5": r"its rows \(1\) differ",
    "INSERT INTO lexical (rowid, text) VALUES (99, 'dog')": ONE_ROW,
    "INSERT INTO lexical (lexical, rowid, text) VALUES ('delete', 3, 'dog 1')": ONE_ROW,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_named_and_rebuilt(
    engine: Engine, tmp_path: Path, words: WordEmbedder, damage: str
) -> None:
    path = tmp_path / "s"
    engine.add_vectors(np.eye(9, 512), ids=list("abcdefghi"), texts=[f"dog {i}" for i in range(9)])
    assert engine.verify().problems == ()
    engine.close()
    with closing(sqlite3.connect(path / "store.db")) as raw, raw:
        raw.execute(damage)
    with Engine.open(path, read_only=True, model=words) as reader:
        (problem,) = reader.verify().problems
        assert "the lexical index is damaged" in problem
        assert "attendex rebuild" in problem
        assert re.search(DAMAGES[damage], problem)
        assert [hit.id for hit in reader.search_vectors(np.eye(1, 512))[0].hits][:1] == ["a"]
    with Engine.open(path, model=words) as opened:
        opened.rebuild()
        assert opened.verify().problems == ()
        assert opened.delete(["a"]) == 1
        assert opened.verify().problems == ()
    assert len(ids_of(path, "dog")) == 8


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE lexical_idx",
        "DROP TABLE lexical_docsize",
        "UPDATE lexical_data SET block = zeroblob(5) WHERE id = 10",
        "UPDATE lexical_data SET block = 'text'",
    ],
)
def test_writes_into_a_damaged_index_say_what_to_do(
    engine: Engine, tmp_path: Path, words: WordEmbedder, damage: str
) -> None:
    for first in range(0, 200, 50):
        engine.add(Document(f"dog {i} cat{i}", id=str(i)) for i in range(first, first + 50))
    engine.close()
    with closing(sqlite3.connect(tmp_path / "s" / "store.db")) as raw, raw:
        raw.execute(damage)
    said: list[str] = []
    with Engine.open(tmp_path / "s", model=words) as opened:
        for use in (
            lambda: opened.add(["a new dog", "another"]),
            lambda: opened.add([Document("changed", id="7")]),
            lambda: opened.delete(["8"]),
        ):
            try:
                use()
            except CorruptionError as error:
                said.append(str(error))
        opened.rebuild()
        assert opened.verify().problems == ()
        assert opened.add([Document("mended", id="7")]).replaced == 1
        assert [hit.id for hit in opened.search("mended", mode="lexical").hits] == ["7"]
    assert said
    assert all("`attendex rebuild` makes it anew" in sentence for sentence in said)


@pytest.mark.parametrize("table", ["lexical", "lexical_data"])
def test_a_missing_index_is_told_by_every_use(
    engine: Engine, tmp_path: Path, words: WordEmbedder, table: str
) -> None:
    engine.add([Document("dog", id="dog")])
    engine.close()
    with closing(sqlite3.connect(tmp_path / "s" / "store.db")) as raw, raw:
        raw.execute(f"DROP TABLE {table}")
    with Engine.open(tmp_path / "s", model=words) as opened:
        for use in (
            lambda: opened.add(["more"]),
            lambda: opened.delete(["dog"]),
            lambda: asked(tmp_path / "s", "dog"),
        ):
            with pytest.raises(CorruptionError, match="`attendex rebuild` makes it anew"):
                use()
        assert [document.text for document in opened.get(["dog"])] == ["dog"]
