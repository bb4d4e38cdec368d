"""Queries made of others, and in a context, by vectors computed by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Document, Engine
from engine.arrays import Float32Array
from engine.combining import parse
from engine.errors import DocumentNotFoundError, InvalidInputError, ModelError
from engine.types import Word, Words
from engine.vectors import unit_rows
from tests.tokens import HandEmbedder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Engine]:
    with Engine.create(tmp_path / "s", model=HandEmbedder()) as engine:
        yield engine


@pytest.mark.parametrize(
    ("sum_", "plus", "minus"),
    [
        ("king - man + woman", ("king", "woman"), ("man",)),
        ("POL-358 + x", ("POL-358", "x"), ()),
        ("-a", ("-a",), ()),
        ("a -b", ("a -b",), ()),
        ("- a\t+\nC++", ("C++",), ("a",)),
        ("a", ("a",), ()),
    ],
)
def test_sums_are_read(sum_: str, plus: tuple[str, ...], minus: tuple[str, ...]) -> None:
    found = parse(sum_)
    assert (found.plus, found.minus) == (plus, minus)


@pytest.mark.parametrize("sum_", ["", " ", "-", "- -", "a -", "a - - b", "a + + b", "+"])
def test_what_is_no_sum(sum_: str) -> None:
    with pytest.raises(InvalidInputError, match="no sum of texts"):
        parse(sum_)


def unit(*texts: str) -> Any:
    rows = unit_rows(HandEmbedder().embed_queries(list(texts)))
    return rows.astype(np.float64)


def test_a_combination_is_searched_by_its_vector(store: Engine) -> None:
    texts = ["apple boat", "apple sea", "boat sea sun", "Sand", "sun sand apple", "boat"]
    store.add([Document(text, f"d{n}") for n, text in enumerate(texts)])
    found = store.combine(plus=["sand", "boat"], minus=["sea"], like=["d0"], unlike=["sun"])
    assert found.query == "sand + boat + like d0 - sea not sun"
    assert found.legs == ("dense",)
    total = unit("sand", "boat", "apple boat").sum(axis=0) - unit("sea")[0]
    total -= (total @ unit("sun")[0]) * unit("sun")[0]
    expected = unit(*texts) @ (total / np.linalg.norm(total))
    order = [n for n in np.argsort(-expected, kind="stable") if n not in (0, 3, 5)]
    assert [hit.id for hit in found.hits] == [f"d{n}" for n in order]
    assert [hit.score for hit in found.hits] == pytest.approx(expected[order], abs=1e-6)


def test_nothing_is_shared_with_any_text_it_is_unlike(store: Engine) -> None:
    """`sea boat` and `sea sun` share the sea: taken out in turn, some of the first would return."""
    store.add([Document(text, text) for text in ("boat sea", "sun sea", "sun boat", "apple")])
    taken = ["sea boat", "sea sun"]
    plus = ["apple sea boat sun"]
    one, other, twice = (
        {hit.id: hit.score for hit in store.combine(plus=plus, unlike=unlike).hits}
        for unlike in (taken, taken[::-1], [*taken, taken[0]])
    )
    assert one["boat sea"] == pytest.approx(0.0, abs=1e-6)
    assert one["sun sea"] == pytest.approx(0.0, abs=1e-6)
    assert one == pytest.approx(other, abs=1e-6)
    assert one == pytest.approx(twice, abs=1e-6)


@pytest.mark.parametrize(
    "given_",
    [
        {},
        {"minus": ["apple"]},
        {"plus": ["apple"], "minus": ["apple"]},
        {"plus": ["apple"], "unlike": ["apple"]},
        {"plus": "apple"},
        {"plus": [5]},
        {"plus": [" "]},
        {"plus": ["?!"]},
        {"plus": ["apple"], "k": 0},
    ],
)
def test_what_is_no_combination(store: Engine, given_: dict[str, Any]) -> None:
    store.add(["apple"])
    with pytest.raises(InvalidInputError):
        store.combine(**given_)
    with pytest.raises(DocumentNotFoundError):
        store.combine(like=["nobody"])


def test_a_context_is_part_of_the_query(store: Engine) -> None:
    """The vector is that of the named context and of the word; the words are the text's own."""
    store.add([Document(text, text) for text in ("boat sea", "boat sun", "sand")])
    found = store.search("boat", context="the sea", mode="dense", explain=True)
    word = unit_rows(HandEmbedder().embed_with_words(["boat"], query=True)[1][0].vectors)[0]
    vector = unit("boat the sea")[0] + word.astype(np.float64)
    expected = unit("boat sea", "boat sun", "sand") @ (vector / np.linalg.norm(vector))
    assert [hit.id for hit in found.hits] == ["boat sea", "boat sun", "sand"]
    assert [hit.similarity for hit in found.hits] == pytest.approx(expected, abs=1e-6)
    shown = found.hits[0].explanation
    assert shown is not None
    assert shown.words_a == (Word("boat", 0, 4),)
    for context in ("", 5, "\ud800"):
        with pytest.raises(InvalidInputError, match="context"):
            store.search("boat", context=context)  # type: ignore[arg-type]


class Faulty(HandEmbedder):
    """Gives the words of a query wrongly."""

    fault = ""

    def embed_with_words(
        self, texts: Sequence[str], *, query: bool
    ) -> tuple[Float32Array, list[Words]]:
        rows, words = super().embed_with_words(texts, query=query)
        if query and self.fault == "count":
            return rows, words[1:]
        if query and self.fault == "width":
            return rows, [Words(one.spans, one.vectors[:, :9]) for one in words]
        return rows, words


@pytest.mark.parametrize("fault", ["count", "width"])
def test_a_model_s_faulty_words_are_its_error(tmp_path: Path, fault: str) -> None:
    with Engine.create(tmp_path / "s", model=Faulty()) as engine:
        engine.add(["apple boat"])
        engine._models.load().fault = fault  # type: ignore[attr-defined]
        with pytest.raises(ModelError, match="words"):
            engine.search("apple")
