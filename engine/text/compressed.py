"""Gzip, decompressed as it is read: damage comes where it is, after all that lies before it."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import IO, Any

from engine.text.sources import GZIP, Source

_MAGIC = b"\x1f\x8b"


class GunzipError(OSError):
    """A gzip that is damaged or cut off; the message says how."""


def is_gzip(source: Source, file: IO[bytes]) -> bool:
    """By the name of a file, by the first bytes of standard input; `file` is left at its start."""
    if source.path is not None:
        return source.path.suffix.lower() == GZIP
    return begins_as_gzip(file)


def begins_as_gzip(file: IO[bytes]) -> bool:
    """By the first bytes of a file at its start, where it is left."""
    head = file.read(len(_MAGIC))
    file.seek(0)
    return head == _MAGIC


class Gunzipped(io.BufferedReader):
    """The bytes in a gzip, which can be rewound to their start but not sought in.

    Reading raises `GunzipError` at the damage; where `lenient`, the bytes end there. `file` stays
    open and is the caller's.
    """

    def __init__(self, file: IO[bytes], *, lenient: bool = False) -> None:
        self._gunzip = _Gunzip(file, lenient)
        super().__init__(self._gunzip)

    def is_damaged(self) -> bool:
        """Whether damage was met so far."""
        return self._gunzip.damaged


class _Gunzip(io.RawIOBase):
    def __init__(self, file: IO[bytes], lenient: bool) -> None:
        super().__init__()
        self.damaged = False
        self._file = file
        self._lenient = lenient
        self._members = gzip.GzipFile(fileobj=file, mode="rb")
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if offset != 0 or whence != io.SEEK_SET:
            raise io.UnsupportedOperation("a gzip is only rewound")
        self._file.seek(0)
        self._members = gzip.GzipFile(fileobj=self._file, mode="rb")
        self._at = 0
        return 0

    def readinto(self, buffer: Any) -> int:
        try:
            read = self._members.read1(len(buffer))
            if not read and not self._at and not self._file.tell():
                raise EOFError("it is empty")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self.damaged = True
            if self._lenient:
                return 0
            raise GunzipError(str(error)) from None
        buffer[: len(read)] = read
        self._at += len(read)
        return len(read)
