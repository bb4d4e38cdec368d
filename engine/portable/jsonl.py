"""Exports as JSON lines, UTF-8; gzip where the file's name ends in .gz.

With vectors the first line is the header. A vector is a list of the shortest decimals that read
back as the same float32 numbers; where reading them as float64 first would round otherwise, of
the longer ones that are exact.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np
import orjson

from engine.portable.contract import MARK, Found, Header, found, refusal
from engine.text.json_text import parsed
from engine.types import Exported, Float32Array, Passage, Refusal

_MAGIC = b"\x1f\x8b"


def write(file: IO[bytes], header: Header | None, rows: Iterable[Exported]) -> int:
    """Write all rows; returns how many."""
    count = 0
    if header is not None:
        file.write(orjson.dumps(header.as_json()) + b"\n")
    for row in rows:
        values: dict[str, Any] = {
            "id": row.id,
            "text": row.text,
            "metadata": orjson.Fragment(row.written),
            "source": row.source,
        }
        if row.passages is not None:
            values["passages"] = [_values(passage) for passage in row.passages]
        file.write(orjson.dumps(values) + b"\n")
        count += 1
    return count


def compressed(file: IO[bytes]) -> IO[bytes]:
    """A file to write to whose bytes arrive in `file` gzipped, without a time: the same twice."""
    packed: Any = gzip.GzipFile(fileobj=file, mode="wb", mtime=0)
    return packed  # type: ignore[no-any-return]


def _values(passage: Passage) -> dict[str, Any]:
    return {
        "start": passage.start,
        "end": passage.end,
        "tokens": passage.tokens,
        "truncated": passage.truncated,
        "own": passage.own,
        "vector": orjson.Fragment(_decimals(passage.vector)),
    }


def _decimals(row: Float32Array) -> bytes:
    text = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)
    back = np.array(orjson.loads(text), dtype=np.float32)
    return text if back.tobytes() == row.tobytes() else orjson.dumps(row.astype(float).tolist())


def header_of(file: IO[bytes], name: str) -> Header | None:
    """The header of an export, if it has one; the file is read from its start."""
    line = next(iter(_lines(file)), b"")
    value = _parsed(line)
    return Header.from_json(value, name) if isinstance(value, dict) and MARK in value else None


def read(file: IO[bytes], name: str) -> Iterator[Found | Refusal]:
    """The documents of an export, from its start, the header left out."""
    number = 0
    try:
        for number, line in enumerate(_lines(file), start=1):
            if not line.strip():
                continue
            value, where = _parsed(line), f"{name}:{number}"
            if number > 1 or not isinstance(value, dict) or MARK not in value:
                yield refusal(where, "is no JSON") if value is _NONE else found(where, value)
    except (OSError, EOFError) as error:
        yield refusal(f"{name}:{number + 1}", f"cannot be read, nor what follows ({error})")


_NONE = object()


def _parsed(line: bytes) -> object:
    try:
        return parsed(line)
    except (ValueError, RecursionError):
        return _NONE


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    packed = file.read(len(_MAGIC)) == _MAGIC
    file.seek(0)
    source: Any = gzip.GzipFile(fileobj=file, mode="rb") if packed else file
    yield from iter(source.readline, b"")
