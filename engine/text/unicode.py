"""What counts as the same text, and which texts cannot be kept.

Texts are embedded and hashed in Unicode's composed form (NFC), so that two spellings of the same
characters are one text; the original is what is stored and shown.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence

HASH_BYTES = 16
_FIRST_JOINING = "\u0300"
"""No character before this one joins the one that it follows."""


def composed(text: str) -> str:
    """The text in NFC."""
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def folded(text: str) -> str:
    """The text without what a reader does not read: case, and white space around and between."""
    return " ".join(composed(text).casefold().split())


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


def printable(text: str) -> str:
    """Without control characters, which could steer a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


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
    where neither a composition nor a reordering of marks crosses.
    """
    if unicodedata.is_normalized("NFC", text):
        return range(len(text) + 1)
    places: list[int] = []
    start = 0
    for end in range(1, len(text) + 1):
        if end == len(text) or _parts(text[start:end], text[end]):
            made = len(unicodedata.normalize("NFC", text[start:end]))
            places += [min(start + n, end) for n in range(made)]
            start = end
    return [*places, len(text)]


def _parts(before: str, one: str) -> bool:
    """A character neither composes with what stands before it nor is moved into it."""
    if one < _FIRST_JOINING:
        return True
    first = unicodedata.normalize("NFD", one)[0]
    if unicodedata.combining(first):
        return False
    apart = unicodedata.normalize("NFC", before) + unicodedata.normalize("NFC", one)
    return unicodedata.normalize("NFC", before + one) == apart
