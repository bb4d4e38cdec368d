"""Stores as earlier versions made them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from engine.storage import lexical


def make_older(store: Path, revision: str) -> None:
    """Take from a store without word vectors what came after schema 0001 or 0002."""
    with closing(sqlite3.connect(store / "store.db")) as raw, raw:
        for table in ["passage_words", "directions", lexical.TABLE][: 2 + (revision == "0001")]:
            raw.execute(f"DROP TABLE {table}")
        for column in ("worded", "word_bytes"):
            raw.execute(f"ALTER TABLE generation DROP COLUMN {column}")
        raw.execute("DELETE FROM settings WHERE name = 'tokens'")
        raw.execute("UPDATE alembic_version SET version_num = ?", (revision,))
