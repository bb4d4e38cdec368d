"""What counts as the same text, and which texts cannot be kept.

Texts are embedded and hashed in Unicode's composed form (NFC), so that two spellings of the same
characters are one text; the original is what is stored and shown.
"""

from __future__ import annotations

import hashlib
import unicodedata

HASH_BYTES = 16


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
