"""Which encoding the bytes of a text are in."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

_DETECT_BYTES = 1 << 20
_USUAL = "cp1252"
"""The encoding of most files that are not UTF-8; Latin-1's letters are the same in it."""
_UNUSUAL = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
"""Bytes that are no character in it."""
_COPY_BYTES = 1 << 16
_HEAD_BYTES = 1 << 12
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True, slots=True)
class Encoding:
    """A codec, its error handler, and a note for the user where the file is no plain UTF."""

    name: str
    errors: str = "strict"
    note: str | None = None


def detect_encoding(raw: IO[bytes], *, is_cut: Callable[[], bool] = lambda: False) -> Encoding:
    """The encoding of seekable bytes, left at their start.

    `is_cut` is asked at their end: half a character there is then no sign of anything.

    A byte order mark decides; then the zero bytes of UTF-16; then UTF-8, also where a few bytes of
    it are damaged (they stay recognisable as surrogates, so that their rows can be refused); else
    the best guess. Raises `UnicodeError` for what looks like no text at all.
    """
    head = raw.read(_HEAD_BYTES)
    raw.seek(0)
    name = next((name for mark, name in _BOMS if head.startswith(mark)), None)
    if name not in (None, "utf-8-sig"):
        return Encoding(name)
    if wide := _unmarked_utf16(head):
        return Encoding(wide, "replace", f"has no byte order mark; read as {wide}")
    valid, invalid = _count_utf8(raw, is_cut)
    raw.seek(0)
    if not invalid:
        return Encoding(name or "utf-8")
    if name is not None or 3 * valid >= invalid:
        note = f"holds {invalid} bytes that are not UTF-8"
        return Encoding(name or "utf-8", "surrogateescape", note)
    if b"\0" in head:
        raise UnicodeError("it looks like a binary file")
    guess = _guess(_beyond_ascii(raw))
    raw.seek(0)
    return Encoding(guess, "replace", f"is not UTF-8; read as {guess}")


def _unmarked_utf16(head: bytes) -> str | None:
    """The UTF-16 whose mostly Latin text the bytes seem to be: every other byte of it is zero."""
    pairs = len(head) // 2
    for name, zeros, others in (
        ("utf-16-le", head[1::2].count(0), head[0::2].count(0)),
        ("utf-16-be", head[0::2].count(0), head[1::2].count(0)),
    ):
        if pairs >= 4 and zeros > 0.7 * pairs and others < 0.05 * pairs:
            return name
    return None


def _beyond_ascii(raw: IO[bytes]) -> bytes:
    """The first lines that hold more than ASCII: nothing else tells encodings apart."""
    sample = bytearray()
    while len(sample) < _DETECT_BYTES and (line := raw.readline(_DETECT_BYTES)):
        if not line.isascii():
            sample += line
    return bytes(sample)


def _guess(sample: bytes) -> str:
    """The likeliest encoding: of a text mostly in ASCII letters the usual one, unless another
    makes more of a known language of it."""
    from charset_normalizer import from_bytes

    matches = from_bytes(sample)
    best = matches.best()
    if best is None:
        return _USUAL
    latin = len(re.findall(rb"[A-Za-z]", sample)) >= len(re.findall(rb"[\x80-\xff]", sample))
    if latin and not _UNUSUAL.search(sample):
        known = max((m.coherence for m in matches if _USUAL in m.could_be_from_charset), default=0)
        if best.coherence <= known:
            return _USUAL
    return best.encoding


def _count_utf8(raw: IO[bytes], is_cut: Callable[[], bool]) -> tuple[int, int]:
    """Well-formed characters beyond ASCII, and bytes that are not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    valid = invalid = 0
    while block := raw.read(_COPY_BYTES):
        text = decoder.decode(block)
        if not text.isascii():
            damaged = sum("\udc80" <= c <= "\udcff" for c in text)
            valid += sum(c > "\x7f" for c in text) - damaged
            invalid += damaged
    if not is_cut():
        invalid += len(decoder.decode(b"", final=True))
    return valid, invalid
