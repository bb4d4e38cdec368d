"""HTML: a file is a document, the text that is seen. The only module that knows selectolax."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from engine.text.encoding import Encoding, detect_encoding
from engine.text.rows import Item, Note, OnBytes, ReadOptions, row
from engine.text.sources import Source, read_whole, without_extra
from engine.types import Document

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

_UNSEEN = frozenset(
    """
    audio button canvas datalist embed head iframe map math nav noscript object script select style
    svg template textarea video
    """.split()  # noqa: SIM905
)
"""Elements left out with all they hold: code, navigation, controls, and what is no text."""
_PARAGRAPHS = frozenset(
    """
    address article aside blockquote body caption center dd details dialog dir div dl dt fieldset
    figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend main menu ol p pre
    search section summary table tbody tfoot thead ul
    """.split()  # noqa: SIM905
)
_LINES = frozenset(("li", "tr"))
_CELLS = frozenset(("td", "th"))
_SPACE = re.compile(r"[ \t\n\r\f]+")
_DECLARED = re.compile(
    rb"""<meta[^>]{0,500}?charset\s*=\s*["']?\s*([\w.:-]+)|<\?xml[^>]{0,200}?encoding=["']([\w.:-]+)""",
    re.IGNORECASE,
)
_DECLARED_WITHIN = 4096
_MEANT = {
    "iso-8859-1": "cp1252",
    "latin1": "cp1252",
    "us-ascii": "cp1252",
    "ascii": "cp1252",
    "shift_jis": "cp932",
    "shift-jis": "cp932",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "euc-kr": "cp949",
    "ks_c_5601-1987": "cp949",
    "iso-8859-9": "cp1254",
    "x-sjis": "cp932",
}
"""What browsers read where a page names these (WHATWG Encoding Standard, 4.2)."""


def read(
    raw: IO[bytes], source: Source, _options: ReadOptions, _on_bytes: OnBytes | None
) -> Iterator[Item]:
    """The document in an HTML page, with the metadata `title` (if it has one)."""
    try:
        from selectolax.lexbor import LexborHTMLParser
    except ImportError:
        yield without_extra(source.name, "selectolax", "html")
        return
    content = read_whole(raw)
    found = _encoding(content)
    if found.note:
        yield Note(f"{source.name}: {found.note}")
    parser = LexborHTMLParser(content.decode(found.name, "replace"))
    title = parser.css_first("head > title")
    words = "" if title is None else _SPACE.sub(" ", title.text()).strip()
    text = "" if parser.root is None else _visible(parser.root)
    yield row(source, source.name, Document(text, metadata={"title": words} if words else {}))


def _encoding(content: bytes) -> Encoding:
    """A byte order mark and sound UTF-8 are believed first, then what the page says of itself."""
    found = detect_encoding(io.BytesIO(content))
    if not content.isascii() and found.note is None:
        return found
    declared = _DECLARED.search(content[:_DECLARED_WITHIN])
    if declared is None:
        return found
    name = (declared[1] or declared[2]).decode("ascii", "replace").lower()
    name = _MEANT.get(name, name)
    if name.startswith(("utf-7", "utf-16", "utf-32")):
        return found
    try:
        content.decode(name)
    except (LookupError, UnicodeError):
        return found
    return Encoding(name)


def _visible(root: LexborNode) -> str:
    """The text, white space as it is shown: paragraphs apart by a blank line, lines by a break."""
    out = _Text()
    waiting: list[LexborNode | str] = [root]
    kept = 0
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            kept -= node == "pre"
            out.end(node)
        elif node.is_text_node:
            out.add(node.text_content or "", kept > 0)
        elif node.tag == "br":
            out.line()
        elif node.is_element_node and not _is_unseen(node):
            tag = node.tag or ""
            kept += tag == "pre"
            out.end(tag)
            waiting.append(tag)
            waiting += reversed(list(node.iter(include_text=True)))
    return out.text()


def _is_unseen(node: LexborNode) -> bool:
    if node.tag in _UNSEEN:
        return True
    attributes = node.attributes
    return "hidden" in attributes or attributes.get("role") == "navigation"


class _Text:
    """Pieces joined by the widest break between them."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._lines = 0
        self._space = False

    def end(self, tag: str) -> None:
        """An element begins or ends."""
        if tag in _PARAGRAPHS:
            self._lines = max(self._lines, 2)
        elif tag in _LINES:
            self._lines = max(self._lines, 1)
        elif tag in _CELLS:
            self._space = True

    def line(self) -> None:
        """A line ends; two in a row end a paragraph."""
        self._lines = min(2, self._lines + 1)

    def add(self, text: str, kept: bool) -> None:
        """A text node; `kept` white space is shown as it is."""
        first = not self._pieces
        if kept:
            shown = text.lstrip("\n") if first or self._lines else text
            body = shown
        else:
            shown = _SPACE.sub(" ", text)
            body = shown.strip(" ")
        if not body:
            self._space = self._space or bool(shown)
            return
        if self._lines and not first:
            self._pieces[-1] = self._pieces[-1].rstrip(" \n")
            self._pieces.append("\n" * self._lines)
        elif not first and (self._space or (not kept and shown[0] == " ")):
            self._pieces.append(" ")
        self._pieces.append(body)
        self._lines = 0
        self._space = not kept and shown[-1] == " "

    def text(self) -> str:
        return "".join(self._pieces).rstrip(" \n")
