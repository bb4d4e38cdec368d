"""Finding files, opening them, and knowing their encoding."""

from __future__ import annotations

import codecs
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from engine.types import Refusal, SkipReason

STDIN = "-"
SUFFIXES = {
    ".txt": "lines",
    ".md": "whole",
    ".csv": "table",
    ".tsv": "table",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
}
"""The files attendex reads, and the reader of each."""
_DETECT_BYTES = 1 << 20
_USUAL = "cp1252"
"""The encoding of most files that are not UTF-8; Latin-1's letters are the same in it."""
_UNUSUAL = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
"""Bytes that are no character in it."""
_ABSENT = "no such file or directory"
_COPY_BYTES = 1 << 16
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True, slots=True)
class Source:
    """One file (or standard input). `uri` is its absolute path; `name` is as the user gave it."""

    name: str
    path: Path | None
    size: int

    @property
    def uri(self) -> str | None:
        return None if self.path is None else self.path.resolve().as_posix()


def find_sources(paths: Sequence[str]) -> tuple[list[Source], list[Refusal]]:
    """The files under `paths`, in a stable order, and what could not be found or read.

    In a directory only files of known suffixes are taken, hidden ones are not.
    """
    sources: list[Source] = []
    refusals: list[Refusal] = []
    for given in paths:
        if given == STDIN:
            sources.append(Source("stdin", None, 0))
            continue
        try:
            found = _find(Path(given))
        except OSError as error:
            refusals.append(refused(given, f"cannot be read ({error.strerror})"))
            continue
        sources += found
        if not found:
            known = ", ".join(sorted(SUFFIXES))
            empty = Path(given).is_dir()
            detail = f"holds no file attendex reads ({known})" if empty else _ABSENT
            refusals.append(refused(given, detail))
    return sources, refusals


def _find(path: Path) -> list[Source]:
    if not path.exists():
        return []
    found = sorted(_walk(path)) if path.is_dir() else [path]
    return [Source(p.as_posix(), p, p.stat().st_size) for p in found]


def _walk(directory: Path) -> Iterator[Path]:
    for path in directory.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(directory).parts)
        if not hidden and path.suffix.lower() in SUFFIXES and path.is_file():
            yield path


def refused(where: str, detail: str) -> Refusal:
    """A file or row that cannot be read."""
    return Refusal(where, SkipReason.UNREADABLE, detail)


def open_bytes(source: Source) -> IO[bytes]:
    """The source's bytes, seekable: standard input and pipes are spooled to a temporary file."""
    if source.path is None:
        return _spooled(sys.stdin.buffer)
    stream = source.path.open("rb")
    if stream.seekable():
        return stream
    with stream:
        return _spooled(stream)


def _spooled(stream: IO[bytes]) -> IO[bytes]:
    spool = tempfile.TemporaryFile()  # noqa: SIM115  (the caller closes it)
    shutil.copyfileobj(stream, spool)
    spool.seek(0)
    return spool


@dataclass(frozen=True, slots=True)
class Encoding:
    """A codec, its error handler, and a note for the user where the file is no plain UTF."""

    name: str
    errors: str = "strict"
    note: str | None = None


def detect_encoding(raw: IO[bytes]) -> Encoding:
    """The encoding of seekable bytes, left at their start.

    A byte order mark decides; then UTF-8, also where a few bytes of it are damaged (they stay
    recognisable as surrogates, so that their rows can be refused); else the best guess.
    """
    head = raw.read(4)
    raw.seek(0)
    name = next((name for mark, name in _BOMS if head.startswith(mark)), None)
    if name not in (None, "utf-8-sig"):
        return Encoding(name)
    valid, invalid = _count_utf8(raw)
    raw.seek(0)
    if not invalid:
        return Encoding(name or "utf-8")
    if name is not None or 3 * valid >= invalid:
        note = f"holds {invalid} bytes that are not UTF-8"
        return Encoding(name or "utf-8", "surrogateescape", note)
    guess = _guess(_beyond_ascii(raw))
    raw.seek(0)
    return Encoding(guess, "replace", f"is not UTF-8; read as {guess}")


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


def _count_utf8(raw: IO[bytes]) -> tuple[int, int]:
    """Well-formed characters beyond ASCII, and bytes that are not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    valid = invalid = 0
    while block := raw.read(_COPY_BYTES):
        text = decoder.decode(block)
        if not text.isascii():
            damaged = sum("\udc80" <= c <= "\udcff" for c in text)
            valid += sum(c > "\x7f" for c in text) - damaged
            invalid += damaged
    invalid += len(decoder.decode(b"", final=True))
    return valid, invalid
