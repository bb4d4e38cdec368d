"""What counts as the same text, and which texts cannot be kept.

Texts are embedded and hashed in Unicode's composed form (NFC), so that two spellings of the same
characters are one text; the original is what is stored and shown.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence

HASH_BYTES = 16
_JAMO = "\u1161\u11ff"
"""Vowels and endings of Hangul syllables, which join what stands before them."""


def composed(text: str) -> str:
    """The text in NFC."""
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def digest(part: bytes, *others: bytes) -> bytes:
    """A 128-bit BLAKE2b hash of the parts, told apart by their lengths."""
    *first, last = part, *others
    head = b"".join([len(one).to_bytes(8, "little") + one for one in first])
    state = hashlib.blake2b(head + len(last).to_bytes(8, "little"), digest_size=HASH_BYTES)
    state.update(last)
    return state.digest()


def is_blank(text: str) -> bool:
    """No character that is more than white space, a control or an invisible mark."""
    if text[:1].isalnum():
        return False
    return all(c.isspace() or unicodedata.category(c) in ("Cc", "Cf") for c in text)


def fault(text: str) -> str | None:
    """Why a text cannot be stored, or None: it must have a UTF-8 form."""
    if text.isascii():
        return None
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        point = ord(text[error.start])
        if 0xDC80 <= point <= 0xDCFF:
            return "it holds bytes that are not UTF-8"
        return f"it holds a lone surrogate (U+{point:04X})"
    return None


def original_places(text: str) -> Sequence[int]:
    """For each place between characters of `composed(text)`, its place in the text itself.

    A composed character that several characters make begins where they begin; the text is cut
    where no composition crosses: before a starter that is no part of one before it.
    """
    if unicodedata.is_normalized("NFC", text):
        return range(len(text) + 1)
    places: list[int] = []
    start = 0
    for end in [*(n for n in range(1, len(text)) if _begins(text, n)), len(text)]:
        made = len(unicodedata.normalize("NFC", text[start:end]))
        places += [start] * min(1, made) + [min(start + n, end) for n in range(1, made)]
        start = end
    return [*places, len(text)]


def _begins(text: str, at: int) -> bool:
    """No composition joins the character at a place to the one before it."""
    one = text[at]
    joins = unicodedata.combining(one) or _JAMO[0] <= one <= _JAMO[1]
    return not joins and len(unicodedata.normalize("NFC", text[at - 1 : at + 1])) >= 2
