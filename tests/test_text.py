from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text import json_text, unicode
from engine.text.chunking import windows

Spans = list[tuple[int, int]]


def words(text: str) -> Spans:
    """Words and signs, without the space around them."""
    return [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]


def pieces(text: str) -> Spans:
    """Parts of words, of two characters."""
    return [match.span() for match in re.finditer(r"\w\w?|[^\w\s]", text)]


def led(text: str) -> Spans:
    """Words with the space before them."""
    return [match.span() for match in re.finditer(r"\s?(?:\w+|[^\w\s])", text)]


def syllables(text: str) -> Spans:
    """Three tokens for every character outside ASCII, one for every other."""
    found = [match.span() for match in re.finditer(r"\S", text)]
    return [span for span in found for _ in range(1 if text[span[0]].isascii() else 3)]


def deaf(text: str) -> Spans:
    """Words alone: no token covers signs and controls."""
    return [match.span() for match in re.finditer(r"\w+", text)]


TOKENIZERS = [words, pieces, led, syllables, deaf]
PARTS = [
    "a",
    "bcd",
    "éß",
    "한국",
    "。」",
    ". ",
    "! ",
    '." ',
    "…",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\r\n",
    "\x01",
]
texts = st.lists(st.sampled_from(PARTS), max_size=60).map("".join)


@settings(max_examples=500, deadline=None)
@given(
    text=texts,
    tokenize=st.sampled_from(TOKENIZERS),
    size=st.integers(1, 12),
    overlap=st.integers(0, 12),
)
def test_windows_cover_the_text_and_hold_at_most_size_tokens(
    text: str, tokenize: Callable[[str], Spans], size: int, overlap: int
) -> None:
    tokens = tokenize(text)
    spans = windows(text, tokens, size, overlap)
    covered = {place for start, end in spans for place in range(start, end)}
    assert [c for place, c in enumerate(text) if place not in covered and not c.isspace()] == []
    firsts = [start for start, _ in spans]
    assert firsts == sorted(set(firsts))
    for start, end in spans:
        held = [span for span in tokens if span[0] < end and span[1] > start]
        assert len(held) <= size or len(set(held)) == 1
        assert not text[start:end].isspace() or len(spans) == 1


@settings(max_examples=300, deadline=None)
@given(text=texts, tokenize=st.sampled_from(TOKENIZERS), size=st.integers(6, 15), data=st.data())
def test_windows_share_at_most_the_overlap_and_go_on(
    text: str, tokenize: Callable[[str], Spans], size: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, size // 3))
    tokens = tokenize(text)
    spans = windows(text, tokens, size, overlap)
    for (start, end), (begin, stop) in pairwise(spans):
        assert start < begin <= stop > end
        shared = [span for span in tokens if span[0] >= begin and span[1] <= end]
        assert len(shared) <= overlap
        if overlap == 0:
            assert begin >= end


TEXT = (
    "One two three. Four five six seven.\n\n"
    "Eight nine ten. Eleven twelve thirteen fourteen fifteen sixteen."
)


def test_the_windows_of_a_text_cut_by_hand() -> None:
    found = windows(TEXT, words(TEXT), 6, 2)
    assert found == [(0, 25), (15, 37), (29, 53), (48, 85), (67, 101)]
    assert [TEXT[start:end] for start, end in found] == [
        "One two three. Four five ",
        "Four five six seven.\n\n",
        "seven.\n\nEight nine ten. ",
        "ten. Eleven twelve thirteen fourteen ",
        "thirteen fourteen fifteen sixteen.",
    ]


@pytest.mark.parametrize(
    ("text", "size", "overlap", "expected"),
    [
        ("a b c d e f g\n\nh. i j k", 9, 0, ["a b c d e f g\n\n", "h. i j k"]),
        ("a b c d e. f g h i j", 9, 0, ["a b c d e. f g h ", "i j"]),
        ("a b c d e f. g h i j", 9, 0, ["a b c d e f. ", "g h i j"]),
        ("a b c d e f g\nh i j k", 9, 0, ["a b c d e f g\n", "h i j k"]),
        ('a b c "d e." f g h i j', 9, 0, ['a b c "d e." ', "f g h i j"]),
        ("a b c d e 1.5 f g h i", 9, 0, ["a b c d e 1.5 f ", "g h i"]),
        ("漢字漢字漢字。」漢字漢字", 9, 0, ["漢字漢字漢字。」", "漢字漢字"]),
        ("漢字漢字漢字漢字", 3, 1, ["漢字漢", "漢字漢", "漢字漢", "漢字"]),
        ("a b c d e f g", 3, 1, ["a b c ", "c d e ", "e f g"]),
        ("a b c. d e f g h i", 6, 3, ["a b c. d e ", "d e f g h i"]),
        ("a b c d e. f g h i j", 9, 5, ["a b c d e. f g h ", "f g h i j"]),
        ("a b c", 3, 1, ["a b c"]),
        ("", 3, 1, [""]),
        (" \n ", 3, 1, [" \n "]),
        ("  a b c d  ", 2, 0, ["  a b ", "c d  "]),
    ],
)
def test_a_window_ends_at_the_best_break_of_its_last_third(
    text: str, size: int, overlap: int, expected: list[str]
) -> None:
    tokens = [match.span() for match in re.finditer(r"[a-z0-9]+|[^\s\w]|\w", text)]
    assert [text[start:end] for start, end in windows(text, tokens, size, overlap)] == expected


def test_a_window_begins_at_a_word_where_there_is_one() -> None:
    text = "abcdef ghijkl mnopqr"
    found = windows(text, pieces(text), 5, 3)
    assert [text[start:end] for start, end in found] == ["abcdef ghij", "ghijkl mnop", "mnopqr"]


def test_a_character_of_several_tokens_is_not_cut() -> None:
    text = "한국어로"
    for size in (4, 5):
        assert windows(text, syllables(text), size, 0) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert windows(text, syllables(text), 6, 1) == [(0, 2), (2, 4)]
    assert windows(text, syllables(text), 9, 3) == [(0, 3), (2, 4)]
    assert windows(text, syllables(text), 2, 1) == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_composed_is_nfc_and_leaves_other_forms_alone() -> None:
    assert unicode.composed("cafe\u0301") == "café"
    assert unicode.composed("ﬁ x² Å") == "ﬁ x² Å"
    text = "already composed é"
    assert unicode.composed(text) is text


def test_digest_tells_its_parts_apart() -> None:
    written = b"\x02\0\0\0\0\0\0\0ab\x01\0\0\0\0\0\0\0c"
    assert unicode.digest(b"ab", b"c") == hashlib.blake2b(written, digest_size=16).digest()
    found = {
        unicode.digest(*parts) for parts in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"abc", b""])
    }
    assert len(found) == 4


@pytest.mark.parametrize(
    "text", ["", " \t\n", "\u00a0\u3000", "\x00\x1f", "\u200b\u2060\ufeff", "\u00ad"]
)
def test_blank(text: str) -> None:
    assert unicode.is_blank(text)


@pytest.mark.parametrize("text", ["a", " . ", "\u0301", "😀", "\ud800", "\u200b字"])
def test_not_blank(text: str) -> None:
    assert not unicode.is_blank(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("plain, é, 😀, \0", None),
        ("\ud83d\ude00", "it holds a lone surrogate (U+D83D)"),
        ("a\udfff", "it holds a lone surrogate (U+DFFF)"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), "it holds bytes that are not UTF-8"),
    ],
)
def test_fault(text: str, reason: str | None) -> None:
    assert unicode.fault(text) == reason


@pytest.mark.parametrize(
    "text",
    [
        "[-9223372036854775808, -9223372036854775809]",
        "[1, 2, 18446744073709551616]",
        '{"a": [[1, 1e30], [2, 18446744073709551616], [3]]}',
        "[NaN, 1e400]",
        '"\\ud800"',
        '[1, "a", 18446744073709551616]',
        "9223372036854775807",
        "[1.5, -2.5, 0.1]",
        "[" * 700 + "]" * 700,
    ],
)
def test_json_is_what_python_reads(text: str) -> None:
    assert repr(json_text.parsed(text)) == repr(json.loads(text))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_any_json_is_what_python_reads(value: object) -> None:
    text = json.dumps(value)
    assert repr(json_text.parsed(text)) == repr(json.loads(text))


def test_a_key_may_be_left_rounded() -> None:
    text = '{"v": [18446744073709551616], "n": 1}'
    assert json_text.parsed(text) == {"v": [1 << 64], "n": 1}
    assert type(json_text.parsed(text, "v")["v"][0]) is float  # type: ignore[index]
    huge = '{"v": [1], "n": 18446744073709551617}'
    assert json_text.parsed(huge, "v") == {"v": [1], "n": (1 << 64) + 1}
