"""A query in its context: a word alone has no sense, the words around it give it one."""

from __future__ import annotations

import re


def occurrence(text: str, context: str) -> tuple[int, int] | None:
    """Where `text` stands in `context` as whole words, in whatever case; the first place."""
    found = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", context, re.IGNORECASE)
    return None if found is None else found.span()
