from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import InvalidInputError
from engine.text.readers import Item, Note, ReadOptions, Row, read
from engine.text.sources import find_sources, refused
from engine.types import Document, Refusal


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def found_in(name: str, content: str | bytes, **options: Any) -> list[Item]:
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    sources, refusals = find_sources([name])
    assert refusals == []
    return [item for source in sources for item in read(source, ReadOptions(**options))]


def row(where: str, text: str, id: str | None = None, /, **metadata: Any) -> Row:
    return Row(where, Document(text, where if id is None else id, metadata))


def check(found: Sequence[object], *expected: object) -> None:
    """Equal as written: 1, 1.0 and True are three values."""
    assert list(map(repr, found)) == list(map(repr, expected))


def test_lines_are_numbered_and_kept_as_they_are() -> None:
    found = found_in("a.txt", " a \n\nb\r\nc\rd\u2028e\x0cf")
    places = [row("a.txt:1", " a "), row("a.txt:2", ""), row("a.txt:3", "b"), row("a.txt:4", "c")]
    check(found, *places, row("a.txt:5", "d\u2028e\x0cf"))


def test_a_whole_file_is_one_text_named_by_the_file() -> None:
    check(found_in("a.txt", "one\r\n\r\ntwo\n", whole=True), row("a.txt", "one\r\n\r\ntwo\n"))
    check(found_in("b.MD", "# one\ntwo"), row("b.MD", "# one\ntwo"))
    check(found_in("c.csv", "text\na\n", whole=True), row("c.csv:2", "a"))


def test_csv() -> None:
    content = (
        'id, text ,year,note\n7,"He said ""no"", twice",1999,x\n\n8,"two\nlines, one cell",,\n'
        '9,short\n10,a,1,b,c\n,no id,2,\n11,,3,\n12,5" disk,4,last'
    )
    check(
        found_in("a.csv", content),
        row("a.csv:2", 'He said "no", twice', "7", year=1999, note="x"),
        row("a.csv:4", "two\nlines, one cell", "8"),
        row("a.csv:6", "short", "9"),
        refused("a.csv:7", "has 5 columns, the header has 4"),
        row("a.csv:8", "no id", year=2),
        row("a.csv:9", "", "11", year=3),
        row("a.csv:10", '5" disk', "12", year=4, note="last"),
    )


@pytest.mark.parametrize(
    ("name", "content", "delimiter"),
    [
        ("a.csv", 'text;n\r\n"a;b";1,5\r\n', None),
        ("a.csv", "text\tn\na;b\t1,5\n", None),
        ("a.csv", "text|n\na;b|1,5\n", "|"),
        ("a.tsv", "text\tn\na;b\t1,5\n", None),
        ("a.tsv", "text|n\na;b|1,5\n", "|"),
    ],
)
def test_columns_are_told_apart(name: str, content: str, delimiter: str | None) -> None:
    check(found_in(name, content, delimiter=delimiter), row(f"{name}:2", "a;b", n="1,5"))


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("0", 0),
        ("-12", -12),
        ("1.50", 1.5),
        ("-0.5", -0.5),
        ("999999999999999", 999999999999999),
        *((text, text) for text in ("007", "1e5", "+1", ".5", "1.", " 1", "1٣", "nan", "true")),
        ("1234567890123456", "1234567890123456"),
    ],
)
def test_cells_that_are_plain_numbers_become_numbers(cell: str, value: object) -> None:
    check(
        found_in("a.csv", f"text,id,n\n{cell},{cell},{cell}\n"), row("a.csv:2", cell, cell, n=value)
    )


def test_tables_of_odd_shapes() -> None:
    unclosed = refused("a.csv:1", "opens a quote that is not closed: the rest of the file is in it")
    for name in ("a.csv", "a.tsv", "a.jsonl", "a.txt"):
        check(found_in(name, ""))
    check(found_in("a.csv", "id,text\n"))
    check(found_in("a.csv", "\n \r\ntext;id\na;1\n"), row("a.csv:4", "a", "1"))
    check(
        found_in("a.csv", 'text,id\na,1\n"b,2\nc,3\n'),
        row("a.csv:2", "a", "1"),
        replace(unclosed, where="a.csv:3"),
    )
    check(
        found_in("a.csv", "n,text,n\n1,a,2\n3,b,\n"),
        Note("a.csv: has several columns 'n'; the last filled one counts"),
        row("a.csv:2", "a", n=2),
        row("a.csv:3", "b", n=3),
    )
    check(found_in("a.csv", '"text,id\na,1\n'), unclosed)
    check(found_in("a.csv", f"text\n{'x' * 200_000}\n"), row("a.csv:2", "x" * 200_000))


def test_quotes_in_a_tsv_are_letters() -> None:
    found = found_in("a.tsv", 'id\ttext\n1\t"stray\n2\ta "b" c"\n')
    check(found, row("a.tsv:2", '"stray', "1"), row("a.tsv:3", 'a "b" c"', "2"))


def test_jsonl_goes_on_after_every_fault() -> None:
    comma = "Expecting ',' delimiter: line 1 column 13 (char 12)"
    cases: list[tuple[str, Row | Refusal]] = [
        ('{"text": "a", "n": {"b": [1, true]}, "id": 7}', row(":1", "a", "7", n={"b": [1, True]})),
        ('{"text": "b"', refused(":2", f"is no JSON ({comma})")),
        ('"only a text"', row(":3", "only a text", "a.jsonl:3")),
        ("[1]", refused(":4", "is a JSON list, not an object or a text")),
        ("null", refused(":5", "is a JSON null, not an object or a text")),
        ("{}", refused(":6", "is an empty JSON object")),
        ('{"text": ["a"]}', refused(":7", "the text column 'text' holds a list, not a text")),
        ('{"text": "", "id": true}', refused(":8", "the id column 'id' holds a bool, not a text")),
        ('{"text": 1.50, "id": null, "x": null}', row(":9", "1.5", "a.jsonl:9", x=None)),
        ('{"id": "no text"}', refused(":10", "it has no 'text' (keys: id)")),
        ('{"body": "b", "text": "last"}', row(":11", "last", "a.jsonl:11", body="b")),
    ]
    found = found_in("a.jsonl", "\n".join(line for line, _ in cases))
    check(found, *(replace(item, where=f"a.jsonl{item.where}") for _, item in cases))
    blank, deep = "\n \n", "[" * 100_000
    (refusal, last) = found_in("a.jsonl", f'{blank}{deep}\n"a"')
    assert str(refusal).startswith("a.jsonl:3: is no JSON (maximum recursion depth exceeded")
    check([last], row("a.jsonl:4", "a"))


def test_json_arrays_and_single_values() -> None:
    found = found_in("a.json", '[{"text": "a", "n": 1},\n {"text": "b", "id": 7}, "c", 5]')
    number = refused("a.json[3]", "is a JSON int, not an object or a text")
    check(
        found, row("a.json[0]", "a", n=1), row("a.json[1]", "b", "7"), row("a.json[2]", "c"), number
    )
    check(found_in("a.json", '{"body": "a"}'), row("a.json[0]", "a"))
    check(found_in("a.json", "[]"))
    (refusal,) = found_in("a.json", '[{"text": "a"},\n oops]')
    assert str(refusal) == "a.json: is no JSON (Expecting value: line 2 column 2 (char 17))"


def test_columns_are_known_however_late_they_come() -> None:
    found = found_in("a.ndjson", "[1]\n" * 100 + '{"text": "a", "n": 1}\n{"text": "b"}\n')
    check(found[100:], row("a.ndjson:101", "a", n=1), row("a.ndjson:102", "b"))
    found = found_in("a.ndjson", '{"x": 1}\n' * 99 + '{"text": "a"}\n')
    detail = "it has no 'text' (keys: x)"
    check(found[98:], refused("a.ndjson:99", detail), row("a.ndjson:100", "a"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, row("", "poet", "1", name="Ada", body="wrote", v="[1]")),
        ({"text_columns": ("name", "body")}, row("", "Ada: wrote", "1", text="poet", v="[1]")),
        (
            {"text_columns": ("text", "name"), "joiner": "/", "id_column": "name"},
            row("", "poet/Ada", "Ada", id=1, body="wrote", v="[1]"),
        ),
        ({"metadata_columns": ("v", "text")}, row("", "poet", "1", v="[1]", text="poet")),
        ({"metadata_columns": ()}, row("", "poet", "1")),
    ],
)
def test_columns_are_chosen(options: dict[str, Any], expected: Row) -> None:
    found = found_in("a.csv", "id,name,text,body,v\n1,Ada,poet,wrote,[1]\n", **options)
    check(found, replace(expected, where="a.csv:2"))
    cells = {"id": 1, "name": "Ada", "text": "poet", "body": "wrote", "v": "[1]"}
    found = found_in("a.jsonl", json.dumps(cells), **options)
    check(found, replace(expected, where="a.jsonl:1"))


def test_text_columns_have_an_order_and_empty_parts_are_left_out() -> None:
    check(found_in("a.csv", "sentence,body\na,b\n"), row("a.csv:2", "b", sentence="a"))
    check(found_in("a.csv", "anything\na\n"), row("a.csv:2", "a"))
    options = {"text_columns": ("a", "b")}
    check(found_in("a.csv", "a,b\n,x\ny,\n", **options), row("a.csv:2", "x"), row("a.csv:3", "y"))
    check(found_in("a.jsonl", '{"a": 0, "b": null}', **options), row("a.jsonl:1", "0"))


@pytest.mark.parametrize(
    "option", ["text_columns", "metadata_columns", "id_column", "vector_column"]
)
def test_a_column_that_is_not_there_is_an_error_naming_those_that_are(option: str) -> None:
    value = "Body" if option in ("id_column", "vector_column") else ("text", "Body")
    for name, content in (("a.csv", "text,n\na,1\n"), ("a.json", '[{"text": "a"}, {"n": 1}]')):
        with pytest.raises(InvalidInputError) as caught:
            found_in(name, content, **{option: value})
        assert str(caught.value) == f"{name} has no column 'Body' (columns: text, n)"


def test_no_text_column_is_an_error() -> None:
    with pytest.raises(InvalidInputError) as caught:
        found_in("a.csv", "id,title\n1,a\n")
    assert str(caught.value) == (
        "a.csv has no text column; name one with --text-column (columns: id, title), or the "
        "separator of a table with --delimiter"
    )


def test_vectors() -> None:
    found = found_in("a.jsonl", '{"text": "a", "v": [1, 0.5]}\n{"text": "b"}\n', vector_column="v")
    assert [item.document.vector for item in found if isinstance(item, Row)] == [[1, 0.5], None]
    content = f'text,v\na,"[1, 0.5]"\nb,\nc,1 2\nd,{"[" * 100_000}\n'
    found = found_in("a.csv", content, vector_column="v")
    assert [item.document.vector for item in found if isinstance(item, Row)] == [[1, 0.5], None]
    detail = "the vector column 'v' is no JSON list"
    check(found[2:], refused("a.csv:4", detail), refused("a.csv:5", detail))


@pytest.mark.parametrize(
    ("codec", "mark"),
    [
        *((codec, "") for codec in ("utf-8", "utf-8-sig", "utf-16", "utf-32")),
        *((codec, "\ufeff") for codec in ("utf-16-be", "utf-16-le", "utf-32-be", "utf-32-le")),
    ],
)
def test_unicode_encodings(codec: str, mark: str) -> None:
    content = f"{mark}text,é\r\nwörld 😀,字\r\n"
    check(found_in("a.csv", content.encode(codec)), row("a.csv:2", "wörld 😀", é="字"))
    check(found_in("a.txt", mark.encode(codec)))


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_one_damaged_line_leaves_the_others_whole(mark: bytes) -> None:
    far = "é" * 40_000
    content = mark + b"good \xf0\x9f\x98\x80\nbad \xed\xa0\x80\n" + far.encode() + b"\nlast"
    check(
        found_in("a.txt", content),
        Note("a.txt: holds 3 bytes that are not UTF-8"),
        row("a.txt:1", "good 😀"),
        row("a.txt:2", "bad \udced\udca0\udc80"),
        row("a.txt:3", far),
        row("a.txt:4", "last"),
    )


def test_a_mark_is_believed_whatever_the_damage() -> None:
    note = Note("a.txt: holds 5 bytes that are not UTF-8")
    check(
        found_in("a.txt", b"\xef\xbb\xbfa" + b"\xff" * 5), note, row("a.txt:1", "a" + "\udcff" * 5)
    )


@pytest.mark.parametrize(
    ("text", "codec", "named"),
    [
        ("café", "latin-1", "cp1252"),
        ("Le garçon a mangé une crème brûlée à la fête de Noël.", "latin-1", "cp1252"),
        ("Die Straße ist größer. Äpfel, Öl und Übung.", "latin-1", "cp1252"),
        ("it’s a “word” for €5", "cp1252", "cp1252"),
        ("Zażółć gęślą jaźń. Wszystkie ludzie rodzą się wolni i równi.", "cp1250", "cp1250"),
        ("Москва столица России и очень большой город.", "cp1251", "cp1251"),
        ("서울은 대한민국의 수도이며 매우 큰 도시입니다.", "cp949", "cp949"),
        ("int main() { return number; } // これはコメントです。", "shift-jis", "cp932"),
        ("これは日本語の文章です。東京は大きい町です。", "shift-jis", "cp932"),
    ],
)
def test_older_encodings_are_guessed_with_a_note(text: str, codec: str, named: str) -> None:
    note = Note(f"a.txt: is not UTF-8; read as {named}")
    check(found_in("a.txt", text.encode(codec)), note, row("a.txt:1", text))
    late = (b"plain" * 1000 + b"\n") * 250 + text.encode(codec)
    found = found_in("a.txt", late)
    check([found[0], found[-1]], note, row("a.txt:251", text))


def test_a_cut_utf16_file_keeps_what_came_before() -> None:
    first, last = found_in("a.txt", "one\ntwo".encode("utf-16") + b"!")
    check([first], row("a.txt:1", "one"))
    assert str(last).startswith(
        "a.txt: cannot be decoded ('utf-16-le' codec can't decode byte 0x21"
    )


def test_directories_are_walked_in_order_without_hidden_files() -> None:
    names = ["d/b.txt", "d/a/z.CSV", "d/a.md", "d/.h.txt", "d/.git/x.txt", "d/c.png", "d/B.json"]
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("text\nx")
    Path("d/e.txt").mkdir()
    sources, refusals = find_sources(["d", "./d/.h.txt", "d/c.png"])
    assert refusals == []
    assert [source.name for source in sources] == [
        *("d/B.json", "d/a/z.CSV", "d/a.md", "d/b.txt", "d/.h.txt", "d/c.png")
    ]
    assert {source.size for source in sources} == {6}
    assert sources[1].uri == (Path.cwd() / "d/a/z.CSV").as_posix()
    known = (
        ".csv, .htm, .html, .json, .jsonl, .md, .ndjson, .parquet, .pdf, .tsv, .txt, "
        "and .gz of each"
    )
    check(
        list(read(sources[-1], ReadOptions())),
        refused("d/c.png", f"is no file attendex reads ({known}); name its --format"),
    )
    check(list(read(sources[-1], ReadOptions(format="csv"))), row("d/c.png:2", "x"))
    Path("d/e").write_text("x")
    check(
        find_sources(["d/e.txt"])[1], refused("d/e.txt", f"holds no file attendex reads ({known})")
    )
    check(found_in("d/e", "x"), row("d/e:1", "x"))


def test_what_cannot_be_found_or_opened_is_refused() -> None:
    Path("a.txt").write_text("x")
    long = "x" * 300
    sources, refusals = find_sources(["nowhere.txt", "a.txt", long, "no\0where", "a.txt/b"])
    check(
        refusals,
        refused("nowhere.txt", "no such file or directory"),
        refused(long, "cannot be read (File name too long)"),
        refused("no\0where", "no such file or directory"),
        refused("a.txt/b", "no such file or directory"),
    )
    Path("a.txt").unlink()
    (source,) = sources
    gone = refused("a.txt", "cannot be read (No such file or directory)")
    check(list(read(source, ReadOptions())), gone)


def test_standard_input_has_no_ids_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def piped(content: str, **options: Any) -> list[Item]:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content.encode())))
        (source,), refusals = find_sources(["-"])
        assert (source.uri, refusals) == (None, [])
        return list(read(source, ReadOptions(**options)))

    check(piped("a\né"), *(Row(f"stdin:{n}", Document(t)) for n, t in ((1, "a"), (2, "é"))))
    check(piped("a\nb", whole=True), Row("stdin", Document("a\nb")))
    check(piped("\ufefftext,id\na,7", format="csv"), row("stdin:2", "a", "7"))
    check(piped('id\ttext\n7\t"a\n', format="tsv"), row("stdin:2", '"a', "7"))
    check(piped('[{"text": "a"}]', format="json"), Row("stdin[0]", Document("a")))


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="pipes have no names here")
def test_a_pipe_is_read_like_a_file() -> None:
    out, into = os.pipe()
    os.write(into, "é\nb".encode())
    os.close(into)
    name = f"/dev/fd/{out}"
    (source,), _ = find_sources([name])
    check(list(read(source, ReadOptions())), row(f"{name}:1", "é"), row(f"{name}:2", "b"))
    os.close(out)


def test_how_far_the_reader_is_is_told() -> None:
    Path("a.txt").write_text("0123456789\n" * 10_000)
    (source,), _ = find_sources(["a.txt"])
    told: list[int] = []
    read_rows = list(read(source, ReadOptions(), told.append))
    assert [len(read_rows), len(told), source.size] == [10_000, 40, 110_000]
    for count, (place, after) in enumerate(pairwise([*told, 110_000])):
        assert 11 * (256 * count + 1) <= place <= after
    assert told[0] < 20_000


@pytest.mark.parametrize("name", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_read_and_said(name: str) -> None:
    note, first, second = found_in("a.txt", "héllo wörld\nsecond line\n".encode(name))
    assert note == Note(f"a.txt: has no byte order mark; read as {name}")
    check([first, second], row("a.txt:1", "héllo wörld"), row("a.txt:2", "second line"))


def test_a_binary_file_is_refused() -> None:
    detail = "cannot be decoded (it looks like a binary file)"
    check(found_in("a.txt", bytes(range(256)) * 20), refused("a.txt", detail))
