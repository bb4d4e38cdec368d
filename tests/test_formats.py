"""Files that need a library each, gzip, and what is chosen in a directory."""

from __future__ import annotations

import builtins
import gzip
import io
import json
import os
import sys
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import InvalidInputError
from engine.text.pdf import characters
from engine.text.readers import Item, Note, ReadOptions, Row, read
from engine.text.sources import find_sources, refused
from engine.types import Document, Refusal
from tests.test_readers import check, found_in, row


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def piped(monkeypatch: pytest.MonkeyPatch, content: bytes, **options: Any) -> list[Item]:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    (source,), _ = find_sources(["-"])
    return list(read(source, ReadOptions(**options)))


# Parquet


def parquet(columns: dict[str, Any], **options: Any) -> bytes:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, **options)
    return out.getvalue()


def test_parquet_has_the_columns_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    content = parquet(
        {"id": [7, 8, None], "text": ["a", None, "c"], "n": [1, None, 3], "body": ["x", "y", ""]}
    )
    check(
        found_in("a.parquet", content),
        row("a.parquet[0]", "a", "7", n=1, body="x"),
        row("a.parquet[1]", "", "8", body="y"),
        row("a.parquet[2]", "c", n=3, body=""),
    )
    chosen = {"text_columns": ("body", "text"), "id_column": "text", "metadata_columns": ("id",)}
    check(found_in("a.parquet", content, **chosen)[:1], row("a.parquet[0]", "x: a", "a", id=7))
    check(
        found_in("b.dat", content, format="parquet")[:1], row("b.dat[0]", "a", "7", n=1, body="x")
    )
    first = piped(monkeypatch, content, format="parquet", metadata_columns=())[0]
    check([first], Row("stdin[0]", Document("a", "7")))
    check(found_in("e.parquet", parquet({"text": []})))
    for options, message in (
        ({"id_column": "Id"}, "a.parquet has no column 'Id' (columns: id, text, n, body)"),
        ({"text_columns": ("no",)}, "a.parquet has no column 'no' (columns: id, text, n, body)"),
    ):
        with pytest.raises(InvalidInputError) as caught:
            found_in("a.parquet", content, **options)
        assert str(caught.value) == message


def test_parquet_values_become_plain() -> None:
    pa = pytest.importorskip("pyarrow")
    moment = datetime(2024, 2, 29, 12, 30, 1, 500)
    values = {
        "s": pa.array([moment], pa.timestamp("us")),
        "ns": pa.array([1_000_000_001_000_999], pa.timestamp("ns")),
        "utc": pa.array([0], pa.timestamp("ms", "UTC")),
        "day": [date(1999, 12, 31)],
        "time": pa.array([1_500], pa.time64("ns")),
        "noon": [time(12)],
        "price": [Decimal("12.50")],
        "count": pa.array([Decimal("12")], pa.decimal128(5, 0)),
        "took": pa.array([timedelta(seconds=1.5)], pa.duration("ns")),
        "list": pa.array([[0, None]], pa.list_(pa.timestamp("ns"))),
        "deep": [{"when": moment, "of": [Decimal("0.5")]}],
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "word": pa.array(["w"]).dictionary_encode(),
        "yes": [True],
        "uuid": pa.array([bytes(15) + b"\x01"], pa.uuid()),
        "half": pa.array([0.5], pa.float32()),
    }
    expected = {
        "s": "2024-02-29T12:30:01.000500",
        "ns": "1970-01-12T13:46:40.001000",
        "utc": "1970-01-01T00:00:00+00:00",
        "day": "1999-12-31",
        "time": "00:00:00.000001",
        "noon": "12:00:00",
        "price": 12.5,
        "count": 12,
        "took": 1.5,
        "list": ["1970-01-01T00:00:00", None],
        "deep": {"when": "2024-02-29T12:30:01.000500", "of": [0.5]},
        "map": {"k": 1},
        "word": "w",
        "yes": True,
        "uuid": "00000000-0000-0000-0000-000000000001",
        "half": 0.5,
    }
    found = found_in("a.parquet", parquet({"text": ["a"], **values}))
    check(found, row("a.parquet[0]", "a", **expected))
    json.dumps(expected)
    found = found_in("a.parquet", parquet({"n": [3], "s": values["s"]}), text_columns=("n", "s"))
    check(found, row("a.parquet[0]", "3: 2024-02-29T12:30:01.000500"))


def test_bytes_in_parquet_are_refused_once_unless_left_out() -> None:
    pa = pytest.importorskip("pyarrow")
    image = pa.array([{"path": "p", "data": b"\x89"}] * 3)
    content = parquet({"text": ["a", "b", "c"], "image": image, "n": [1, 2, 3]})
    with pytest.raises(InvalidInputError) as caught:
        found_in("a.parquet", content)
    detail = (
        "has bytes in its column 'image' (struct<path: string, data: binary>); "
        "name the other --metadata-column to keep"
    )
    assert str(caught.value) == f"a.parquet {detail}"
    found = found_in("a.parquet", content, metadata_columns=("n",))
    check(found[2:], row("a.parquet[2]", "c", n=3))
    with pytest.raises(InvalidInputError, match=r"bytes in its column 'text' \(binary\)"):
        found_in("a.parquet", parquet({"text": [b"a"]}))


def test_a_cell_without_a_value_in_python_spoils_its_row_alone() -> None:
    pa = pytest.importorskip("pyarrow")
    far = pa.array([0, 2**50, None], pa.timestamp("ms"))
    bad = pa.StringArray.from_buffers(
        3, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"ab\xff")
    )
    found = found_in("a.parquet", parquet({"text": bad, "t": far}))
    check(found[:1], row("a.parquet[0]", "a", t="1970-01-01T00:00:00"))
    for number, (item, kind) in enumerate(zip(found[1:], ("timestamp[ms]", "string"), strict=True)):
        assert isinstance(item, Refusal)
        assert item.where == f"a.parquet[{number + 1}]"
        assert item.detail.startswith(f"holds a {kind} that cannot be read (")


@pytest.mark.parametrize("kind", ["list_", "large_list", "fixed", "half", "int", "json"])
def test_parquet_vectors(kind: str) -> None:
    pa = pytest.importorskip("pyarrow")
    rows = [[1.0, 0.5], None, [-2.0, 4.0]]
    types = {
        "list_": pa.list_(pa.float32()),
        "large_list": pa.large_list(pa.float64()),
        "fixed": pa.list_(pa.float32(), 2),
        "half": pa.list_(pa.float16()),
    }
    if kind == "json":
        vectors = pa.array([None if r is None else json.dumps(r) for r in rows])
    elif kind == "int":
        rows = [[1, 0], None, [-2, 4]]
        vectors = pa.array(rows, pa.list_(pa.int32()))
    else:
        vectors = pa.array(rows, types[kind])
    content = parquet({"text": ["a", "b", "c"], "v": vectors, "n": [1, 2, 3]})
    found = found_in("a.parquet", content, vector_column="v")
    got = [item.document.vector for item in found if isinstance(item, Row)]
    assert [None if v is None else list(v) for v in got] == rows
    check(found[1:2], row("a.parquet[1]", "b", n=2))
    found = found_in("a.parquet", content, vector_column="v", metadata_columns=())
    check([i.document.metadata for i in found if isinstance(i, Row)], {}, {}, {})


def test_parquet_columns_named_twice_or_with_dots() -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table([["a", "b"], [1, 2], [None, 3], [4, 5]], names=["text", "n", "n", "x.y"])
    pq.write_table(table, "a.parquet")
    (source,), _ = find_sources(["a.parquet"])
    check(
        list(read(source, ReadOptions())),
        Note("a.parquet: has several columns 'n'; the last filled one counts"),
        row("a.parquet[0]", "a", **{"n": 1, "x.y": 4}),
        row("a.parquet[1]", "b", **{"n": 3, "x.y": 5}),
    )


def test_parquet_is_never_held_whole() -> None:
    pa = pytest.importorskip("pyarrow")
    texts = [f"{n:06}" + os.urandom(500).hex() for n in range(20_000)]
    content = parquet({"text": texts}, compression="none", use_dictionary=False)
    small = parquet({"text": texts[:2000]}, row_group_size=300)
    assert len(content) > 20_000_000
    Path("a.parquet").write_bytes(content)
    Path("b.parquet").write_bytes(small)
    del texts, content
    (big, parts), _ = find_sources(["a.parquet", "b.parquet"])
    before = pa.total_allocated_bytes()
    most = 0
    for number, item in enumerate(read(big, ReadOptions())):
        assert isinstance(item, Row)
        assert (item.where, item.document.text[:6]) == (f"a.parquet[{number}]", f"{number:06}")
        most = max(most, pa.total_allocated_bytes() - before)
    assert number == 19_999
    assert most < 8_000_000
    told: list[int] = []
    assert sum(1 for _ in read(parts, ReadOptions(), told.append)) == 2000
    assert told == [parts.size * min(n, 2000) // 2000 for n in range(300, 2400, 300)]


def test_damaged_parquet() -> None:
    content = parquet(
        {"text": [f"{n} {os.urandom(40).hex()}" for n in range(30)]},
        row_group_size=10,
        compression="zstd",
    )
    pq = pytest.importorskip("pyarrow.parquet")
    group = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(1).column(0)
    start = group.dictionary_page_offset or group.data_page_offset
    end = start + group.total_compressed_size
    broken = content[:start] + b"\xff" * (end - start) + content[end:]
    found = found_in("a.parquet", broken)
    places = [f"a.parquet[{n}]" for n in (*range(11), *range(20, 30))]
    assert [item.where for item in found if not isinstance(item, Note)] == places
    assert isinstance(found[10], Refusal)
    assert found[10].detail.startswith("cannot be read, nor the rows up to [20] (")
    for bad in (b"", b"text\na\n", content[:-20]):
        (refusal,) = found_in("a.parquet", bad)
        assert str(refusal).startswith("a.parquet: is no parquet that can be read (")


# HTML


def html_text(content: str) -> str:
    pytest.importorskip("selectolax")
    (item,) = found_in("a.html", content)
    assert isinstance(item, Row)
    assert (item.where, item.document.id) == ("a.html", "a.html")
    return item.document.text


def test_html_is_one_document_with_its_title(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("selectolax")
    page = (
        "<!doctype html><html><head><title> A &amp;\n B </title><style>p{}</style></head><body>"
        "<nav><a href=/>Home</a></nav><h1>Head</h1>\n<p>One <b>bo</b>ld\n word.<p>Two<br>lines.</p>"
        "<script>var x = '<p>';</script><!-- c --><noscript>No</noscript>"
        "<svg><title>T</title></svg></body></html>"
    )
    text = "Head\n\nOne bold word.\n\nTwo\nlines."
    check(found_in("a.html", page), row("a.html", text, title="A & B"))
    check(found_in("b.HTM", "just text"), row("b.HTM", "just text"))
    check(found_in("c.txt", page, format="html"), row("c.txt", text, title="A & B"))
    check(piped(monkeypatch, b"<p>a", format="html"), Row("stdin", Document("a")))
    check(found_in("e.html", ""), row("e.html", ""))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a<div>b<div>c</div>d</div>e", "a\n\nb\n\nc\n\nd\n\ne"),
        ("<p>a <i> b </i> c</p>", "a b c"),
        ("<p>a<span>b</span> <span>c</span></p>", "ab c"),
        ("<ul><li>a<li>b</ul>c", "a\nb\n\nc"),
        ("<ul><li><p>a</p><li>b</ul>", "a\n\nb"),
        ("<table><tr><td>a<td>b<tr><td>c</table>", "a b\nc"),
        ("a<br>b<br><br>c", "a\nb\n\nc"),
        ("<pre>\nif x:\n    <b>y</b>  z\n\n</pre>after", "if x:\n    y  z\n\nafter"),
        ("<p>a<pre>  b</pre>", "a\n\n  b"),
        ("<p hidden>no<p>a<span hidden>no</span>", "a"),
        ("<div role=navigation>no</div><main>a</main>", "a"),
        ("<form>a<select><option>no</select><button>no</button></form>", "a"),
        ("<template><p>no</p></template>a &lt;p&gt; &eacute;&#x1F600;", "a <p> é😀"),
        ("<p>a</p" + "\n" * 5 + "><p>b", "a\n\nb"),
        ("x\0y", "xy"),
        (f"{'<div>' * 5_000}deep", "deep"),
    ],
)
def test_what_of_html_is_seen(content: str, text: str) -> None:
    assert html_text(content) == text


@pytest.mark.parametrize(
    ("head", "codec"),
    [
        ("<meta charset=iso-8859-1>", "cp1252"),
        ("<META http-equiv=x content='text/html; charset=Windows-1251'>", "cp1251"),
        ("<?xml version='1.0' encoding='Shift_JIS'?>", "cp932"),
        ("<meta charset=iso-2022-jp>", "iso-2022-jp"),
        ("<meta charset=latin1>", "utf-8"),
        ("<meta charset=utf-8>", "utf-16"),
    ],
)
def test_html_encodings(head: str, codec: str) -> None:
    pytest.importorskip("selectolax")
    word = {"cp1252": "“é”", "cp1251": "Москва"}.get(codec, "日本")
    found = found_in("a.html", f"{head}<p>{word}".encode(codec))
    check(found, row("a.html", word))


@pytest.mark.parametrize("declared", ["", "<meta charset=nonsense>", "<meta charset=hex>"])
def test_html_that_does_not_say_its_encoding(declared: str) -> None:
    pytest.importorskip("selectolax")
    found = found_in("a.html", f"{declared}<p>Le garçon a mangé".encode("latin-1"))
    note = Note("a.html: is not UTF-8; read as cp1252")
    check(found, note, row("a.html", "Le garçon a mangé"))
    damaged = f"{declared}<p>".encode() + "é".encode() * 10 + b"\xff"
    note = Note("a.html: holds 1 bytes that are not UTF-8")
    check(found_in("a.html", damaged), note, row("a.html", "é" * 10 + "\ufffd"))


# PDF


def pdf(pages: Sequence[str], title: str | None = None) -> bytes:
    """A small PDF by hand: a line of text a page, in Helvetica."""
    font = 3 + 2 * len(pages)
    kids = " ".join(f"{3 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
    ]
    for n, text in enumerate(pages):
        lines = " T* ".join(f"({line}) Tj" for line in text.split("\n") if line)
        drawn = f"BT /F1 12 Tf 14 TL 72 700 Td {lines} ET"
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {4 + 2 * n} 0 R "
            f"/Resources << /Font << /F1 {font} 0 R >> >> >>",
            f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
        ]
    objects.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    objects.append("<< >>" if title is None else f"<< /Title ({title}) >>")
    out, places = "%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    out += (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size "
        f"{len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R >>\nstartxref\n"
    )
    start = out.index("xref\n0 ")
    return f"{out}{start}\n%%EOF\n".encode("ascii")


def test_pdf_is_one_document_of_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pypdf")
    content = pdf(["One two.\nThree.", "", "Four."], title="A title")
    text = "One two.\nThree.\n\nFour."
    check(found_in("a.pdf", content), row("a.pdf", text, pages=3, title="A title"))
    check(found_in("b.pdf", pdf(["x"])), row("b.pdf", "x", pages=1))
    check(found_in("c", pdf(["x"], " "), format="pdf"), row("c", "x", pages=1))
    found = piped(monkeypatch, pdf(["x"]), format="pdf")
    check(found, Row("stdin", Document("x", None, {"pages": 1})))


def test_pdfs_that_cannot_be_read(capfd: pytest.CaptureFixture[str]) -> None:
    pypdf = pytest.importorskip("pypdf")
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf(["secret"])))
    writer.encrypt("user", "owner", algorithm="RC4-128")
    locked = io.BytesIO()
    writer.write(locked)
    refusal = refused("a.pdf", "is encrypted; save it without a password")
    check(found_in("a.pdf", locked.getvalue()), refusal)
    check(
        found_in("a.pdf", pdf(["", ""])),
        refused("a.pdf", "holds no text on its 2 pages (only pictures?)"),
    )
    whole = pdf(["One.", "Two."])
    for bad in (b"", b"no pdf at all", whole[:60], whole.replace(b"/Kids", b"/Lost")):
        (item,) = found_in("a.pdf", bad)
        assert isinstance(item, Refusal)
        assert "cannot be read (" in item.detail or "holds no text" in item.detail
    lame = whole.replace(b"/Length", b"/Filter /FlateDecode /Length")
    (item,) = found_in("a.pdf", lame)
    assert str(item).startswith("a.pdf: is a PDF that cannot be read on page 1 (")
    assert capfd.readouterr() == ("", "")


def test_compressed_pages_are_read_whole_or_not_at_all() -> None:
    pypdf = pytest.importorskip("pypdf")
    text = " ".join(str(7**n) for n in range(200))
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf([text])))
    writer.pages[0].compress_content_streams()
    out = io.BytesIO()
    writer.write(out)
    content = out.getvalue()
    start = content.index(b"stream\n") + len(b"stream\n")
    end = content.index(b"\nendstream")
    assert content[start : start + 1] == b"x"
    check(found_in("a.pdf", content), row("a.pdf", text, pages=1))
    wrong_sum = content[: end - 4] + b"\0\0\0\0" + content[end:]
    check(found_in("a.pdf", wrong_sum), row("a.pdf", text, pages=1))
    middle = (start + end) // 2
    lost = content[:middle] + b"\xff" * 100 + content[middle + 100 :]
    (item,) = found_in("a.pdf", lost)
    assert str(item).startswith("a.pdf: is a PDF that cannot be read on page 1 (Error -3 while ")


def test_titles_and_texts_have_a_utf8_form() -> None:
    pypdf = pytest.importorskip("pypdf")
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf(["x"])))
    writer.add_metadata({"/Title": "Ä 😀 日本"})
    out = io.BytesIO()
    writer.write(out)
    check(found_in("a.pdf", out.getvalue()), row("a.pdf", "x", pages=1, title="Ä 😀 日本"))
    assert characters("a\ud83d\ude00b\ud83dc\0") == "a😀b\ufffdc"


# Libraries that are not installed


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [
        ("a.parquet", "pyarrow", "parquet"),
        ("a.html", "selectolax", "html"),
        ("a.pdf", "pypdf", "pdf"),
        ("a.pdf.gz", "pypdf", "pdf"),
    ],
)
def test_a_missing_library_is_named(
    name: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(library, monkeypatch)
    content = gzip.compress(b"x") if name.endswith(".gz") else b"x"
    advice = f"needs {library}: pip install 'attendex[{extra}]'"
    check(found_in(name, content), refused(name, advice))


def without(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in list(sys.modules):
        if module.split(".")[0] == library:
            monkeypatch.delitem(sys.modules, module)
    known = builtins.__import__

    def import_(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return known(name, *rest)

    monkeypatch.setattr(builtins, "__import__", import_)


# Gzip


def test_gzip_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def zipped(name: str, content: str | bytes, **options: Any) -> list[Item]:
        raw = content.encode() if isinstance(content, str) else content
        return found_in(name, gzip.compress(raw), **options)

    check(zipped("a.txt.gz", "é\nb"), row("a.txt.gz:1", "é"), row("a.txt.gz:2", "b"))
    check(zipped("a.GZ", "b"), row("a.GZ:1", "b"))
    check(zipped("a.md.gz", "a\nb"), row("a.md.gz", "a\nb"))
    check(zipped("a.csv.gz", "id,text,n\n7,a,1"), row("a.csv.gz:2", "a", "7", n=1))
    check(zipped("a.TSV.gz", 'text\tn\n"a\t1'), row("a.TSV.gz:2", '"a', n=1))
    check(zipped("a.jsonl.gz", '{"text": "a"}'), row("a.jsonl.gz:1", "a"))
    check(zipped("a.json.gz", '["a"]'), row("a.json.gz[0]", "a"))
    check(zipped("a.log.gz", "text\nb", format="csv"), row("a.log.gz:2", "b"))
    note = Note("l.txt.gz: is not UTF-8; read as cp1252")
    check(zipped("l.txt.gz", "café".encode("latin-1")), note, row("l.txt.gz:1", "café"))
    check(zipped("u.txt.gz", "日".encode("utf-16")), row("u.txt.gz:1", "日"))
    check(piped(monkeypatch, gzip.compress(b"a\nb"))[1:], Row("stdin:2", Document("b")))
    both = gzip.compress(b"a\n") + gzip.compress(b"b\n")
    check(found_in("a.txt.gz", both), row("a.txt.gz:1", "a"), row("a.txt.gz:2", "b"))


def test_gzip_of_files_with_a_library() -> None:
    pytest.importorskip("selectolax")
    pytest.importorskip("pypdf")
    for name, content, found in (
        ("a.parquet.gz", parquet({"text": ["a"]}), row("a.parquet.gz[0]", "a")),
        ("a.html.gz", b"<p>a<p>b", row("a.html.gz", "a\n\nb")),
        ("a.pdf.gz", pdf(["a"]), row("a.pdf.gz", "a", pages=1)),
    ):
        check(found_in(name, gzip.compress(content)), found)
        (refusal,) = found_in(name, gzip.compress(content)[:-9])
        assert str(refusal) == f"{name}: is a damaged gzip ({CUT})"


CUT = "Compressed file ended before the end-of-stream marker was reached"


@pytest.mark.parametrize("name", ["a.txt.gz", "a.csv.gz", "a.jsonl.gz"])
@pytest.mark.parametrize("rows", [20, 3000])
def test_a_cut_gzip_keeps_its_whole_rows(name: str, rows: int) -> None:
    texts = [f"{n} é {os.urandom(20).hex()}" for n in range(rows)]
    lines = texts
    if name == "a.jsonl.gz":
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    elif name == "a.csv.gz":
        lines = ["text,n", *(f'"{text}",' for text in texts)]
    content = "".join(f"{line}\n" for line in lines).encode()
    squeezed = gzip.compress(content)
    for cut in (len(squeezed) // 2, len(squeezed) // 2 + 1, len(squeezed) - 9):
        *found, last = found_in(name, squeezed[:cut])
        check([last], refused(name, f"is a damaged gzip ({CUT})"))
        first = 2 if name == "a.csv.gz" else 1
        check(found, *(row(f"{name}:{n + first}", texts[n]) for n in range(len(found))))
        assert len(found) >= rows // 3
    assert len(found) >= rows - 1


def test_other_damage_to_a_gzip() -> None:
    squeezed = gzip.compress(b"a\nb\n")
    rows = [row("a.txt.gz:1", "a"), row("a.txt.gz:2", "b")]
    for content, reason in (
        (squeezed[:-8] + b"\0\0\0\0" + squeezed[-4:], "CRC check failed"),
        (squeezed + b"more", "Not a gzipped file (b'mo')"),
    ):
        *found, last = found_in("a.txt.gz", content)
        check(found, *rows)
        assert str(last).startswith(f"a.txt.gz: is a damaged gzip ({reason}")
    check(
        found_in("a.txt.gz", "plain"),
        refused("a.txt.gz", "is a damaged gzip (Not a gzipped file (b'pl'))"),
    )
    check(found_in("a.txt.gz", ""), refused("a.txt.gz", "is a damaged gzip (it is empty)"))
    check(found_in("a.txt.gz", gzip.compress(b"")))
    (item,) = found_in("a.md.gz", gzip.compress(os.urandom(100).hex().encode())[:-20])
    assert isinstance(item, Refusal)


def test_how_far_a_gzip_is_read_is_told_in_its_own_bytes() -> None:
    content = "".join(f"{os.urandom(16).hex()}\n" for _ in range(30_000)).encode()
    Path("a.txt.gz").write_bytes(gzip.compress(content))
    (source,), _ = find_sources(["a.txt.gz"])
    told: list[int] = []
    assert sum(1 for _ in read(source, ReadOptions(), told.append)) == 30_000
    assert all(before <= after for before, after in pairwise(told))
    assert told[0] <= source.size / 3
    assert told[-1] == source.size


# Directories


def tree(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("x")


def names(*paths: str, **chosen: Any) -> list[str]:
    sources, refusals = find_sources(paths, **chosen)
    assert refusals == []
    return [source.name for source in sources]


def test_compressed_files_are_found() -> None:
    tree("d/a.csv.gz", "d/b.gz", "d/c.tar.gz", "d/e/f.HTML.GZ", "d/g.pdf", "d/h.parquet", "d/i")
    assert names("d") == ["d/a.csv.gz", "d/e/f.HTML.GZ", "d/g.pdf", "d/h.parquet"]


def test_glob_keeps_and_exclude_leaves_out() -> None:
    tree(
        "d/a.md", "d/b.txt", "d/sub/c.md", "d/sub/deep/e.md", "d/drafts/f.md", "d/sub/drafts/g.txt"
    )
    assert names("d", glob=["*.md"]) == [
        *("d/a.md", "d/drafts/f.md", "d/sub/c.md", "d/sub/deep/e.md"),
    ]
    assert names("d", glob=["/*.md", "*.txt"]) == ["d/a.md", "d/b.txt", "d/sub/drafts/g.txt"]
    assert names("d", glob=["sub/**/*.md"]) == ["d/sub/c.md", "d/sub/deep/e.md"]
    assert names("d", exclude=["drafts/", "/a.*"]) == [
        *("d/b.txt", "d/sub/c.md", "d/sub/deep/e.md"),
    ]
    assert names("d", glob=["*.md"], exclude=["*", "!sub", "!c.md"]) == ["d/sub/c.md"]
    assert names("d", exclude=["*", "!drafts/f.md"]) == ["d/drafts/f.md"]
    assert names("d/b.txt", "d/sub", glob=["c.md"]) == ["d/b.txt", "d/sub/c.md"]
    assert names("d/a.md", "d/sub/drafts", exclude=["a.md"]) == ["d/a.md", "d/sub/drafts/g.txt"]
    (refusal,) = find_sources(["d"], glob=["*.pdf"])[1]
    assert str(refusal).startswith("d: holds no file attendex reads and the patterns keep (.csv, ")


def test_patterns_of_the_directory_itself() -> None:
    tree("d/a.md", "d/b.txt", "d/old/c.md", "e/a.md")
    Path("d/.attendexignore").write_text("# left out\nold/\n*.txt\n")
    assert names("d", "e") == ["d/a.md", "e/a.md"]
    assert names("d", exclude=["!b.txt", "a.md"]) == ["d/b.txt"]
    assert names("d/old") == ["d/old/c.md"]
    Path("d/.attendexignore").write_bytes(b"\xff\n")
    sources, (refusal,) = find_sources(["d", "e"])
    assert [source.name for source in sources] == ["e/a.md"]
    assert str(refusal).startswith("d/.attendexignore: is not UTF-8 (")
    Path("d/.attendexignore").write_text("!\n")
    check(
        find_sources(["d"])[1],
        refused("d/.attendexignore", "holds what is no pattern (Invalid git pattern: '!')"),
    )


def test_patterns_that_are_none() -> None:
    tree("d/a.md")
    for option in ("glob", "exclude"):
        chosen: dict[str, Any] = {option: ["!"]}
        with pytest.raises(InvalidInputError, match=f"^{option} holds what is no pattern "):
            find_sources(["d"], **chosen)


def test_links_that_lead_back_end() -> None:
    tree("d/a.md", "d/sub/b.md", "other/c.md")
    Path("d/sub/up").symlink_to("..", target_is_directory=True)
    Path("d/self.md").symlink_to("self.md")
    Path("d/gone.md").symlink_to("nowhere.md")
    Path("d/other").symlink_to("../other", target_is_directory=True)
    Path("d/link.md").symlink_to("../other/c.md")
    Path("whole").symlink_to("d", target_is_directory=True)
    Path("d/inside.md").symlink_to("sub/b.md")
    out = "is a link out of the directory; name the file itself, or give --follow-links"
    for root in ("d", "whole"):
        sources, refusals = find_sources([root])
        assert [source.name for source in sources] == [
            f"{root}/{name}" for name in ("a.md", "inside.md", "sub/b.md")
        ]
        check(refusals, refused(f"{root}/link.md", out))
    assert names("d/link.md") == ["d/link.md"]
    assert find_sources(["d"], glob=["a.*"])[1] == [], "a link that is not asked for"
    assert names("d", follow_links=True) == [
        *("d/a.md", "d/inside.md", "d/link.md", "d/other/c.md", "d/sub/b.md"),
    ]


def test_a_directory_that_cannot_be_listed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tree("d/a.md", "d/locked/b.md", "d/z.md")
    listed = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    sources, refusals = find_sources(["d"])
    assert [source.name for source in sources] == ["d/a.md", "d/z.md"]
    check(refusals, refused("d/locked", "cannot be read (Permission denied)"))
    check(find_sources(["d/locked"])[1], *refusals)
