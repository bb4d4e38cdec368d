"""The token store and what is not as it should be: models, files, texts; and the real model."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from engine import Document, Engine, IndexSpec, words
from engine.arrays import Float32Array
from engine.embedding.sentence_transformer import SentenceTransformerEmbedder
from engine.errors import CorruptionError, ModelError
from engine.settings import Metric
from engine.types import Words
from engine.vectors import unit_rows
from tests.test_tokens import check, held, of, texts
from tests.words import TokenEmbedder, WordEmbedder

Reply = Callable[[Float32Array, list[Words]], object]


def of_first(change: Callable[[Words], Words]) -> Reply:
    """The reply in which the first text's words are changed."""
    return lambda rows, found: (rows, [change(found[0]), *found[1:]])


@pytest.fixture
def model() -> TokenEmbedder:
    return TokenEmbedder()


REFUSED: dict[str, tuple[Reply, str]] = {
    "a text too few": (lambda rows, found: (rows, found[1:]), "words of 1 of 2 texts"),
    "a vector too few": (lambda rows, found: (rows[1:], found), "1 vectors for 2 texts"),
    "a wider vector": (lambda rows, found: (np.hstack([rows, rows]), found), "128"),
    "one axis": (lambda rows, found: (rows[0], found), "two axes"),
    "a span too few": (of_first(lambda w: Words(w.spans[1:], w.vectors)), "spans of shape"),
    "spans of one axis": (of_first(lambda w: Words(w.spans[:, 0], w.vectors)), "two axes"),
    "spans of fractions": (
        of_first(lambda w: Words(cast(Any, w.spans + 0.5), w.vectors)),
        "spans of shape",
    ),
    "no spans": (of_first(lambda w: Words(w.spans[:0], w.vectors)), "spans of shape"),
    "past the end": (
        of_first(lambda w: Words(w.spans + 1, w.vectors)),
        "within the text 'red sea'",
    ),
    "before the start": (of_first(lambda w: Words(w.spans - 1, w.vectors)), "within the text"),
    "empty words": (of_first(lambda w: Words(w.spans[:, [0, 0]], w.vectors)), "within the text"),
    "another width": (of_first(lambda w: Words(w.spans, w.vectors[:, 1:])), r"shape \(2, 15\)"),
    "no width": (of_first(lambda w: Words(w.spans, w.vectors[:, :0])), r"shape \(2, 0\)"),
    "no numbers": (of_first(lambda w: Words(w.spans, w.vectors.astype(str))), "must be numbers"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_words_that_are_none_are_refused(tmp_path: Path, model: TokenEmbedder, fault: str) -> None:
    reply, message = REFUSED[fault]
    with Engine.create(tmp_path / "s", model=model) as engine:
        model.reply = reply
        with pytest.raises(ModelError, match=message):
            engine.add([Document("red sea", id="a"), Document("oak", id="b")])
        assert engine.stats().documents == 0
        model.reply = None
        engine.add([Document("red sea", id="a")])
        assert check(engine).rows == {("a", 0): of("red sea")}
        model.reply = reply
        with pytest.raises(ModelError):
            engine.search("red sea")
        with pytest.raises(ModelError):
            engine.explain("red sea", "sea")


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_words_without_a_direction_are_left_out(
    tmp_path: Path, model: TokenEmbedder, value: float
) -> None:
    def spoil(rows: Float32Array, found: list[Words]) -> object:
        for one in found:
            one.vectors[:1] = value
        return rows, found

    with Engine.create(tmp_path / "s", model=model) as engine:
        model.reply = spoil
        engine.add([Document("red sea oak", id="a"), Document("sky", id="b")])
        whole = words.unpack(of("red sea oak"))
        kept = words.unpack(check(engine).rows["a", 0])
        np.testing.assert_array_equal(kept.vectors, whole.vectors[1:])
        np.testing.assert_array_equal(kept.spans, whole.spans[1:])
        assert check(engine).rows["b", 0].size == 0
        (hit,) = engine.search("red sea", k=1).hits
        assert (hit.id, np.isfinite(hit.score)) == ("a", True)


def test_words_of_any_length_become_unit_rows(tmp_path: Path, model: TokenEmbedder) -> None:
    model.reply = lambda rows, found: (rows, [Words(w.spans, w.vectors * 7) for w in found])
    with Engine.create(tmp_path / "s", model=model) as engine:
        engine.add([Document("red sea", id="a")])
        (hit,) = engine.search("red sea", explain=True).hits
        assert hit.explanation is not None
        assert hit.explanation.attention_score == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("fitted", [False, True])
def test_a_model_of_other_words_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fitted: bool
) -> None:
    monkeypatch.setattr(words, "FIT_AT", 100 if fitted else 10_000)
    with Engine.create(tmp_path / "s", model=TokenEmbedder(width=200)) as engine:
        engine.add(texts(20))
    with Engine.open(tmp_path / "s", model=TokenEmbedder(width=150)) as engine:
        told = "width 150, and those of the store are of width 200"
        with pytest.raises(ModelError, match=told):
            engine.add(["red sea"])
        with pytest.raises(ModelError, match=told):
            engine.search("red sea")
        assert len(check(engine).rows) == 20
        engine.drop_tokens()
        assert engine.build_tokens() == 20
        assert check(engine).widths == {128 if fitted else 150}


def test_where_words_are_not_kept(tmp_path: Path) -> None:
    for number, model in enumerate((TokenEmbedder(width=None), WordEmbedder())):
        with Engine.create(tmp_path / str(number), model=model) as engine:
            engine.add(["red sea"])
            assert (engine.stats().tokens, engine.stats().wordless) == (False, 0)
            with pytest.raises(ModelError, match="gives no word vectors"):
                engine.build_tokens()
            assert engine.stats().tokens is False
    inner = IndexSpec(metric=Metric.IP)
    for tokens, kept in ((None, False), (True, True)):
        path = tmp_path / f"ip{tokens}"
        with Engine.create(path, model=TokenEmbedder(), index=inner, tokens=tokens) as engine:
            engine.add(["red sea"])
            assert (engine.stats().tokens, len(check(engine).rows)) == (kept, int(kept))


DAMAGES = {
    "UPDATE passage_words SET data = substr(data, 2) WHERE passage_id = 2": "passages 2 are",
    "UPDATE passage_words SET data = zeroblob(length(data)) WHERE passage_id = 1": "passages 1 are",
    "UPDATE passage_words SET width = 8 WHERE passage_id = 2": "passages 2 are",
    "UPDATE passages SET content_hash = NULL WHERE id = 1": "passages 1 are",
    "DELETE FROM passage_words WHERE passage_id = 1": r"counters say Amount\(passages=2",
    "UPDATE generation SET word_bytes = word_bytes + 1": "counters say",
    "INSERT INTO passage_words VALUES (77, 16, x'')": "rows refer to rows that do not exist",
    "INSERT INTO directions VALUES (1, 9, 128, x'00')": "directions of the word vectors",
    "INSERT INTO directions VALUES (1, 9, 16, zeroblob(2048))": "directions of the word vectors",
    "INSERT INTO directions VALUES (1, 9, 0, x'00')": "directions of the word vectors",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_reads_the_words(tmp_path: Path, model: TokenEmbedder, damage: str) -> None:
    with Engine.create(tmp_path / "s", model=model) as engine:
        engine.add(["red sea", "blue sky"])
        check(engine)
        with closing(sqlite3.connect(tmp_path / "s" / "store.db")) as raw:
            raw.execute(damage)
            raw.commit()
        assert re.search(DAMAGES[damage], "; ".join(engine.verify().problems))
        if "substr" in damage:
            with pytest.raises(CorruptionError, match=r"passages \[2\] .* tokens drop"):
                engine.search("red")
            engine.drop_tokens()
            engine.build_tokens()
            assert len(check(engine).rows) == 2


def test_exports_and_copies(tmp_path: Path, model: TokenEmbedder) -> None:
    with Engine.create(tmp_path / "s", model=model) as engine:
        engine.add(texts(5))
        whole = check(engine)
        engine.export_file(tmp_path / "e.jsonl")
        (tmp_path / "copy").mkdir()
        engine.backup(tmp_path / "copy" / "store.db")
        engine.compact()
        assert check(engine) == whole
    assert held(tmp_path / "copy") == whole
    fresh = TokenEmbedder()
    with Engine.create(tmp_path / "t", model=fresh) as engine:
        engine.import_file(tmp_path / "e.jsonl")
        assert (fresh.embedded, engine.stats().wordless) == ([], 5)
        assert check(engine).rows == {}
        assert [hit.id for hit in engine.search("own3", k=1).hits] == ["3"]
        assert engine.build_tokens() == 5
        assert check(engine) == whole
        engine.add_vectors(np.eye(1, 64), ids=["own"], texts=["red sea"])
        assert (engine.stats().wordless, engine.build_tokens()) == (0, 0)
        assert check(engine) == whole


@pytest.mark.parametrize(
    "text",
    ["cafe\u0301 mu\u0308de 👩‍👧 oak", "漢字 \u0cc6\u0cc2\u0cd5ab sky", "  red\tsea "],
)
def test_words_are_shown_where_they_stand(tmp_path: Path, model: TokenEmbedder, text: str) -> None:
    with Engine.create(tmp_path / "s", model=model) as engine:
        engine.add([Document(text, id="a")])
        (hit,) = engine.search(text, explain=True).hits
        assert hit.explanation is not None
        shown = [(word.text, text[word.start : word.end]) for word in hit.explanation.words_b]
        assert [one for one, _ in shown] == [one for _, one in shown]
        assert (shown[0][0], shown[-1][0]) == (text.split()[0], text.split()[-1])
        assert hit.explanation.attention_score == pytest.approx(1.0, abs=0.02)


def test_a_megabyte_of_words(tmp_path: Path, model: TokenEmbedder) -> None:
    with Engine.create(tmp_path / "s", model=model) as engine:
        engine.add([Document("plum " * 200_000, id="a"), Document("x" * 1_000_000, id="b")])
        found = check(engine).rows
        assert found["a", 0].size == 200_000
        assert words.unpack(found["a", 0]).spans[-1].tolist() == [999_995, 999_999]
        assert words.unpack(found["b", 0]).spans.tolist() == [[0, 65_535]]
        (hit,) = engine.search("plum", k=1).hits
        assert hit.id == "a"
        assert hit.similarity == pytest.approx(1.0)


@pytest.mark.model
def test_the_real_model_keeps_what_it_gives(
    minilm: SentenceTransformerEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "FIT_AT", 15)
    text, long = "Unbelievably café 漢字 🙂 thermometers", "word " * 600
    with Engine.create(tmp_path / "s", model=minilm) as engine:
        engine.add([Document(text, id="a"), Document("🙂 !", id="none")])
        row = words.unpack(check(engine).rows["a", 0])
        _, (own,) = minilm.embed_with_words([text], query=False)
        np.testing.assert_array_equal(row.spans, own.spans)
        np.testing.assert_allclose(row.vectors, own.vectors, atol=0.005)
        shown = [text[start:end] for start, end in row.spans]
        assert shown == ["Unbelievably", "café", "漢", "字", "thermometers"]
        assert check(engine).rows["none", 0].size == 0
        engine.add([Document(long, id="long")])
        found = check(engine)
        assert found.widths == {128}
        assert sum(packed.size for (key, _), packed in found.rows.items() if key == "long") > 600
        (hit,) = engine.search(text, k=1, explain=True).hits
        assert hit.explanation is not None
        assert hit.explanation.attention_score == pytest.approx(1.0, abs=0.03)
    _, (cut,) = minilm.embed_with_words([long], query=False)
    assert cut.spans.tolist() == [[5 * n, 5 * n + 4] for n in range(254)]


@pytest.mark.model
@pytest.mark.parametrize("side", ["right", "left"])
def test_words_are_their_own_tokens_however_they_are_padded(
    minilm: SentenceTransformerEmbedder, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """In one batch of unlike lengths, behind a prompt of two tokens, one text past the window."""
    monkeypatch.setattr(minilm.model.tokenizer, "padding_side", side)
    shape = replace(minilm.shape, pads_left=side == "left", query_prompt="search: ")
    monkeypatch.setattr(minilm, "shape", shape)
    monkeypatch.setattr(minilm, "_budget", 1 << 16)
    monkeypatch.setitem(minilm.model.prompts, "query", "search: ")
    batch = ["a cat sat", "word " * 300, "one more"]
    raw = minilm.model.encode_query(batch, output_value=None, convert_to_numpy=False)
    _, found = minilm.embed_with_words(batch, query=True)
    shown = [[text[a:b] for a, b in one.spans] for text, one in zip(batch, found, strict=True)]
    assert shown == [["a", "cat", "sat"], ["word"] * 252, ["one", "more"]]
    for kept, one in zip(found, raw, strict=True):
        states = one["token_embeddings"][one["attention_mask"].bool()]
        own = states.float().cpu().numpy()[3:-1]
        np.testing.assert_allclose(kept.vectors, unit_rows(own), atol=1e-5)
