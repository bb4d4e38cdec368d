"""Finding files, and opening them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, AnyStr

from engine.errors import InvalidInputError
from engine.text.patterns import PatternError, Patterns
from engine.types import Refusal, SkipReason

MOST_READ_WHOLE = 256 << 20
_ELSEWHERE = "is a link out of the directory; name the file itself, or give --follow-links"
STDIN = "-"
SUFFIXES = {
    ".txt": "lines",
    ".md": "whole",
    ".csv": "table",
    ".tsv": "table",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".html": "html",
    ".htm": "html",
    ".pdf": "pdf",
}
"""The files attendex reads, and the reader of each."""
GZIP = ".gz"
"""The suffix that may follow any of them."""
KNOWN = f"{', '.join(sorted(SUFFIXES))}, and {GZIP} of each"
IGNORE_FILE = ".attendexignore"
"""In a directory that is read: patterns of what is left out, written as in a .gitignore."""
_ABSENT = "no such file or directory"


@dataclass(frozen=True, slots=True)
class Source:
    """One file (or standard input). `uri` is its absolute path; `name` is as the user gave it."""

    name: str
    path: Path | None
    size: int

    @property
    def uri(self) -> str | None:
        return None if self.path is None else self.path.resolve().as_posix()

    @property
    def suffix(self) -> str | None:
        """The suffix that tells what it holds, in small letters: that before `.gz`, if any."""
        return None if self.path is None else _suffix(self.path)


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix == GZIP else suffix


def find_sources(
    paths: Sequence[str],
    *,
    glob: Sequence[str] = (),
    exclude: Sequence[str] = (),
    follow_links: bool = False,
) -> tuple[list[Source], list[Refusal]]:
    """The files under `paths`, in a stable order, and what could not be found or read.

    In a directory only files of known suffixes are taken, and hidden ones are not. Symbolic links
    are followed to files below the directory, or with `follow_links` anywhere. There, `glob` keeps
    only files that match one of its patterns, and `exclude`, after the directory's own
    `IGNORE_FILE`, leaves out those that match; both are written as in a .gitignore and see paths
    relative to the directory. What is named itself is always taken. Raises `InvalidInputError` for
    a pattern of `glob` or `exclude` that is none.
    """
    for name, patterns in (("glob", glob), ("exclude", exclude)):
        try:
            Patterns(patterns)
        except PatternError as error:
            raise InvalidInputError(f"{name} {error}") from None
    sources: list[Source] = []
    refusals: list[Refusal] = []
    for given in paths:
        if given == STDIN:
            sources.append(Source("stdin", None, 0))
            continue
        path = Path(given)
        try:
            if path.is_dir():
                found: list[Source | Refusal] = list(
                    _in_directory(path, glob, exclude, follow_links)
                )
            elif path.exists():
                found = [_source(path)]
            else:
                found = [refused(given, _ABSENT)]
        except OSError as error:
            found = [refused(given, f"cannot be read ({error.strerror})")]
        except PatternError as error:
            found = [refused(f"{path.as_posix()}/{IGNORE_FILE}", str(error))]
        if not found:
            chosen = " and the patterns keep" if glob or exclude else ""
            found = [refused(given, f"holds no file attendex reads{chosen} ({KNOWN})")]
        sources += [one for one in found if isinstance(one, Source)]
        refusals += [one for one in found if isinstance(one, Refusal)]
    return sources, refusals


def _source(path: Path) -> Source:
    return Source(path.as_posix(), path, path.stat().st_size)


def _in_directory(
    root: Path, glob: Sequence[str], exclude: Sequence[str], follow_links: bool
) -> Iterator[Source | Refusal]:
    """Raises `PatternError` where the directory's own patterns cannot be read."""
    wanted = Patterns(glob) if glob else None
    unwanted = Patterns([*_own_patterns(root), *exclude])
    files, faults = _walk(root, wanted, unwanted, follow_links)
    yield from faults
    for path in sorted(files):
        try:
            yield _source(path)
        except OSError as error:
            yield refused(path.as_posix(), f"cannot be read ({error.strerror})")


def _own_patterns(root: Path) -> list[str]:
    path = root / IGNORE_FILE
    if not path.exists():
        return []
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise PatternError(f"cannot be read ({error.strerror})") from None
    except UnicodeError as error:
        raise PatternError(f"is not UTF-8 ({error})") from None


def _walk(
    root: Path, wanted: Patterns | None, unwanted: Patterns, follow_links: bool
) -> tuple[list[Path], list[Refusal]]:
    """Files that may be taken, in no order, and what cannot be listed or leads elsewhere."""
    files: list[Path] = []
    faults: list[Refusal] = []
    waiting = [root]
    top = root.resolve()
    seen = {top}
    while waiting:
        directory = waiting.pop()
        try:
            with os.scandir(directory) as entries:
                found = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            faults.append(refused(directory.as_posix(), f"cannot be read ({error.strerror})"))
            continue
        for entry in found:
            path = directory / entry.name
            relative = path.relative_to(root).as_posix()
            if _is_directory(entry, follow_links):
                place = path.resolve() if follow_links else path
                if place not in seen and not unwanted.match_all_in(relative):
                    seen.add(place)
                    waiting.append(path)
            elif _suffix(path) in SUFFIXES and _is_chosen(relative, wanted, unwanted):
                try:
                    if not path.is_file():
                        continue
                    if follow_links or not entry.is_symlink() or _is_below(path, top):
                        files.append(path)
                    else:
                        faults.append(refused(path.as_posix(), _ELSEWHERE))
                except OSError as error:
                    faults.append(refused(path.as_posix(), f"cannot be read ({error.strerror})"))
    return files, sorted(faults, key=lambda fault: fault.where)


def _is_directory(entry: os.DirEntry[str], follow_links: bool) -> bool:
    try:
        return entry.is_dir(follow_symlinks=follow_links)
    except OSError:  # a link to itself
        return False


def _is_chosen(relative: str, wanted: Patterns | None, unwanted: Patterns) -> bool:
    return (wanted is None or wanted.match(relative)) and not unwanted.match(relative)


def _is_below(path: Path, top: Path) -> bool:
    return path.resolve().is_relative_to(top)


def read_whole(stream: IO[AnyStr]) -> AnyStr:
    """All of a stream. Raises `OSError` for more than a program should hold at once."""
    content = stream.read(MOST_READ_WHOLE + 1)
    check_size(len(content))
    return content


def check_size(size: int) -> None:
    """Raises `OSError` for a file, of so many bytes or characters, too large to be read whole."""
    if size > MOST_READ_WHOLE:
        raise OSError(f"it is read whole, and holds more than {MOST_READ_WHOLE >> 20} Mi; split it")


def refused(where: str, detail: str) -> Refusal:
    """A file or row that cannot be read."""
    return Refusal(where, SkipReason.UNREADABLE, detail)


def without_extra(where: str, library: str, extra: str) -> Refusal:
    """A file whose library is not installed."""
    return refused(where, f"needs {library}: pip install 'attendex[{extra}]'")


def open_bytes(source: Source) -> IO[bytes]:
    """The source's bytes, seekable: standard input and pipes are spooled to a temporary file."""
    if source.path is None:
        return spooled(sys.stdin.buffer)
    stream = source.path.open("rb")
    if stream.seekable():
        return stream
    with stream:
        return spooled(stream)


def spooled(stream: IO[bytes]) -> IO[bytes]:
    """A temporary file with what is left of a stream; the caller closes it."""
    spool = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        shutil.copyfileobj(stream, spool)
    except BaseException:
        spool.close()
        raise
    spool.seek(0)
    return spool
