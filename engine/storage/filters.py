"""The `where` language: text -> a small AST -> SQLAlchemy expressions with bound parameters.

Every comparison is true or false, never unknown: it is false where the field is missing or of
another type, and `not` turns that into true. What only SQLite has (`json_type`, `json_extract`,
`json_each`) stands in `_Field` and `_packed` alone.
"""

from __future__ import annotations

import difflib
import json
import math
import operator
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeAlias

import sqlalchemy as sa

from engine.errors import FilterError
from engine.storage.schema import documents

Scalar: TypeAlias = str | int | float | bool | None
Path: TypeAlias = tuple[str, ...]

MAX_TESTS = 500
MAX_DEPTH = 20
"""What SQLite's parser and SQLAlchemy's compiler are sure to carry, with room to spare."""

_NAME = r"(?!(?:and|or|not|in|is|contains|null|true|false)(?![\w-]))[^\W\d][\w-]*"
_PLAIN = re.compile(_NAME, re.IGNORECASE)
_KEY = r"(?:`(?:[^`]|``)*`|[^.`]+)"
_KEYS = re.compile(_KEY)
_DOTTED = re.compile(rf"{_KEY}(?:\.{_KEY})*")

GRAMMAR = r"""
?start: either
?either: both (OR both)*
?both: negated (AND negated)*
?negated: NOT negated -> negation
        | "(" either ")"
        | test
?test: field OPERATOR value -> compare
     | field IN "(" values ")" -> member
     | field NOT IN "(" values ")" -> not_member
     | field CONTAINS value -> contains
     | field IS NULL -> is_null
     | field IS NOT NULL -> is_not_null
values: (value ("," value)*)?
field: key ("." key)*
key: NAME | QUOTED
value: STRING -> string
     | NUMBER -> number
     | (TRUE | FALSE | NULL) -> constant
OPERATOR: "==" | "=" | "!=" | "<>" | "<=" | ">=" | "<" | ">"
OR: /or(?![\w-])/i
AND: /and(?![\w-])/i
NOT: /not(?![\w-])/i
IN: /in(?![\w-])/i
IS: /is(?![\w-])/i
CONTAINS: /contains(?![\w-])/i
NULL: /null(?![\w-])/i
TRUE: /true(?![\w-])/i
FALSE: /false(?![\w-])/i
NAME: /<name>/i
QUOTED: /`(?:[^`]|``)*`/
STRING: /'(?:[^']|'')*'/ | /"(?:[^"\\]|\\(?:["\\\/bfnrt]|u[0-9a-fA-F]{4}))*"/
NUMBER: /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/
%ignore /\s+/
""".replace("<name>", _NAME)


class Comparison(Enum):
    """The operators between a field and a value."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="


@dataclass(frozen=True, slots=True)
class Compare:
    field: Path
    comparison: Comparison
    value: Scalar


@dataclass(frozen=True, slots=True)
class Member:
    field: Path
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Contains:
    """A list holds the value, or a text holds it as a part."""

    field: Path
    value: Scalar


@dataclass(frozen=True, slots=True)
class Not:
    operand: Filter


@dataclass(frozen=True, slots=True)
class And:
    operands: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    operands: tuple[Filter, ...]


Filter: TypeAlias = Compare | Member | Contains | Not | And | Or


def parse(text: str) -> Filter:
    """Read a `where` expression. Raises `FilterError` with the place of the fault."""
    from lark.exceptions import UnexpectedInput, UnexpectedToken

    try:
        tree = _parser().parse(text)
        _check_extent(tree)
        return _transform(tree)
    except UnexpectedInput as error:
        ended = isinstance(error, UnexpectedToken) and error.token.type == "$END"
        at = error.pos_in_stream or 0
        fault = "at its end" if ended else f"at {text[at : at + 20]!r}"
    shown = text if len(text) <= 200 else text[:200] + "…"
    raise FilterError(
        f"cannot read the filter {shown!r} {fault}; write it like "
        "\"year >= 2000 and lang = 'en'\", texts in single quotes"
    )


def _check_extent(tree: Any) -> None:
    """Raise `FilterError` where a parsed filter is more than the database can carry."""
    tests = 0
    waiting = [(tree, 0)]
    while waiting:
        part, depth = waiting.pop()
        if part.data not in ("either", "both", "negation"):
            tests += 1
        elif depth == MAX_DEPTH:
            raise FilterError(f"the filter is nested more than {MAX_DEPTH} levels deep")
        else:
            waiting += [(inner, depth + 1) for inner in part.children if hasattr(inner, "data")]
    _check_tests(tests)


def _check_tests(count: int) -> None:
    if count > MAX_TESTS:
        raise FilterError(
            f"the filter holds {count} tests, more than {MAX_TESTS}; "
            "compare one field with many values by: field in (value, value, …)"
        )


def as_filter(where: object) -> Filter | None:
    """A filter given as an expression, as a mapping, or not at all."""
    if where is None:
        return None
    if isinstance(where, str):
        return parse(where)
    if isinstance(where, Mapping):
        return from_mapping(where)
    raise FilterError(f"a filter is a text or a mapping, not {type(where).__name__}")


def from_mapping(mapping: Mapping[str, Any]) -> Filter:
    """{"lang": "en", "year": [1999, 2000]}: every field equals its value, or one of its list."""
    _check_tests(len(mapping))
    tests: list[Filter] = []
    for name, value in mapping.items():
        if not isinstance(name, str):
            raise FilterError(f"filter fields are texts, not {name!r}")
        if not _DOTTED.fullmatch(name):
            raise FilterError(f"{name!r} names no field; write an odd key in backquotes: `a.b`")
        path = tuple(_unquoted(key) for key in _KEYS.findall(name))
        if isinstance(value, list | tuple | set | frozenset):
            tests.append(Member(path, tuple(_scalar(path, item) for item in value)))
        else:
            tests.append(Compare(path, Comparison.EQ, _scalar(path, value)))
    return And(tuple(tests))


def _scalar(path: Path, value: object) -> Scalar:
    odd = type(value).__name__
    if isinstance(value, float) and math.isnan(value):
        odd = "NaN"
    elif value is None or isinstance(value, str | int | float | bool):
        return value
    raise FilterError(
        f"filter field '{field_name(path)}' is compared with a {odd}; "
        "use a text, a number, true, false, null or a list of these"
    )


def paths(tree: Filter) -> set[Path]:
    """The fields a filter names."""
    match tree:
        case Not():
            return paths(tree.operand)
        case And() | Or():
            return {path for part in tree.operands for path in paths(part)}
        case _:
            return {tree.field}


def field_name(path: Path) -> str:
    """How a field is written: dotted where nested, a key that is no plain name in backquotes."""
    odd = (key.replace("`", "``") for key in path)
    return ".".join(key if _PLAIN.fullmatch(key) else f"`{key}`" for key in odd)


def _unquoted(key: str) -> str:
    return key[1:-1].replace("``", "`") if key.startswith("`") else key


def field_paths(metadata: Mapping[str, Any], prefix: Path = ()) -> Iterator[Path]:
    """Every field of a metadata object, the nested ones too."""
    for key, value in metadata.items():
        yield (*prefix, key)
        if isinstance(value, Mapping):
            yield from field_paths(value, (*prefix, key))


def check_fields(tree: Filter, known: Collection[str]) -> None:
    """Raise `FilterError` where the filter names a field that no document has."""
    for name in sorted(field_name(path) for path in paths(tree)):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            listed = ", ".join(sorted(known)[:20]) or "none"
            more = f" and {len(known) - 20} more" if len(known) > 20 else ""
            raise FilterError(
                f"no document has the metadata field '{name}'{hint} (fields: {listed}{more})"
            )


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


@lru_cache(maxsize=1)
def _parser() -> Any:
    from lark import Lark

    return Lark(GRAMMAR, parser="lalr", lexer="contextual")


def _transform(tree: Any) -> Filter:
    from lark import Token, Transformer

    class Build(Transformer[Token, Any]):
        """Methods are named after the grammar's rules."""

        def either(self, parts: list[Any]) -> Filter:
            return Or(tuple(part for part in parts if not isinstance(part, Token)))

        def both(self, parts: list[Any]) -> Filter:
            return And(tuple(part for part in parts if not isinstance(part, Token)))

        def negation(self, parts: list[Any]) -> Filter:
            return Not(parts[-1])

        def compare(self, parts: list[Any]) -> Filter:
            sign = {"==": "=", "<>": "!="}.get(str(parts[1]), str(parts[1]))
            return Compare(parts[0], Comparison(sign), parts[2])

        def values(self, parts: list[Any]) -> tuple[Scalar, ...]:
            return tuple(parts)

        def member(self, parts: list[Any]) -> Filter:
            return Member(parts[0], parts[-1])

        def not_member(self, parts: list[Any]) -> Filter:
            return Not(self.member(parts))

        def contains(self, parts: list[Any]) -> Filter:
            return Contains(parts[0], parts[-1])

        def is_null(self, parts: list[Any]) -> Filter:
            return Compare(parts[0], Comparison.EQ, None)

        def is_not_null(self, parts: list[Any]) -> Filter:
            return Compare(parts[0], Comparison.NE, None)

        def field(self, parts: list[str]) -> Path:
            return tuple(parts)

        def key(self, parts: list[Any]) -> str:
            return _unquoted(str(parts[0]))

        def string(self, parts: list[Any]) -> str:
            text = str(parts[0])
            if text[0] == "'":
                return text[1:-1].replace("''", "'")
            return str(json.loads(text, strict=False))

        def number(self, parts: list[Any]) -> int | float:
            text = str(parts[0])
            real = float(text)
            return int(text) if text.lstrip("-").isdigit() and math.isfinite(real) else real

        def constant(self, parts: list[Any]) -> bool | None:
            return {"TRUE": True, "FALSE": False}.get(parts[0].type)

    built: Filter = Build().transform(tree)
    return built
