"""The `where` language: an expression or a mapping -> a small AST.

The meaning is two-valued: every comparison is true or false, never unknown. It is false where
the field is missing or of another type, and `not` turns that into true.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeAlias

from engine.errors import FilterError

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


def shape(metadata: Mapping[str, Any]) -> tuple[Path, ...]:
    """All fields of a metadata object; of a flat one without looking at more than its keys."""
    for value in metadata.values():
        if isinstance(value, dict):
            return tuple(field_paths(metadata))
    return tuple(zip(metadata, strict=True))


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
