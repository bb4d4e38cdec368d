"""The token store: word vectors come, stay and go with their passages, counted, of one width."""

from __future__ import annotations

import sqlite3
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import Document, Engine, ingest, tokens, words
from engine.arrays import Float32Array
from engine.text.stopwords import content
from engine.types import Words
from engine.words import Packed
from tests.older import make_older
from tests.words import TokenEmbedder, word_vector

WIDE = 200
COLOURS = ["red", "green", "blue", "pear", "plum", "sea", "sky", "oak"]


class Held(NamedTuple):
    """What the tables say: word rows by document and ordinal, counters, directions."""

    rows: dict[tuple[str, int], Packed]
    counters: tuple[int, int]
    directions: list[Any]

    @property
    def widths(self) -> set[int]:
        return {packed.width for packed in self.rows.values()}


def held(store: Path) -> Held:
    with closing(sqlite3.connect(store / "store.db")) as raw:
        rows = raw.execute(
            'SELECT d."key", p.ordinal, w.width, w.data FROM passage_words w'
            " LEFT JOIN passages p ON p.id = w.passage_id LEFT JOIN documents d"
            " ON d.id = p.document_id"
        ).fetchall()
        counters = raw.execute("SELECT worded, word_bytes FROM generation").fetchone()
        directions = raw.execute("SELECT words, width, matrix FROM directions").fetchall()
    return Held({(row[0], row[1]): Packed(*row[2:]) for row in rows}, counters, directions)


def check(engine: Engine) -> Held:
    """Counters equal the tables, all rows are of one width, and `verify` finds nothing."""
    stats = engine.stats()
    found = held(Path(stats.path))
    total = sum(len(packed.data) for packed in found.rows.values())
    assert found.counters == (len(found.rows), total)
    assert (stats.worded, stats.word_bytes) == found.counters
    assert len(found.widths) <= 1
    assert engine.verify().problems == ()
    return found


def of(text: str, width: int = 16) -> Packed:
    """The row that a text has at full width."""
    return words.pack(content(text, TokenEmbedder(width=width).words_of(text)), None)


@pytest.fixture
def model() -> TokenEmbedder:
    return TokenEmbedder()


@pytest.fixture
def worded(tmp_path: Path, model: TokenEmbedder) -> Iterator[Engine]:
    with Engine.create(tmp_path / "s", model=model) as made:
        yield made


@pytest.fixture
def small_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "FIT_AT", 400)
    monkeypatch.setattr(words, "FIT_ON", 505)


def texts(n: int, first: int = 0) -> list[Document]:
    """Documents of ten words each, some of them their own."""
    return [
        Document(" ".join([*COLOURS, f"own{i}", f"more{i}"]), id=str(i))
        for i in range(first, first + n)
    ]


def test_words_come_with_their_passage_and_go_with_it(tmp_path: Path, model: TokenEmbedder) -> None:
    file = tmp_path / "f.txt"
    file.write_text("plum oak\nsky\n")
    with Engine.create(tmp_path / "s", model=model) as engine:
        engine.add([Document("red sea", id="a"), Document("the green sky", id="b")])
        engine.add([Document("red sea", id="again")])
        engine.add_files([file])
        assert model.worded.count("red sea") == 1
        found = check(engine).rows
        assert [*found.values()][3:] == [of("plum oak"), of("sky")]
        assert found["a", 0] == found["again", 0] == of("red sea")
        assert found["b", 0] == of("the green sky")
        back = words.unpack(found["b", 0])
        assert back.spans.tolist() == [[4, 9], [10, 13]]
        expected = [word_vector("green", 16), word_vector("sky", 16)]
        np.testing.assert_allclose(back.vectors, expected, atol=0.02)

        engine.add([Document("blue plum", id="a")])
        assert check(engine).rows["a", 0] == of("blue plum")
        assert engine.delete(["b"]) == 1
        assert set(found) - set(check(engine).rows) == {("b", 0)}
        file.unlink()
        engine.prune([tmp_path])
        assert set(check(engine).rows) == {("a", 0), ("again", 0)}
        engine.delete(["a", "again"])
        assert check(engine).counters == (0, 0)


def test_long_documents_have_words_of_each_passage(tmp_path: Path) -> None:
    with Engine.create(tmp_path / "s", model=TokenEmbedder(max_tokens=4)) as engine:
        engine.add([Document("red green blue pear plum sea", id="long")])
        found = check(engine).rows
        with engine._store.reading() as view:
            parts = view.connection.rows("SELECT ordinal, text FROM passages")
        assert len(parts) == 2
        assert found == {("long", n): of(text) for n, text in parts}


def test_directions_are_fitted_once(tmp_path: Path, small_fit: None) -> None:
    model = TokenEmbedder(width=WIDE)
    with Engine.create(tmp_path / "s", model=model) as engine:
        engine.add(texts(39))
        before = check(engine)
        assert (before.widths, before.directions) == ({WIDE}, [])
        engine.add(texts(1, 39))
        after = check(engine)
        ((count, width, matrix),) = after.directions
        assert (after.widths, count, width) == ({128}, 400, 128)
        everything = [of(one.text, WIDE) for one in texts(40)]
        directions = words.fit(words.unpack(*everything).vectors)
        assert matrix == directions.tobytes()
        assert list(after.rows.values()) == [words.repack(one, directions) for one in everything]
        engine.add([*texts(1, 50), Document("blue words", id="0")])
        projected = words.pack(model.words_of("blue words"), directions)
        assert check(engine).rows["0", 0] == projected
        engine.delete([str(i) for i in range(60)])
        engine.compact()
        engine.add([Document("red pear", id="new")])
        last = check(engine)
        assert last.directions == after.directions
        assert last.rows == {("new", 0): words.pack(model.words_of("red pear"), directions)}


def test_a_sample_of_the_first_words_is_fitted_on(tmp_path: Path, small_fit: None) -> None:
    with Engine.create(tmp_path / "s", model=TokenEmbedder(width=WIDE)) as engine:
        engine.add(texts(90))
        ((count, _, matrix),) = check(engine).directions
        first = words.unpack(*(of(one.text, WIDE) for one in texts(51))).vectors[:505]
        assert (count, matrix) == (505, words.fit(first).tobytes())


def test_batches_made_before_the_fit_are_projected_at_their_commit(
    tmp_path: Path, small_fit: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "BATCH", 7)
    model = TokenEmbedder(width=WIDE)
    with Engine.create(tmp_path / "s", model=model) as engine:
        engine.add(texts(120))
        found = check(engine)
        directions = np.frombuffer(found.directions[0][2], "<f4").reshape(WIDE, 128)
        for one in texts(120):
            row = words.unpack(found.rows[str(one.id), 0]).vectors
            expected = words.project(model.words_of(one.text).vectors, directions)
            np.testing.assert_allclose(row, expected, atol=0.02)
        (plum,) = engine.search("own7 plum", k=1, explain=True).hits
        assert plum.id == "7"
        assert plum.explanation is not None
        assert plum.explanation.attention_score == pytest.approx(1.0, abs=0.02)


def test_a_reader_meets_one_width_while_directions_are_fitted(
    tmp_path: Path, small_fit: None
) -> None:
    with Engine.create(tmp_path / "s", model=TokenEmbedder(width=WIDE)) as engine:
        engine.add(texts(39))
        with engine._store.reading() as view:
            assert view.directions() is None
            engine.add(texts(9, 39))
            old = view.words(range(1, 60))
            assert (len(old), {one.width for one in old.values()}) == (39, {WIDE})
            assert view.directions() is None
        with engine._store.reading() as view:
            new = view.words(range(1, 60))
            assert (len(new), {one.width for one in new.values()}) == (48, {128})


def test_narrow_words_are_never_projected(tmp_path: Path, small_fit: None) -> None:
    with Engine.create(tmp_path / "s", model=TokenEmbedder(width=128)) as engine:
        engine.add(texts(60))
        assert (check(engine).widths, check(engine).directions) == ({128}, [])


some_texts = st.lists(
    st.sampled_from([*COLOURS, "the", "_", "own1", "cafe\u0301", "漢字"]), min_size=1, max_size=9
).map(" ".join)
steps = st.lists(
    st.tuples(st.just("add"), st.dictionaries(st.sampled_from("abcdef"), some_texts))
    | st.tuples(st.just("delete"), st.sets(st.sampled_from("abcdef"))),
    max_size=8,
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps)
def test_counters_equal_the_tables(worded: Engine, taken: list[tuple[str, Any]]) -> None:
    worded.delete(list("abcdef"))
    alive: dict[str, str] = {}
    for what, named in taken:
        if what == "add":
            worded.add([Document(text, id=key) for key, text in named.items()])
            alive |= named
        else:
            worded.delete(sorted(named))
            alive = {key: text for key, text in alive.items() if key not in named}
        assert check(worded).rows == {(key, 0): expected(text) for key, text in alive.items()}
        assert worded.stats().wordless == 0


def expected(text: str) -> Packed:
    return of(unicodedata.normalize("NFC", text))


def test_two_engines_and_words_dropped_and_made(worded: Engine, tmp_path: Path) -> None:
    worded.add([Document("red sea", id="a")])
    with Engine.open(tmp_path / "s", model=TokenEmbedder()) as other:
        assert other.drop_tokens() == 1
        worded.add([Document("green sky", id="b")])
        assert check(worded).rows == {}
        assert (worded.stats().tokens, worded.stats().wordless) == (False, 0)
        assert other.build_tokens() == 2
        worded.add([Document("blue oak", id="c")])
        assert {key for key, _ in check(worded).rows} == {"a", "b", "c"}
        assert worded.drop_tokens() == 3
        assert other.build_tokens() == 3
        assert check(other).rows["c", 0] == of("blue oak")
    with Engine.open(tmp_path / "s", model=TokenEmbedder()) as again:
        assert (again.stats().tokens, again.stats().wordless) == (True, 0)


def test_a_text_without_words_is_one_that_has_its_words(
    worded: Engine, model: TokenEmbedder
) -> None:
    worded.add([Document("_", id="none"), Document("the of", id="stop"), Document("sea", id="sea")])
    assert check(worded).rows["none", 0] == Packed(16, b"")
    assert check(worded).rows["stop", 0] == of("the of")
    assert (worded.stats().worded, worded.stats().wordless) == (3, 0)
    assert worded.build_tokens() == 0
    (found,) = worded.search("_ sea", where=None, k=1, explain=True).hits
    assert found.id == "sea"
    hits = {hit.id: hit for hit in worded.search("_ sea", mode="dense", explain=True).hits}
    assert hits["none"].explanation is None
    assert hits["none"].score == pytest.approx(0.5**0.5, abs=1e-6)


def test_a_build_goes_on_where_it_was_stopped(
    worded: Engine, model: TokenEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_PASSAGES_A_COMMIT", 10)
    worded.add(texts(45))
    whole = check(worded)
    worded.drop_tokens()
    calls = [0]

    def fail(rows: Float32Array, found: list[Words]) -> object:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return rows, found

    model.reply = fail
    with pytest.raises(KeyboardInterrupt):
        worded.build_tokens()
    assert len(check(worded).rows) == 20
    assert worded.stats().wordless == 25
    seen: list[float | None] = []
    assert worded.build_tokens(on_progress=lambda now: seen.append(now.fraction)) == 25
    assert seen == [0.4, 0.8, 1.0]
    assert check(worded) == whole


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_a_store_of_an_older_schema_gets_words_later(tmp_path: Path, revision: str) -> None:
    path, model = tmp_path / "s", TokenEmbedder()
    with Engine.create(path, model=model, tokens=False) as engine:
        engine.add([Document("red sea", id="a"), Document("green sky", id="b")])
    make_older(path, revision)
    with Engine.open(path, model=model) as engine:
        assert [hit.id for hit in engine.search("green").hits][:1] == ["b"]
        assert (engine.stats().tokens, engine.stats().wordless) == (True, 2)
        engine.add([Document("blue oak", id="c")])
        assert check(engine).rows == {("c", 0): of("blue oak")}
        assert engine.build_tokens() == 2
        assert check(engine).rows["a", 0] == of("red sea")
        assert engine.stats().wordless == 0
