"""PDF: a file is a document, its pages apart like paragraphs. The only module that knows pypdf."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import IO, Any

from engine.text.rows import Item, OnBytes, ReadOptions, row
from engine.text.sources import Source, check_size, refused, without_extra
from engine.types import Document

PAGE_BREAK = "\n\n"
MOST_SECONDS = 120
"""So long a file may take: a damaged or hostile one may take for ever."""


def read(
    raw: IO[bytes], source: Source, _options: ReadOptions, _on_bytes: OnBytes | None
) -> Iterator[Item]:
    """The document in a PDF, with the metadata `pages` (all of them) and `title` (if it has one).

    Refused where it is encrypted, damaged on any page, or holds pictures alone.
    """
    try:
        import pypdf
    except ImportError:
        yield without_extra(source.name, "pypdf", "pdf")
        return
    check_size(raw.seek(0, os.SEEK_END))
    raw.seek(0)
    at = ""
    ending = time.monotonic() + MOST_SECONDS
    damage = _Damage()
    log = logging.getLogger("pypdf")
    log.addHandler(damage)
    try:
        reader = pypdf.PdfReader(raw)
        if reader.is_encrypted:
            yield refused(source.name, "is encrypted; save it without a password")
            return
        metadata: dict[str, Any] = {"pages": len(reader.pages)}
        if (title := _title(reader.metadata)) is not None:
            metadata["title"] = title
        texts = []
        for number, page in enumerate(reader.pages, start=1):
            at = f" on page {number}"
            if time.monotonic() > ending:
                raise TimeoutError(f"it took more than {MOST_SECONDS} seconds so far")
            texts.append(characters(page.extract_text()).strip())
            if damage.found is not None:
                raise ValueError(damage.found)
    except Exception as error:  # a damaged PDF makes pypdf raise almost anything
        reason = " ".join(str(error).split()) or type(error).__name__
        yield refused(source.name, f"is a PDF that cannot be read{at} ({reason})")
        return
    finally:
        log.removeHandler(damage)
    text = PAGE_BREAK.join(text for text in texts if text)
    if not text:
        yield refused(source.name, f"holds no text on its {len(texts)} pages (only pictures?)")
        return
    yield row(source, source.name, Document(text, metadata=metadata))


class _Damage(logging.Handler):
    """Hears what pypdf logs, which else goes to stderr, and keeps what says that text is lost.

    It hears the thread that made it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: str | None = None
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        lossy = "while decompressing" in message
        if lossy and self.found is None and record.thread == self._thread:
            self.found = message


def _title(information: Any) -> str | None:
    title = None if information is None else information.title
    return (characters(title).strip() or None) if isinstance(title, str) else None


def characters(text: str) -> str:
    """Surrogates, which damaged character maps make, in pairs or replaced; no NUL."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "")
