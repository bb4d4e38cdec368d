"""Long texts to passages that fit the model's window, measured in the model's own tokens.

Every character that is more than white space lies in some passage: nothing is dropped.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

_BREAKS = (
    re.compile(r"\n\s*\n\s*"),
    re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])[」』）”’]*|\n+"),
    re.compile(r"\s+"),
)
"""Where a text may be cut, best first: between paragraphs, sentences, words."""
_SPACE = re.compile(r"\s*")


def windows(
    text: str, tokens: Sequence[tuple[int, int]], size: int, overlap: int
) -> list[tuple[int, int]]:
    """Character spans [start, end) covering `text`, each of at most `size` tokens.

    `tokens` are the character spans of the text's tokens, in order; a token may begin with the
    white space before its word, and several may share one character, which is never cut. A window
    ends at the best break in its last third, else where it is full; the next begins up to
    `overlap` tokens before that end, at a break where there is one. An overlap of at most a third
    of `size` keeps every window's end beyond that of the one before.
    """
    if len(tokens) <= size:
        return [(0, len(text))]
    starts = [start for start, _ in tokens]
    ends = [end for _, end in tokens]
    breaks = [[match.end() for match in pattern.finditer(text)] for pattern in _BREAKS]
    spans: list[tuple[int, int]] = []
    first = begin = 0
    while len(tokens) - first > size:
        full = max(starts[first + size], ends[first])
        floor = max(starts[first + size - max(1, size // 3)], ends[first] - 1)
        cut = _last_break(breaks, floor, full)
        end = full if cut is None else cut
        spans.append((begin, end))
        resume = end
        back = ends[max(first, bisect_right(ends, end) - overlap - 1)]
        if overlap and back < end:
            cut = _first_break(breaks, back, end)
            resume = back if cut is None else cut
        first = bisect_right(ends, resume)
        begin = _end_of_space(text, resume)
    if begin < len(text):
        spans.append((begin, len(text)))
    return spans


def _end_of_space(text: str, start: int) -> int:
    found = _SPACE.match(text, start)
    return start if found is None else found.end()


def _last_break(breaks: Sequence[Sequence[int]], floor: int, full: int) -> int | None:
    """The last cut in (floor, full] of the best kind that has one."""
    for places in breaks:
        at = bisect_right(places, full) - 1
        if at >= 0 and places[at] > floor:
            return places[at]
    return None


def _first_break(breaks: Sequence[Sequence[int]], floor: int, end: int) -> int | None:
    """The first cut in [floor, end) of the best kind that has one."""
    for places in breaks:
        at = bisect_left(places, floor)
        if at < len(places) and places[at] < end:
            return places[at]
    return None
