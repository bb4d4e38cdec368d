"""Exports as parquet: a row a document, its passages a list of structs.

The header lies in the schema's metadata. Work memory is that of about a thousand passages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from engine.errors import InvalidInputError, StorageError
from engine.portable.contract import MARK, Found, Header, found
from engine.text.sources import refused
from engine.types import Exported, Passage, Refusal

_PASSAGES = 1024
_ROWS = 64
_COLUMNS = ("id", "text", "metadata", "source", "passages")


def write(file: IO[bytes], header: Header | None, rows: Iterable[Exported]) -> int:
    """Write all rows; returns how many."""
    pa, pq = _libraries()
    schema = _schema(pa, header)
    count = 0
    remaining = iter(rows)
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        while block := _block(remaining):
            columns = [[row[n] for row in block] for n in range(4)]
            arrays = [pa.array(c, schema.field(n).type) for n, c in enumerate(columns)]
            if header is not None:
                parts = [row.passages or () for row in block]
                arrays.append(_passages(pa, schema.field("passages").type, parts))
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            count += len(block)
    return count


def _block(rows: Iterator[Exported]) -> list[Exported]:
    """The next rows: as many as have about so many passages."""
    block: list[Exported] = []
    passages = 0
    for row in rows:
        block.append(row)
        passages += max(1, len(row.passages or ()))
        if passages >= _PASSAGES:
            break
    return block


def _schema(pa: Any, header: Header | None) -> Any:
    names = ("id", "text", "metadata", "source")
    fields = [pa.field(name, pa.large_string(), name == "source") for name in names]
    if header is None:
        return pa.schema(fields)
    kinds = [(name, pa.int64()) for name in ("start", "end", "tokens")]
    kinds += [(name, pa.bool_()) for name in ("truncated", "own")]
    kinds += [("vector", pa.list_(pa.float32(), header.dimension))]
    fields.append(pa.field("passages", pa.list_(pa.struct(kinds))))
    return pa.schema(fields, metadata={MARK: json.dumps(header.as_json())})


def _passages(pa: Any, kind: Any, parts: Sequence[Sequence[Passage]]) -> Any:
    flat = [passage for some in parts for passage in some]
    columns = list(zip(*flat, strict=True)) if flat else [()] * len(Passage._fields)
    struct = kind.value_type
    arrays = [pa.array(c, struct.field(n).type) for n, c in enumerate(columns[:-1])]
    numbers = np.concatenate([np.empty(0, np.float32), *columns[-1]])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(numbers), type=struct.field("vector").type)
    values = pa.StructArray.from_arrays([*arrays, vectors], fields=list(struct))
    offsets = np.cumsum([0, *(len(some) for some in parts)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind)


def header_of(file: IO[bytes], name: str) -> Header | None:
    """The header of an export, if it has one. Raises `InvalidInputError` for no parquet."""
    held = (_open(file, name).schema_arrow.metadata or {}).get(MARK.encode())
    if held is None:
        return None
    try:
        values = json.loads(held)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InvalidInputError(f"{name} has a damaged header")
    return Header.from_json(values, name)


def read(file: IO[bytes], name: str) -> Iterator[Found | Refusal]:
    """The documents of an export."""
    pa, _ = _libraries()
    opened = _open(file, name)
    number = 0
    names = [one for one in opened.schema_arrow.names if one in _COLUMNS]
    try:
        for batch in opened.iter_batches(_ROWS, columns=names, use_threads=False):
            columns = {
                column: _read_passages(pa, values) if column == "passages" else values.to_pylist()
                for column, values in zip(batch.schema.names, batch.columns, strict=True)
            }
            for values in zip(*columns.values(), strict=True):
                row = dict(zip(columns, values, strict=True))
                row["metadata"] = _metadata(row.get("metadata"))
                yield found(f"{name}[{number}]", row)
                number += 1
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        yield refused(f"{name}[{number}]", f"cannot be read, nor what follows ({reason})")


def _read_passages(pa: Any, column: Any) -> list[Any]:
    """Each row's passages as plain values, their vectors as numpy arrays."""
    kind = column.type
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return list(column.to_pylist())
    flat = column.flatten()
    if flat.null_count or any(values.null_count for values in flat.flatten()):
        return list(column.to_pylist())
    plain: dict[str, Any] = {}
    for field, values in zip(flat.type, flat.flatten(), strict=True):
        if field.name == "vector" and pa.types.is_fixed_size_list(field.type):
            numbers = values.flatten().to_numpy(zero_copy_only=False)
            plain[field.name] = numbers.reshape(len(flat), field.type.list_size)
        else:
            plain[field.name] = values.to_pylist()
    rows = [dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True)]
    parts: list[Any] = []
    at = 0
    for length in column.value_lengths().to_pylist():
        parts.append(None if length is None else rows[at : at + length])
        at += length or 0
    return parts


def _metadata(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def _open(file: IO[bytes], name: str) -> Any:
    pa, pq = _libraries()
    file.seek(0)
    try:
        return pq.ParquetFile(file, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInputError(
            f"{name} is no parquet that can be read ({' '.join(str(error).split())})"
        ) from error


def _libraries() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError:
        raise StorageError("parquet needs pyarrow: pip install 'attendex[parquet]'") from None
    return pa, pq
