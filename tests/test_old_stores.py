"""Stores that earlier programs wrote, one of each schema, in this one.

`stores/schema-NNNN.db.gz` are the databases of real stores, made by the last program of each schema
(their index files are gone, as those of a restored backup are).
"""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from engine import Engine
from engine.errors import SchemaVersionError
from engine.recovery import recover
from engine.storage import database, lexical
from tests.older import make_older
from tests.words import TokenEmbedder, WordEmbedder

STORES = Path(__file__).parent / "stores"
REVISIONS = [f"{number:04d}" for number in range(1, int(database.HEAD) + 1)]
IDS = ["cut", "dog", "long", "own"]


def model(revision: str) -> WordEmbedder:
    """The one that embedded them; before schema 0003 models had no words to give."""
    if revision == "0003":
        return TokenEmbedder(16, 6, width=4)
    plain = WordEmbedder(16, 6)
    plain.fingerprint = "tokens-16-6"
    return plain


@pytest.fixture(params=REVISIONS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    revision: str = request.param
    (tmp_path / "s").mkdir()
    data = gzip.decompress((STORES / f"schema-{revision}.db.gz").read_bytes())
    (tmp_path / "s" / "store.db").write_bytes(data)
    return tmp_path / "s", revision


def shape(path: Path) -> dict[str, str]:
    """The statements that make the tables, but for white space; those FTS5 keeps left out."""
    with closing(sqlite3.connect(path / "store.db")) as raw:
        rows = raw.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: "".join(sql.split()) for name, sql in rows if name not in lexical.OWNED}


def test_it_is_upgraded_and_answers(old: tuple[Path, str]) -> None:
    path, revision = old
    assert database.check_schema(path) == revision
    before = (path / "store.db").read_bytes()
    if revision != database.HEAD:
        with pytest.raises(SchemaVersionError, match="open it once for writing"):
            Engine.open(path, read_only=True, model=model(revision))
        assert (path / "store.db").read_bytes() == before
    with Engine.open(path, model=model(revision)) as engine:
        assert engine.stats().schema == database.HEAD
        assert (engine.stats().documents, engine.stats().passages) == (6, 7)
        assert engine.verify().problems in ((), tuple(lost_index(engine)))
        assert [hit.id for hit in engine.search("green bird", k=1).hits] == [found(path, "green")]
        assert engine.search("eleven twelve", k=1).hits[0].id == "cut"
        assert engine.search_vectors(np.eye(1, 16), k=1)[0].hits[0].id == "own"
        assert [hit.id for hit in engine.search("dog", where="n = 1.5").hits] == ["dog"]
        assert engine.search("measures", mode="lexical").hits[0].id == "long"
        assert engine.get(["long"])[0].metadata == {"year": 1999, "tags": ["warm"]}
        assert engine.verify().problems == ()
        assert engine.add(["a red fish", "new here"]).added == 2
        engine.delete(["dog"])
        engine.rebuild()
        assert engine.verify().problems == ()
    saved = list(path.glob("backups/*"))
    assert len(saved) == (revision != database.HEAD)
    for one in saved:
        with closing(sqlite3.connect(one)) as raw:
            assert raw.execute("SELECT version_num FROM alembic_version").fetchone() == (revision,)
            held = {row[0] for row in raw.execute("SELECT key FROM documents")}
            assert held >= set(IDS)


def lost_index(engine: Engine) -> list[str]:
    return [f"the index file {engine.stats().path}/index/index-3.faiss is missing"]


def found(path: Path, word: str) -> str:
    with closing(sqlite3.connect(path / "store.db")) as raw:
        query = "SELECT d.key FROM documents d JOIN passages p ON p.document_id = d.id"
        (row,) = raw.execute(f"{query} WHERE p.text LIKE ?", (f"%{word}%",)).fetchall()
    return str(row[0])


def test_it_can_be_recovered_as_it_is(old: tuple[Path, str], tmp_path: Path) -> None:
    path, revision = old
    report = recover(path, tmp_path / "new", model=model(revision))
    assert (report.documents, report.lost, report.partial, report.notes) == (6, 0, 0, ())
    with Engine.open(tmp_path / "new", model=model(revision)) as engine:
        assert [one.id for one in engine.get(IDS)] == IDS
        assert engine.verify().problems == ()


@pytest.mark.parametrize("revision", REVISIONS[:-1])
def test_a_store_made_older_is_as_an_old_one(tmp_path: Path, revision: str) -> None:
    """What other tests take for old stores has the same tables."""
    (tmp_path / "real").mkdir()
    data = gzip.decompress((STORES / f"schema-{revision}.db.gz").read_bytes())
    (tmp_path / "real" / "store.db").write_bytes(data)
    Engine.create(tmp_path / "made", model=WordEmbedder()).close()
    make_older(tmp_path / "made", revision)
    assert shape(tmp_path / "made") == shape(tmp_path / "real")
