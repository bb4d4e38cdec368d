"""A filter's AST -> SQLAlchemy expressions with bound parameters.

What only SQLite has (`json_type`, `json_extract`, `json_each`) stands in `_Field` and `_among`
alone.
"""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from engine.errors import FilterError
from engine.storage.schema import documents
from engine.storage.where import (
    And,
    Compare,
    Comparison,
    Contains,
    Filter,
    Member,
    Not,
    Or,
    Path,
    Scalar,
    field_name,
)


def to_statement(tree: Filter) -> tuple[str, tuple[Any, ...]]:
    """The condition on `documents` as text, and the values of its variables."""
    made = to_sql(tree).compile(
        dialect=sqlite.dialect(paramstyle="qmark"), compile_kwargs={"render_postcompile": True}
    )
    return made.string, tuple(made.params[name] for name in made.positiontup or ())


def to_sql(tree: Filter) -> sa.ColumnElement[bool]:
    """The condition on `documents` that the filter states."""
    match tree:
        case And():
            return sa.and_(sa.true(), *(to_sql(part) for part in tree.operands))
        case Or():
            return sa.or_(sa.false(), *(to_sql(part) for part in tree.operands))
        case Not():
            return sa.not_(to_sql(tree.operand))
        case Member():
            return _Field(tree.field).among(tree.values)
        case Contains():
            return _Field(tree.field).contains(tree.value)
        case Compare(comparison=Comparison.EQ):
            return _Field(tree.field).among([tree.value])
        case Compare(comparison=Comparison.NE):
            return sa.not_(_Field(tree.field).among([tree.value]))
        case Compare():
            return _Field(tree.field).ordered(tree.comparison, tree.value)


class _Field:
    """One metadata field in SQLite's JSON functions."""

    def __init__(self, path: Path) -> None:
        self._name = field_name(path)
        if any('"' in key or "\0" in key for key in path):
            raise FilterError(f"the field name '{self._name}' cannot be filtered on")
        self._path = "$" + "".join(f".{_written(key)}" for key in path)
        found = sa.func.json_type(documents.c.metadata, self._path)
        self._type: sa.ColumnElement[str] = sa.func.coalesce(found, "missing")
        self._value: sa.ColumnElement[Any] = sa.func.json_extract(documents.c.metadata, self._path)

    def among(self, values: Sequence[Scalar]) -> sa.ColumnElement[bool]:
        """The field equals one of the values."""
        return _among(self._type, self._value, values)

    def ordered(self, comparison: Comparison, value: Scalar) -> sa.ColumnElement[bool]:
        if value is None or isinstance(value, bool):
            raise FilterError(
                f"'{self._name}' cannot be ordered against {json.dumps(value)}; use = or !="
            )
        bound = sa.func.json_extract(_packed([value]), "$[0]")
        return sa.and_(self._type.in_(_kinds(value)), _ORDER[comparison](self._value, bound))

    def contains(self, value: Scalar) -> sa.ColumnElement[bool]:
        each = sa.func.json_each(documents.c.metadata, self._path).table_valued("value", "type")
        same = _among(each.c.type, each.c.value, [value])
        inside = sa.and_(
            self._type == "array", sa.exists(sa.select(1).select_from(each).where(same))
        )
        if not isinstance(value, str):
            return inside
        part = sa.and_(self._type == "text", sa.func.instr(self._value, value) > 0)
        return sa.or_(inside, part)


def _among(
    kind: sa.ColumnElement[Any], found: sa.ColumnElement[Any], values: Sequence[Scalar]
) -> sa.ColumnElement[bool]:
    """A JSON value, of the type SQLite names `kind`, equals one of the values."""
    named = {k for v in values if v is None or isinstance(v, bool) for k in _kinds(v)}
    ways: list[sa.ColumnElement[bool]] = [kind.in_(sorted(named))] if named else []
    texts = [v for v in values if isinstance(v, str)]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    for some in (texts, numbers):
        if some:
            each = sa.func.json_each(_packed(some)).table_valued("value")
            equal = found.in_(sa.select(each.c.value))
            ways.append(sa.and_(kind.in_(_kinds(some[0])), equal))
    return sa.or_(sa.false(), *ways)


def _kinds(value: Scalar) -> tuple[str, ...]:
    """What SQLite calls the types of the JSON values that may equal this one."""
    if value is None:
        return ("missing", "null")
    if isinstance(value, bool):
        return ("true",) if value else ("false",)
    return ("text",) if isinstance(value, str) else ("integer", "real")


def _packed(values: Sequence[str | int | float]) -> str:
    """A JSON list: SQLite reads its numbers as it read those of the metadata, past 64 bits too."""
    return f"[{','.join(_written(value) for value in values)}]"


def _written(value: str | int | float) -> str:
    if isinstance(value, str):
        if any("\ud800" <= c <= "\udfff" for c in value):
            raise FilterError(f"the filter's text {value!r} holds no valid Unicode")
    elif abs(value) > sys.float_info.max:
        return "9e999" if value > 0 else "-9e999"
    return json.dumps(value, ensure_ascii=False)


_ORDER: dict[Comparison, Callable[[Any, Any], Any]] = {
    Comparison.LT: operator.lt,
    Comparison.LE: operator.le,
    Comparison.GT: operator.gt,
    Comparison.GE: operator.ge,
}
