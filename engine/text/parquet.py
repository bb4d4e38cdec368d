"""Parquet, batch by batch: at most some pages of a file are in memory at once.

The only module that knows pyarrow. Values leave it as plain Python: dates and times as ISO text
(to the microsecond), decimals and durations (seconds) as numbers, vectors as numpy arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import IO, Any
from uuid import UUID

from engine.errors import InvalidInputError
from engine.text.rows import Columns, Item, Note, OnBytes, ReadOptions, row_or_refusal
from engine.text.sources import Source, refused, without_extra

_BATCH = 1024
_BUFFER = 1 << 20


def read(
    raw: IO[bytes], source: Source, options: ReadOptions, on_bytes: OnBytes | None
) -> Iterator[Item]:
    """The rows of a parquet file; a damaged row group is refused and the next one read.

    Raises `InvalidInputError` where the columns do not fit the options, or hold bytes.
    """
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError:
        yield without_extra(source.name, "pyarrow", "parquet")
        return
    faults = (pa.ArrowException, OSError)
    try:
        file = pq.ParquetFile(raw, buffer_size=_BUFFER, pre_buffer=False)
        names = list(file.schema_arrow.names)
    except faults as error:
        yield refused(source.name, f"is no parquet that can be read ({_in_a_line(error)})")
        return
    columns = Columns(names, options, source.name)
    _check_types(pa, file.schema_arrow, columns.used, source.name)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        yield Note(f"{source.name}: has several columns '{twice}'; the last filled one counts")
    vectors, used = options.vector_column, list(columns.used)
    start, total = 0, file.metadata.num_rows
    for group in range(file.num_row_groups):
        number = start
        start += file.metadata.row_group(group).num_rows
        batches = file.iter_batches(_BATCH, [group], columns=used, use_threads=False)
        try:
            for batch in batches:
                for values in _rows(pa, batch, vectors):
                    where = f"{source.name}[{number}]"
                    if isinstance(values, _Fault):
                        yield row_or_refusal(values.reason, where, source)
                    else:
                        yield row_or_refusal(columns.document(values), where, source)
                    number += 1
                if on_bytes is not None:
                    on_bytes(source.size * number // total)
        except faults as error:
            yield refused(
                f"{source.name}[{number}]",
                f"cannot be read, nor the rows up to [{start}] ({_in_a_line(error)})",
            )


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why a cell has no value."""

    reason: str


class _Checked(list[Any]):
    """Cells of which some may be faults."""


def _check_types(pa: Any, schema: Any, used: Sequence[str], where: str) -> None:
    """Refuse bytes once for the whole file, not row by row."""
    for field in schema:
        if field.name in used and _holds_bytes(pa, field.type):
            raise InvalidInputError(
                f"{where} has bytes in its column '{field.name}' ({field.type}); "
                "name the other --metadata-column to keep"
            )


def _holds_bytes(pa: Any, kind: Any) -> bool:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return not isinstance(kind, pa.UuidType) and _holds_bytes(pa, kind.storage_type)
    if types.is_dictionary(kind):
        return _holds_bytes(pa, kind.value_type)
    if types.is_nested(kind):
        return any(_holds_bytes(pa, kind.field(n).type) for n in range(kind.num_fields))
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def _rows(pa: Any, batch: Any, vector_column: str | None) -> Iterator[dict[str, Any] | _Fault]:
    """The cells that are filled, by column, of each row; or the fault of a row's first."""
    names = batch.schema.names
    cells = [
        _vectors(pa, column) if name == vector_column else _cells(pa, column)
        for name, column in zip(names, batch.columns, strict=True)
    ]
    faulty = any(isinstance(column, _Checked) for column in cells)
    for values in zip(*cells, strict=True):
        fault = next((v for v in values if isinstance(v, _Fault)), None) if faulty else None
        if fault is None:
            yield {name: v for name, v in zip(names, values, strict=True) if v is not None}
        else:
            yield fault


def _vectors(pa: Any, column: Any) -> list[Any]:
    """Rows of a column of lists of numbers as numpy arrays; else its cells."""
    types = pa.types
    kind = column.type
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not lists or not (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)):
        return _cells(pa, column)
    numbers = column.flatten().to_numpy(zero_copy_only=False)
    rows: list[Any] = []
    end = 0
    for length in column.value_lengths().to_pylist():
        if length is None:
            rows.append(None)
        else:
            rows.append(numbers[end : end + length])
            end += length
    return rows


def _cells(pa: Any, column: Any) -> list[Any]:
    kind = _plain_type(pa, column.type)
    if kind != column.type:
        column = column.cast(kind, safe=False)
    faults = (ValueError, OverflowError, LookupError, pa.ArrowException)
    try:
        return [_plain(value) for value in column.to_pylist(maps_as_pydicts="strict")]
    except faults:
        return _Checked(_cell(one, faults) for one in column)


def _cell(one: Any, faults: tuple[type[Exception], ...]) -> Any:
    try:
        return _plain(one.as_py(maps_as_pydicts="strict"))
    except faults as error:
        return _Fault(f"holds a {one.type} that cannot be read ({_in_a_line(error)})")


def _plain_type(pa: Any, kind: Any) -> Any:
    """The type with nanoseconds, which Python's datetime has not, made microseconds."""
    types = pa.types
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if types.is_time64(kind):
        return pa.time64("us")
    if types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if types.is_struct(kind):
        return pa.struct([f.with_type(_plain_type(pa, f.type)) for f in kind])
    if types.is_map(kind):
        return pa.map_(_plain_type(pa, kind.key_type), _plain_type(pa, kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_field.with_type(_plain_type(pa, kind.value_type))
        if types.is_fixed_size_list(kind):
            return pa.list_(inner, kind.list_size)
        return pa.list_(inner) if types.is_list(kind) else pa.large_list(inner)
    return kind


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            whole = value == value.to_integral_value() and value.as_tuple().exponent == 0
            return int(value) if whole else float(value)
        case timedelta():
            return value.total_seconds()
        case list():
            return [_plain(one) for one in value]
        case dict():
            return {str(_plain(key)): _plain(one) for key, one in value.items()}
        case UUID():
            return str(value)
    raise ValueError(f"a {type(value).__name__} is no plain value")
