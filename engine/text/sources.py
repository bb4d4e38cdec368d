"""Finding files, opening them, and knowing their encoding."""

from __future__ import annotations

import codecs
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
        path = Path(given)
        if path.is_dir():
            found = sorted(_walk(path))
            sources += [Source(p.as_posix(), p, p.stat().st_size) for p in found]
            if not found:
                known = ", ".join(sorted(SUFFIXES))
                refusals.append(refused(given, f"holds no file attendex reads ({known})"))
        elif path.exists():
            sources.append(Source(path.as_posix(), path, path.stat().st_size))
        else:
            refusals.append(refused(given, "no such file or directory"))
    return sources, refusals


def _walk(directory: Path) -> Iterator[Path]:
    for path in directory.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(directory).parts)
        if not hidden and path.suffix.lower() in SUFFIXES and path.is_file():
            yield path


def refused(where: str, detail: str) -> Refusal:
    """A file or row that cannot be read."""
    return Refusal(where, SkipReason.UNREADABLE, detail)


def open_bytes(source: Source) -> IO[bytes]:
    """The source's bytes, seekable: standard input is spooled to a temporary file."""
    if source.path is not None:
        return source.path.open("rb")
    spool = tempfile.TemporaryFile()  # noqa: SIM115  (the caller closes it)
    shutil.copyfileobj(sys.stdin.buffer, spool)
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
    for mark, name in _BOMS:
        if head.startswith(mark):
            return Encoding(name)
    valid, invalid = _count_utf8(raw)
    raw.seek(0)
    if not invalid:
        return Encoding("utf-8")
    if 3 * valid >= invalid:
        return Encoding("utf-8", "surrogateescape", f"holds {invalid} bytes that are not UTF-8")
    from charset_normalizer import from_bytes

    best = from_bytes(raw.read(_DETECT_BYTES)).best()
    raw.seek(0)
    name = best.encoding if best is not None else "cp1252"
    return Encoding(name, "replace", f"is not UTF-8; read as {name}")


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
