"""Whether a store is whole: `verify` finds nothing and every row answers with its own text."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.crash.operations import opened

_ALIKE = 1 - 1e-5


def faults(store: Path) -> list[str]:
    """What is wrong with it, in words; nothing for a sound store."""
    with opened(store) as engine:
        found = list(engine.verify().problems)
        with closing(sqlite3.connect(store / "store.db")) as raw:
            rows = raw.execute(
                "SELECT d.key, p.text FROM passages p JOIN documents d ON d.id = p.document_id"
                " WHERE p.ordinal = 0"
            ).fetchall()
        if len(engine.search("red", k=100_000, mode="dense", rerank=False).hits) != len(rows):
            found.append("not every document answers")
        for key, text in rows:
            hits = engine.search(text, k=5, mode="dense", rerank=False).hits
            own = [hit for hit in hits if hit.id == key and hit.text == text]
            if not own or (own[0].similarity or 0) < _ALIKE:
                found.append(f"{key!r} does not answer with its text")
        return found
