"""Exports as JSON lines, UTF-8; gzip where the file's name ends in .gz.

With vectors the first line is the header and the last says how many documents there are. A vector
is a list of the shortest decimals that read back as the same float32 numbers; where reading them
as float64 first would round otherwise, of the longer ones that are exact.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np
import orjson

from engine.arrays import Float32Array
from engine.errors import InvalidInputError
from engine.portable.contract import END, MARK, Found, Header, found
from engine.text.compressed import Gunzipped, begins_as_gzip
from engine.text.json_text import parsed
from engine.text.sources import refused
from engine.types import Exported, Passage, Refusal


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
    if header is not None:
        file.write(orjson.dumps({END: count}) + b"\n")
    return count


def compressed(file: IO[bytes]) -> IO[bytes]:
    """A file to write to whose bytes arrive in `file` gzipped; the same bytes every time."""
    packed: Any = gzip.GzipFile("", "wb", fileobj=file, mtime=0)
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
    """The header of an export, if it has one; the file is read from its start.

    Raises `InvalidInputError` for a file that begins with no JSON, `OSError`.
    """
    line = next((line for line in _lines(file) if line.strip()), None)
    if line is None:
        return None
    value = _parsed(line)
    if value is _NONE:
        raise InvalidInputError(f"{name} is no export in JSON lines: it does not begin with JSON")
    return Header.from_json(value, name) if isinstance(value, dict) and MARK in value else None


def read(file: IO[bytes], name: str) -> Iterator[Found | Refusal]:
    """The documents of an export, from its start. Where it has a header, the last line says how
    many there are: without it, and with another number, the file is not whole."""
    number = count = 0
    header, ended = False, None
    try:
        for number, line in enumerate(_lines(file), start=1):
            if not line.strip():
                continue
            value, where = _parsed(line), f"{name}:{number}"
            if isinstance(value, dict) and MARK in value and not header and not count:
                header = True
            elif isinstance(value, dict) and MARK in value:
                yield refused(where, "begins another export; import each file by itself")
                return
            elif isinstance(value, dict) and END in value:
                ended = value[END]
            else:
                count += 1
                yield refused(where, "is no JSON") if value is _NONE else found(where, value)
    except OSError as error:
        yield refused(f"{name}:{number + 1}", f"cannot be read, nor what follows ({error})")
        return
    if header and ended is None:
        yield refused(name, "is cut off: its last line, which says how many there are, is missing")
    elif header and ended != count:
        yield refused(name, f"held {ended} documents and holds {count} now")


_NONE = object()


def _parsed(line: bytes) -> object:
    try:
        return parsed(line)
    except (ValueError, RecursionError):
        return _NONE


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    packed = begins_as_gzip(file)
    yield from iter((Gunzipped(file) if packed else file).readline, b"")
