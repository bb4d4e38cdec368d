"""Word vectors as bytes: what is lost is bounded, and every word stays where it was."""

from __future__ import annotations

import math
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.arrays import Float32Array
from engine.text.stopwords import content
from engine.text.unicode import composed, original_places
from engine.types import Words
from engine.vectors import unit_rows
from engine.words import Packed, fit, is_intact, pack, project, repack, unpack

EXAMPLE = bytes.fromhex("a17f 751e 03000000 0500")
"""(-.6, .8) at characters 3 to 8: codes -95 (-95.25) and 127; 1 / |(95, 127)| = .0063 in fp16."""


def random_words(n: int, width: int, seed: int = 0) -> Words:
    chance = np.random.default_rng(seed)
    rows = unit_rows(chance.standard_normal((n, width)).astype(np.float32))
    ends = np.cumsum(chance.integers(1, 9, n)).astype(np.int64)
    return Words(np.stack([ends - 1, ends], axis=1), rows)


def test_packed_by_hand() -> None:
    one = Words(np.array([[3, 8]]), np.array([[-0.6, 0.8]], np.float32))
    packed = pack(one, None)
    assert packed == Packed(2, EXAMPLE)
    assert (packed.size, packed.is_sound) == (1, True)
    back = unpack(packed)
    scale = (1 + 629 / 1024) * 2**-8
    assert back.spans.tolist() == [[3, 8]]
    assert back.vectors.tolist() == [[-95 * scale, 127 * scale]]


@given(st.integers(0, 12), st.integers(1, 300), st.integers(0, 99))
def test_what_packing_loses_is_bounded(n: int, width: int, seed: int) -> None:
    """A code is off by at most 1/2, a row of codes by sqrt(w) / 2 of 127 / max|x|, and made a unit
    row again by twice that share; the scale is off by 2**-11 of itself."""
    given_ = random_words(n, width, seed)
    packed = pack(given_, None)
    assert len(packed.data) == n * (width + 8)
    back = unpack(packed)
    np.testing.assert_array_equal(back.spans, given_.spans)
    largest = np.abs(given_.vectors).max(axis=1, initial=0.0)
    lost = np.linalg.norm(back.vectors - given_.vectors, axis=1)
    assert (lost <= math.sqrt(width) * largest / 127 + 2**-11 + 1e-6).all()
    assert (np.abs(np.linalg.norm(back.vectors, axis=1) - 1) <= 2**-11 + 1e-6).all()


def test_several_passages_end_to_end() -> None:
    parts = [random_words(n, 5, n) for n in (2, 0, 3)]
    back = unpack(*(pack(part, None) for part in parts))
    alone = [unpack(pack(part, None)) for part in parts]
    np.testing.assert_array_equal(back.vectors, np.concatenate([one.vectors for one in alone]))
    np.testing.assert_array_equal(back.spans, np.concatenate([one.spans for one in parts]))


def test_a_word_too_long_for_its_length_and_a_place_far_off() -> None:
    spans = np.array([[0, 65_535], [10, 70_010], [3_000_000_000, 3_000_000_001]])
    back = unpack(pack(Words(spans, np.eye(3, dtype=np.float32)), None))
    assert back.spans.tolist() == [[0, 65_535], [10, 65_545], [3_000_000_000, 3_000_000_001]]


def test_directions_by_hand() -> None:
    """X'X = diag(3, 2, 1, 0), whatever the signs of the rows."""
    e = np.eye(4, dtype=np.float32)
    rows = np.stack([e[2], -e[0], e[1], e[0], -e[1], -e[0]])
    np.testing.assert_array_equal(fit(rows, 2), e[:, :2])


def test_directions_are_those_of_a_decomposition_of_all_rows() -> None:
    chance = np.random.default_rng(3)
    spread = np.linspace(3, 0.1, 20)
    rows = unit_rows((chance.standard_normal((9000, 20)) * spread).astype(np.float32))
    found = fit(rows, 6)
    assert found.dtype == np.float32
    assert (found.shape, found.flags.c_contiguous) == ((20, 6), True)
    _, _, right = np.linalg.svd(rows.astype(np.float64), full_matrices=False)
    twin = right[:6].T
    twin *= np.sign(twin[np.abs(twin).argmax(axis=0), range(6)])
    np.testing.assert_allclose(found, twin, atol=1e-5)
    np.testing.assert_array_equal(found, fit(rows.copy(), 6))


def twin_projection(rows: Float32Array, directions: Float32Array) -> Float32Array:
    wide = rows.astype(np.float64) @ directions.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return (wide / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def test_projection_equals_a_twin_and_knows_no_nan() -> None:
    directions = fit(random_words(400, 30, 1).vectors, 8)
    rows = random_words(50, 30, 2).vectors
    np.testing.assert_allclose(
        project(rows, directions), twin_projection(rows, directions), atol=1e-6
    )
    e = np.eye(4, dtype=np.float32)
    outside = project(e[[0, 3]], e[:, :2])
    np.testing.assert_array_equal(outside, [[1, 0], [0, 0]])
    zero = unpack(pack(Words(np.array([[0, 1], [2, 3]]), e[[0, 3]]), e[:, :2]))
    np.testing.assert_allclose(zero.vectors, [[1, 0], [0, 0]], atol=2**-11)


def test_repacked_once() -> None:
    directions = fit(random_words(400, 30, 1).vectors, 8)
    full = pack(random_words(6, 30, 5), None)
    small = repack(full, directions)
    assert small.width == 8
    expected = twin_projection(unpack(full).vectors, directions)
    np.testing.assert_allclose(unpack(small).vectors, expected, atol=8**0.5 / 127 + 2**-11)
    assert repack(small, directions) is small
    empty = pack(Words(np.empty((0, 2), np.int64), np.empty((0, 30), np.float32)), directions)
    assert empty == Packed(8, b"")


@pytest.mark.parametrize(
    ("changed", "length"),
    [
        (EXAMPLE[:-1], 8),
        (b"\xa2" + EXAMPLE[1:], 8),
        (EXAMPLE[:2] + b"\x76" + EXAMPLE[3:], 8),
        (EXAMPLE[:2] + b"\xff\xff" + EXAMPLE[4:], 8),
        (EXAMPLE[:-2] + b"\x00\x00", 8),
        (EXAMPLE, 7),
    ],
)
def test_what_is_not_intact(changed: bytes, length: int) -> None:
    assert is_intact(Packed(2, EXAMPLE), 8)
    assert is_intact(Packed(2, b""), 0)
    assert not is_intact(Packed(2, changed), length)
    assert not Packed(0, b"").is_sound


def test_words_with_content() -> None:
    rows = np.eye(4, dtype=np.float32)
    text = "The cat isn’t here"
    spans = np.array([[0, 3], [4, 7], [8, 13], [14, 18]])
    kept = content(text, Words(spans, rows))
    assert kept.spans.tolist() == [[4, 7]]
    assert kept.vectors.tolist() == rows[[1]].tolist()
    none = Words(spans[[0, 3]], rows[[0, 3]])
    assert content(text, none) is none


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("plain é", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("cafe\u0301 x", [0, 1, 2, 3, 5, 6, 7]),
        ("\u1112\u1161\u11ab\u1100", [0, 3, 4]),
        ("\u0cc6\u0cc2\u0cd5a", [0, 3, 4]),
        ("x\u0301\u0f73y", [0, 1, 2, 3, 3, 4]),
        ("\u0958", [0, 1, 1]),
        ("o\u0327\u0301x", [0, 1, 3, 4]),
        ("e\u0301👩‍👧e\u0301", [0, 2, 3, 4, 5, 7]),
        ("\u05e9\u05bc\u05c1a", [0, 1, 2, 3, 4]),
        ("A\u030a\u0323 b", [0, 1, 3, 4, 5]),
    ],
)
def test_places_by_hand(text: str, places: list[int]) -> None:
    assert list(original_places(text)) == places
    assert len(places) == len(composed(text)) + 1


JOINING = (
    *"aeoAKx 漢か👍é\u212b\u0958\u2126",
    *map(chr, range(0x300, 0x330)),
    *"\u1100\u1112\u1161\u1175\u11a8\u11c2\uac00\u304b\u3099\u309a",
    *"\u0cc6\u0cc2\u0cd5\u0dd9\u0dcf\u0dca\u09c7\u09be\u0b47\u0b56\u0f71\u0f73\u0f75\u0f81",
    *"\u05e9\u05bc\u05c1\u0627\u0653\u0928\u093c\U000110a5\U000110ba\u0344\u0345\u1fc1",
)


@given(st.text(st.sampled_from(JOINING), max_size=12) | st.text(max_size=12))
def test_pieces_joined_are_the_composed_text(text: str) -> None:
    """Wherever the text can be cut before a character that is no mark, the place is that cut."""
    whole, places = composed(text), list(original_places(text))
    assert len(places) == len(whole) + 1
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0, len(text))
    for at in range(1, len(text)):
        before, after = composed(text[:at]), composed(text[at:])
        if before + after == whole and not unicodedata.combining(
            unicodedata.normalize("NFD", text[at])[0]
        ):
            assert places[len(before)] == at
