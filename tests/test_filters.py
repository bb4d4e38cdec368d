from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, TypeAlias

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import FilterError
from engine.storage import filters, schema
from engine.storage import where as language
from engine.storage.connection import dump_json
from engine.storage.where import And, Compare, Comparison, Contains, Filter, Member, Not, Or, Path

EQ, NE, LT, LE, GT, GE = Comparison
MISSING = object()
Metadata: TypeAlias = Sequence[Mapping[str, Any]]


@pytest.fixture(scope="module")
def database() -> Iterator[sa.Engine]:
    made = sa.create_engine("sqlite://", poolclass=sa.StaticPool, json_serializer=dump_json)
    schema.metadata.create_all(made)
    yield made
    made.dispose()


def select(database: sa.Engine, metadata: Metadata, tree: Filter) -> list[int]:
    """Which of the documents, by number, SQLite finds."""
    d = schema.documents
    rows = [
        {"id": n, "key": str(n), "content_hash": b"", "metadata": m} for n, m in enumerate(metadata)
    ]
    query = sa.select(d.c.id).where(filters.to_sql(tree)).order_by(d.c.id)
    with database.connect() as connection:
        connection.execute(sa.insert(d), rows)
        return list(connection.scalars(query))


def meets(tree: Filter, metadata: Mapping[str, Any]) -> bool:
    match tree:
        case And():
            return all(meets(part, metadata) for part in tree.operands)
        case Or():
            return any(meets(part, metadata) for part in tree.operands)
        case Not():
            return not meets(tree.operand, metadata)
    found = look(metadata, tree.field)
    match tree:
        case Member():
            return any(equal(found, value) for value in tree.values)
        case Contains() if isinstance(found, list):
            return any(equal(item, tree.value) for item in found)
        case Contains():
            both = isinstance(found, str) and isinstance(tree.value, str)
            return both and tree.value in found
        case Compare(comparison=Comparison.EQ):
            return equal(found, tree.value)
        case Compare(comparison=Comparison.NE):
            return not equal(found, tree.value)
        case Compare():
            return ordered(found, tree.comparison, tree.value)


def look(metadata: object, path: Path) -> Any:
    for key in path:
        if not isinstance(metadata, dict) or key not in metadata:
            return MISSING
        metadata = metadata[key]
    return metadata


def equal(found: Any, value: language.Scalar) -> bool:
    if value is None:
        return found is MISSING or found is None
    if isinstance(value, bool) or isinstance(found, bool):
        return found is value
    if isinstance(value, str):
        return isinstance(found, str) and found == value
    return isinstance(found, int | float) and number(found) == number(value)


def ordered(found: Any, comparison: Comparison, value: Any) -> bool:
    kind = str if isinstance(value, str) else int | float
    if isinstance(found, bool) or not isinstance(found, kind):
        return False
    left: Any = found if isinstance(found, str) else number(found)
    right: Any = value if isinstance(value, str) else number(value)
    return bool(
        {LT: left < right, LE: left <= right, GT: left > right, GE: left >= right}[comparison]
    )


def number(value: int | float) -> int | float:
    """Integers past 64 bits are reals in the database."""
    return value if -(2**63) <= value < 2**63 else float(value)


KEYS = ["a", "b", "é", "order", "and", "it's", "a.b", "x`y", "[0]", "$", "\\n", "a b", "", "\n"]
NUMBERS = [0, 1, -1, 2, 1.0, 0.1, -0.0, 2**53, 2**53 + 1, 2.0**53, 2**63 - 1, 2**63, 10**30]
TEXTS = ["", "a", "ab", "it's", '"', "é", "\\", "1", "true", "null", "😀"]
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
keys = st.sampled_from(KEYS)
numbers, texts = st.sampled_from(NUMBERS), st.sampled_from(TEXTS)
floats = st.floats(allow_nan=False, allow_infinity=False)
scalars: st.SearchStrategy[language.Scalar] = st.one_of(
    *(st.none(), st.booleans(), numbers, st.integers(), floats, texts, st.text(characters))
)
objects = functools.partial(st.dictionaries, keys, max_size=4)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | objects(v), max_leaves=6)
documents = objects(values)
fields = st.lists(keys, min_size=1, max_size=2).map(tuple)
orderable = st.one_of(numbers, texts)
tests: st.SearchStrategy[Filter] = st.one_of(
    st.builds(Compare, fields, st.sampled_from([EQ, NE]), scalars),
    st.builds(Compare, fields, st.sampled_from([LT, LE, GT, GE]), orderable),
    st.builds(Member, fields, st.lists(scalars, max_size=4).map(tuple)),
    st.builds(Contains, fields, scalars),
)
pairs = functools.partial(st.lists, min_size=2, max_size=3)
trees: st.SearchStrategy[Filter] = st.recursive(
    tests,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(And, pairs(inner).map(tuple)),
        st.builds(Or, pairs(inner).map(tuple)),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(metadata=st.lists(documents, min_size=1, max_size=8), tree=trees)
def test_sqlite_finds_what_the_definition_finds(
    database: sa.Engine, metadata: list[dict[str, Any]], tree: Filter
) -> None:
    expected = [n for n, found in enumerate(metadata) if meets(tree, found)]
    assert select(database, metadata, tree) == expected


def test_every_value_is_compared_with_every_other(database: sa.Engine) -> None:
    plain = [None, True, False, *NUMBERS, *TEXTS]
    found = [*plain, [], [None, 1], ["a", True], {"b": 1}, {"a": "a"}]
    metadata = [{}, *({"a": value} for value in found)]
    trees: list[Filter] = [Contains(("a",), value) for value in plain]
    trees += [Member(("a",), (value, other)) for value, other in pairwise(plain)]
    trees += [Compare(("a",), way, value) for value in plain for way in (EQ, NE)]
    trees += [Compare(("a",), way, value) for value in plain[3:] for way in (LT, LE, GT, GE)]
    for tree in trees:
        assert select(database, metadata, tree) == [
            n for n, document in enumerate(metadata) if meets(tree, document)
        ], tree


def test_every_key_is_found_and_no_other(database: sa.Engine) -> None:
    metadata: Metadata = [*({key: 1} for key in KEYS), *({"p": {key: 1}} for key in KEYS)]
    for n, key in enumerate(KEYS):
        assert select(database, metadata, Compare((key,), EQ, 1)) == [n]
        assert select(database, metadata, Compare(("p", key), EQ, 1)) == [n + len(KEYS)]


def spelt(tree: Filter) -> str:
    match tree:
        case Not():
            return f"not ({spelt(tree.operand)})"
        case And():
            return " and ".join(f"({spelt(part)})" for part in tree.operands)
        case Or():
            return " OR ".join(f"({spelt(part)})" for part in tree.operands)
        case Member():
            return f"{language.field_name(tree.field)} in ({', '.join(map(literal, tree.values))})"
        case Contains():
            return f"{language.field_name(tree.field)} contains {literal(tree.value)}"
        case Compare():
            return f"{language.field_name(tree.field)}{tree.comparison.value}{literal(tree.value)}"


def literal(value: language.Scalar) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else dump_json(value)


@settings(max_examples=200, deadline=None)
@given(trees)
def test_a_filter_written_down_is_read_back(tree: Filter) -> None:
    assert repr(language.parse(spelt(tree))) == repr(tree)


@given(st.lists(st.sampled_from(KEYS) | st.text(characters), min_size=1, max_size=3).map(tuple))
def test_a_field_name_written_down_is_read_back(path: Path) -> None:
    assert language.parse(f"{language.field_name(path)} = 1") == Compare(path, EQ, 1)
    assert language.from_mapping({language.field_name(path): 1}) == And((Compare(path, EQ, 1),))


SOUP = ["a", "=", "'", '"', "`", "(", ")", "and", "or", "not", "in", "1", ",", ".", "\\", " ", "-"]


@settings(deadline=None)
@given(st.text() | st.lists(st.sampled_from(SOUP)).map("".join))
def test_any_text_is_a_filter_or_a_filter_error(text: str) -> None:
    with suppress(FilterError):
        language.parse(text)


A, B, C = (Compare((name,), EQ, n) for n, name in enumerate("abc", start=1))
ORDER, INNER = (Compare((name,), EQ, 1) for name in ("order", "inner"))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a=1 or b=2 and c=3", Or((A, And((B, C))))),
        ("a=1 and b=2 or c=3", Or((And((A, B)), C))),
        ("(a=1 or b=2) and c=3", And((Or((A, B)), C))),
        ("not a=1 and b=2", And((Not(A), B))),
        ("not (a=1 and b=2)", Not(And((A, B)))),
        ("NOT a == 1 Or B = 2", Or((Not(A), Compare(("B",), EQ, 2)))),
        ("not not a=1", Not(Not(A))),
        ("not order=1 and inner=1", And((Not(ORDER), INNER))),
        ("a=1and b=2", And((A, B))),
        ("isbn is null", Compare(("isbn",), EQ, None)),
        ("a IS NOT NULL", Compare(("a",), NE, None)),
        ("a <> null", Compare(("a",), NE, None)),
        ("a in ()", Member(("a",), ())),
        ("a not in (1, 'x', null)", Not(Member(("a",), (1, "x", None)))),
        ("not a Contains 'x'", Not(Contains(("a",), "x"))),
        ("a-b.`odd name`.`in` >= -1.5e3", Compare(("a-b", "odd name", "in"), GE, -1500.0)),
        ("`a.b`.`x``y`<>1", Compare(("a.b", "x`y"), NE, 1)),
        ("größe<1", Compare(("größe",), LT, 1)),
        ("a = 'it''s'", Compare(("a",), EQ, "it's")),
        ('a = "a\\"b\'\\u00e9"', Compare(("a",), EQ, "a\"b'é")),
        ('a = "tab\there"', Compare(("a",), EQ, "tab\there")),
        ("a = ''", Compare(("a",), EQ, "")),
        ("a = TRUE", Compare(("a",), EQ, True)),
        ("a = False", Compare(("a",), EQ, False)),
        ("a = 1e2", Compare(("a",), EQ, 100.0)),
        ("a = -0.5", Compare(("a",), EQ, -0.5)),
        ("a = 12345678901234567890", Compare(("a",), EQ, 12345678901234567890)),
        (f"a = -1{'0' * 5000}", Compare(("a",), EQ, -math.inf)),
    ],
)
def test_parse(text: str, tree: Filter) -> None:
    assert repr(language.parse(text)) == repr(tree)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "at its end"),
        ("a >", "at its end"),
        ("(a = 1", "at its end"),
        ("a = 1)", "at ')'"),
        ("a = 1 b", "at 'b'"),
        ("a = b", "at 'b'"),
        ("a = 'x", 'at "\'x"'),
        ('a = "\\q"', "at '\"\\\\q\"'"),
        ("a = 007", "at '07'"),
        ("a = 1٣", "at '٣'"),
        ("a = trueish", "at 'trueish'"),
        ("a like 'x'", "at \"like 'x'\""),
        ("a in (1,)", "at ')'"),
        ("a.in = 1", "at 'in = 1'"),
        ("and = 1", "at 'and = 1'"),
        ("a = 1; drop table documents", "at '; drop table documen'"),
    ],
)
def test_a_fault_is_named_with_its_place(text: str, place: str) -> None:
    with pytest.raises(FilterError) as caught:
        language.parse(text)
    assert str(caught.value).startswith(f"cannot read the filter {text!r} {place};")


HOSTILE = ["'; drop table documents; --", "' or '1'='1", "x' or 1=1 --", "%", "\\", "*/", ":a", "?"]


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_and_field_names_stay_data(database: sa.Engine, text: str) -> None:
    metadata: Metadata = [{"a": text}, {"a": "x"}, {text: 1}]
    assert select(database, metadata, language.parse(f"a = {literal(text)}")) == [0]
    assert select(database, metadata, language.parse(f"a contains {literal(text)}")) == [0]
    assert select(database, metadata, language.from_mapping({"a": [text]})) == [0]
    assert select(database, metadata, language.parse(f"`{text}` = 1")) == [2]
    assert select(database, metadata, Compare((text,), NE, 1)) == [0, 1]


def test_what_cannot_be_asked_is_a_filter_error() -> None:
    for text, message in {
        '`a"b` = 1': "the field name '`a\"b`' cannot be filtered on",
        "a < null": "'a' cannot be ordered against null; use = or !=",
        "a >= true": "'a' cannot be ordered against true; use = or !=",
        "a = '\udcff'": r"the filter's text '\udcff' holds no valid Unicode",
        'a contains "\\ud800"': r"the filter's text '\ud800' holds no valid Unicode",
        "`\udcff` = 1": r"the filter's text '\udcff' holds no valid Unicode",
    }.items():
        with pytest.raises(FilterError) as caught:
            filters.to_sql(language.parse(text))
        assert str(caught.value) == message


def test_the_largest_filters_run_and_larger_ones_are_refused(database: sa.Engine) -> None:
    metadata = [{"a": n} for n in range(3)]
    many = " or ".join(["a = 1"] * language.MAX_TESTS)
    assert select(database, metadata, language.parse(many)) == [1]
    with pytest.raises(FilterError, match="holds 501 tests, more than 500"):
        language.parse(f"{many} or a = 2")
    with pytest.raises(FilterError, match="holds 501 tests"):
        language.from_mapping({f"f{n}": n for n in range(501)})
    for left, levels in (("not (", 1), ("a!=2 and (b=1 or (", 2), ("a=1 or not (b=1 or not (", 4)):
        deep, right = language.MAX_DEPTH // levels, ")" * left.count("(")
        tree = language.parse(left * deep + "a = 2" + right * deep)
        assert select(database, metadata, tree) == [n for n in range(3) if meets(tree, {"a": n})]
        with pytest.raises(FilterError, match="nested more than 20 levels deep"):
            language.parse(left * (deep + 1) + "a = 2" + right * (deep + 1))
    brackets = language.parse("(" * 10_000 + "a = 2" + ")" * 10_000)
    assert select(database, metadata, brackets) == [2]


def test_a_field_is_compared_with_any_number_of_values(database: sa.Engine) -> None:
    metadata: Metadata = [
        {"a": 1},
        {"a": 2},
        {"a": "7"},
        {"a": True},
        {},
        {"a": 0.5},
        {"a": 10**400},
    ]
    among = [*range(2, 40_000), *map(str, range(40_000)), None, 0.5]
    assert select(database, metadata, language.from_mapping({"a": among})) == [1, 2, 4, 5]
    assert select(database, metadata, language.from_mapping({"a": 10**400})) == [6]
    assert select(database, metadata, language.parse(f"a < 1{'0' * 400}")) == [0, 1, 5]


def test_as_filter_takes_texts_mappings_and_nothing() -> None:
    assert language.as_filter(None) is None
    assert language.as_filter("a = 1") == A
    assert language.as_filter({}) == And(())
    b, odd = Member(("b", "c"), (1, None)), Compare(("b.c",), EQ, "x")
    assert language.as_filter({"b.c": (1, None), "`b.c`": "x"}) == And((b, odd))
    assert language.as_filter({"a": frozenset([2])}) == And((Member(("a",), (2,)),))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (5, "a filter is a text or a mapping, not int"),
        ({1: 2}, "filter fields are texts, not 1"),
        ({"a": {"b": 1}}, "filter field 'a' is compared with a dict; "),
        ({"a": [[1]]}, "filter field 'a' is compared with a list; "),
        ({"a": math.nan}, "filter field 'a' is compared with a NaN; "),
        ({"": 1}, "'' names no field; "),
        ({"a..b": 1}, "'a..b' names no field; "),
        ({"a`b": 1}, "'a`b' names no field; "),
    ],
)
def test_what_is_no_filter_is_refused(where: object, message: str) -> None:
    with pytest.raises(FilterError) as caught:
        language.as_filter(where)
    assert str(caught.value).startswith(message)


def test_fields_are_named_as_they_are_written() -> None:
    metadata = {"a": {"b": {"c d": 1}, "in": []}, "e-1": [{"no": 1}], "2": None, "": 0}
    names = [language.field_name(path) for path in language.field_paths(metadata)]
    assert names == ["a", "a.b", "a.b.`c d`", "a.`in`", "e-1", "`2`", "``"]


def test_a_field_that_no_document_has_is_named_with_its_nearest() -> None:
    known = {"year", "lang", "a.`odd name`"}
    right = language.parse("year = 1 or not (lang in () and a.`odd name` contains 1)")
    language.check_fields(right, known)
    for text, names, rest in (
        ("year=1 and not lnag=2", known, "'lnag'; did you mean 'lang'? (fields: a.`odd name`, "),
        ("a=1", [], "'a' (fields: none)"),
        ("a=1", [f"f{n}" for n in range(10, 35)], "f28, f29 and 5 more)"),
    ):
        with pytest.raises(FilterError, match="^no document has the metadata field '") as caught:
            language.check_fields(language.parse(text), names)
        assert rest in str(caught.value)
