"""A damaged store: never a wrong answer, and what can be read of it is saved into a new one."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
from engine import Document, Engine
from engine.errors import (
    CorruptionError,
    EngineError,
    InvalidInputError,
    ModelMismatchError,
    StoreExistsError,
    StoreNotFoundError,
)
from engine.recovery import RecoveryReport, recover
from tests.words import TokenEmbedder

PAGE = 16_384
COUNT = 300
EVERY = 4
"""Of the damages so many are left out; `ATTENDEX_EVERY_DAMAGE=1` leaves out none."""
_UNNOTICED = 0.015
"""What a number of a vector may change by that its length, to 1e-4, does not show: the index's
checksum does, as long as there is one."""


def model() -> TokenEmbedder:
    return TokenEmbedder(64, 12)


class Whole:
    """A store whose pages are all in one file, and what it held."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "s"
        with Engine.create(self.path, model=model()) as engine:
            engine.add(
                Document(f"own{i} red {'blue ' * (i % 30)}", id=str(i), metadata={"n": i})
                for i in range(COUNT)
            )
            engine.rebuild()
            engine.add_vectors(np.eye(3, 64), ids=["v0", "v1", "v2"], texts=["one", "two", ""])
            engine.delete([str(i) for i in range(0, COUNT, 9)])
            ids = [str(i) for i in range(COUNT) if i % 9] + ["v0", "v1", "v2"]
            self.documents = {found.id: found for found in engine.get(ids)}
        with closing(sqlite3.connect(self.path / "store.db")) as raw:
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self.passages: dict[str, set[str]] = {}
            query = "SELECT d.key, p.text FROM documents d JOIN passages p ON document_id = d.id"
            for key, text in raw.execute(query):
                self.passages.setdefault(key, set()).add(text)
            self.vectors = dict(raw.execute("SELECT text, vector FROM passages"))
            dbstat = "SELECT pageno, name FROM dbstat ORDER BY pageno"
            self.names: dict[int, str] = dict(raw.execute(dbstat))
        self.data = (self.path / "store.db").read_bytes()

    def copied(self, place: Path, data: bytes) -> Path:
        shutil.copytree(self.path, place)
        (place / "store.db").write_bytes(data)
        return place


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole"))


def damages(whole: Whole) -> Iterator[tuple[str, bytes]]:
    """A page of every table and index overwritten or put elsewhere, bits flipped, the end gone."""
    chance, data = random.Random(2), whole.data
    first = {name: page - 1 for page, name in reversed(whole.names.items())}
    last = {name: page - 1 for page, name in whole.names.items()}
    for name, at in sorted({*first.items(), *last.items()}):
        if at == 0:
            continue
        other = data[(at + 3) % (len(data) // PAGE) * PAGE :][:PAGE]
        for what, page in (("zeros", bytes(PAGE)), ("noise", chance.randbytes(PAGE)), ("", other)):
            changed = data[: at * PAGE] + page + data[(at + 1) * PAGE :]
            yield f"{name} {at} {what or 'exchanged'}", changed
    for at in (
        0,
        16,
        18,
        20,
        21,
        28,
        44,
        56,
        95,
        *(chance.randrange(len(data)) for _ in range(25)),
    ):
        bit = bytes([data[at] ^ (1 << chance.randrange(8))])
        yield f"a bit of {at}", data[:at] + bit + data[at + 1 :]
    for cut in (PAGE, PAGE + 1, len(data) // 2, len(data) - 1):
        yield f"cut at {cut}", data[:cut]
    yield "no header", bytes(100) + data[100:]
    yield "noise for a header", chance.randbytes(100) + data[100:]


def check_answers(whole: Whole, engine: Engine) -> None:
    """No document answers with what is not its own."""
    for id_ in ("7", "29", "100", "151"):
        for hit in engine.search(whole.documents[id_].text, k=5, rerank=False, mode="dense").hits:
            assert hit.text in whole.passages[hit.id], hit


def test_damage_is_an_error_or_no_matter_and_what_is_left_is_saved(
    whole: Whole, tmp_path: Path
) -> None:
    """Only the engine's own errors; never another's text; `verify` names what errors come of."""
    saved: list[int] = []
    every = 1 if os.environ.get("ATTENDEX_EVERY_DAMAGE") else EVERY
    tried = list(damages(whole))[1::every]
    for what, data in tried:
        store = whole.copied(tmp_path / "d", data)
        failed: list[str] = []
        uses: tuple[Callable[[Engine], object], ...] = (
            lambda engine: check_answers(whole, engine),
            lambda engine: engine.search("own7 red", k=3, explain=True),
            lambda engine: engine.search("own7", where="n > 3"),
            lambda engine: engine.get(["7", "100"]),
            lambda engine: engine.export_file(tmp_path / "x.jsonl", overwrite=True),
        )
        try:
            with Engine.open(store, model=model(), read_only=True) as engine:
                for use in uses:
                    try:
                        use(engine)
                    except EngineError as error:
                        failed.append(str(error))
                if failed:
                    with suppress(CorruptionError):
                        assert engine.verify().problems, what
        except EngineError as error:
            failed.append(str(error))
        assert all("recover" in sentence or "rebuild" in sentence for sentence in failed), what
        report = recover(store, tmp_path / "new", model=model())
        saved.append(report.documents)
        check_saved(whole, tmp_path / "new", report, what)
        shutil.rmtree(store)
        shutil.rmtree(tmp_path / "new")
    assert len(saved) > 100 / every
    assert np.median(saved) == len(whole.documents)


def check_saved(whole: Whole, store: Path, report: RecoveryReport, what: str) -> None:
    """Sound, no document other than it was, and as many as the report says."""
    with Engine.open(store, model=model()) as engine:
        assert engine.verify().problems == (), what
        assert engine.stats().documents == report.documents, what
        held = {row[0] for row in rows(store, 'SELECT "key" FROM documents')}
        assert len(held) == report.documents
        for found in engine.get(sorted(held & whole.documents.keys())):
            known = whole.documents[found.id]
            if report.partial == 0:
                assert (found.text, found.metadata) == (known.text, known.metadata), what
        assert held <= whole.documents.keys() or report.partial, what
    for text, vector in rows(store, "SELECT text, vector FROM passages"):
        if text in whole.vectors:
            pair = [np.frombuffer(blob, "<f4") for blob in (vector, whole.vectors[text])]
            np.testing.assert_allclose(pair[0], pair[1], atol=_UNNOTICED)
    if report.lost is not None:
        assert report.documents + report.lost >= len(whole.documents), what


def rows(store: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(store / "store.db")) as raw:
        return raw.execute(query).fetchall()


def test_a_sound_store_is_saved_whole(whole: Whole, tmp_path: Path) -> None:
    embedder = model()
    report = recover(whole.path, tmp_path / "new", model=embedder)
    count = len(whole.documents)
    assert (report.documents, report.expected, report.lost) == (count, count, 0)
    assert (report.embedded, report.partial, report.notes) == (0, 0, ())
    assert embedder.embedded == []
    with Engine.open(tmp_path / "new", model=embedder) as engine:
        assert {found.id: found for found in engine.get([*whole.documents])} == whole.documents
        assert engine.stats().indexed == engine.stats().passages == report.passages
        assert engine.build_tokens() == report.passages - 3
    assert rows(tmp_path / "new", "SELECT text, vector FROM passages ORDER BY text") == rows(
        whole.path, "SELECT text, vector FROM passages ORDER BY text"
    )


def test_what_lost_its_vector_is_embedded_again(whole: Whole, tmp_path: Path) -> None:
    store = whole.copied(tmp_path / "s", whole.data)
    with closing(sqlite3.connect(store / "store.db")) as raw, raw:
        raw.execute(
            "UPDATE passages SET vector = x'00' WHERE id = (SELECT max(id) - 3 FROM passages)"
        )
        (key,) = raw.execute(
            'SELECT d."key" FROM documents d JOIN passages p ON p.document_id = d.id'
            " WHERE length(p.vector) = 1"
        ).fetchone()
        raw.execute("UPDATE passages SET vector = zeroblob(256) WHERE text = 'one'")
        raw.execute("UPDATE documents SET metadata = 'n = 7' WHERE \"key\" = '7'")
        raw.execute("UPDATE documents SET text = 'other' WHERE \"key\" = '29'")
    report = recover(store, tmp_path / "new", model=model())
    assert (report.lost, report.embedded) == (1, 1)
    with Engine.open(tmp_path / "new", model=model()) as engine:
        assert engine.get([key])[0] == whole.documents[key]
        assert engine.get(["29"])[0] == whole.documents["29"], "put together from its passages"
        assert (engine.get(["7"])[0].text, engine.get(["7"])[0].metadata) == (
            whole.documents["7"].text,
            {},
        )
    notes = " ".join(report.notes)
    assert "left out: v0" in notes
    assert "lost their metadata and source: 7" in notes


def test_without_settings_a_model_is_asked_for(whole: Whole, tmp_path: Path) -> None:
    store = whole.copied(tmp_path / "s", whole.data)
    with closing(sqlite3.connect(store / "store.db")) as raw, raw:
        raw.execute("DELETE FROM settings")
    with pytest.raises(CorruptionError, match="attendex recover"):
        Engine.open(store, model=model())
    with pytest.raises(CorruptionError, match="--model"):
        recover(store, tmp_path / "new")
    report = recover(store, tmp_path / "new", model=model())
    assert report.documents == len(whole.documents)
    assert not report.embedded
    with Engine.open(tmp_path / "new", model=model()) as engine:
        assert engine.get([*whole.documents]) == [*whole.documents.values()]


def test_on_the_command_line(
    whole: Whole, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 0 where nothing is missing, 1 where something is, which is named."""
    assert cli.run(["recover", str(tmp_path / "a"), "--store", str(whole.path)]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert (counted["documents"], counted["lost"]) == (len(whole.documents), 0)
    store = whole.copied(tmp_path / "s", whole.data)
    with closing(sqlite3.connect(store / "store.db")) as raw, raw:
        raw.execute("UPDATE passages SET text = 'other' WHERE text = 'one'")
    assert cli.run(["recover", str(tmp_path / "b"), "--store", str(store)]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["lost"] == 1
    assert "left out: v0" in err
    assert cli.run(["recover", str(tmp_path / "b"), "--store", str(store)]) == 1
    assert "there is a store at" in capsys.readouterr().err


def test_another_model_makes_nothing(whole: Whole, tmp_path: Path) -> None:
    with pytest.raises(ModelMismatchError):
        recover(whole.path, tmp_path / "new", model=TokenEmbedder(64, 13))
    assert not (tmp_path / "new").exists()


def test_refusals(whole: Whole, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        recover(tmp_path / "nowhere", tmp_path / "new")
    with pytest.raises(StoreExistsError):
        recover(tmp_path / "any", whole.path)
    with pytest.raises(InvalidInputError, match="lies in the damaged store"):
        recover(whole.path, whole.path / "new")
    for size in (0, 100):
        store = whole.copied(tmp_path / str(size), whole.data[:size])
        with pytest.raises(EngineError):
            Engine.open(store)
        with pytest.raises(CorruptionError, match="nothing of it can be saved"):
            recover(store, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".recover")]


SETTINGS = {
    "DELETE FROM settings WHERE name = 'dimension'": "dimension",
    "UPDATE settings SET value = 'x' WHERE name = 'dimension'": "settings",
    "UPDATE settings SET value = '\"256\"' WHERE name = 'dimension'": "'256'",
    "UPDATE settings SET value = -3 WHERE name = 'dimension'": "-3",
    "UPDATE settings SET value = '\"far\"' WHERE name = 'metric'": "far",
    "UPDATE settings SET value = '[]' WHERE name = 'kind'": r"\[\]",
    "UPDATE settings SET value = 'null' WHERE name = 'model'": "None",
    "UPDATE settings SET value = 7 WHERE name = 'recall'": "7",
    "INSERT INTO settings VALUES ('colour', '1')": "colour",
    "DROP TABLE settings": "settings",
    "DELETE FROM generation": "generation",
    "UPDATE generation SET number = 'x'": "generation",
    "UPDATE generation SET passages = x'00'": "generation",
    "DROP TABLE generation": "generation",
    "DROP TABLE documents": "documents",
    "UPDATE documents SET metadata = '[1]' WHERE id = 2": "documents",
}


@pytest.mark.parametrize("statement", SETTINGS)
def test_rows_damaged_by_hand(whole: Whole, tmp_path: Path, statement: str) -> None:
    store = whole.copied(tmp_path / "s", whole.data)
    with closing(sqlite3.connect(store / "store.db")) as raw, raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        raw.execute(statement)
    said: list[str] = []
    uses: tuple[Callable[[Engine], object], ...] = (
        lambda engine: engine.stats(),
        lambda engine: engine.search(whole.documents["2"].text, k=1),
        lambda engine: engine.add(["one more"]),
        lambda engine: said.extend(engine.verify().problems),
    )
    try:
        with Engine.open(store, model=model()) as engine:
            for use in uses:
                try:
                    use(engine)
                except CorruptionError as error:
                    said.append(str(error))
    except CorruptionError as error:
        said.append(str(error))
    assert any(SETTINGS[statement].replace("\\", "") in one for one in said), said


def test_a_lost_log_is_told(whole: Whole, tmp_path: Path) -> None:
    """Without its log, or with one that is damaged, a store is an older one, whole; `verify`
    tells that a later one was indexed."""
    store = whole.copied(tmp_path / "s", whole.data)
    engine = Engine.open(store, model=model())
    before = engine.stats().generation
    engine.add([Document("own5 changed", id="5"), Document("new here", id="new")])
    engine.rebuild()
    log = (store / "store.db-wal").read_bytes()
    assert log
    other = tmp_path / "other"
    for what, left in (
        ("gone", None),
        ("noise", os.urandom(len(log))),
        ("cut", log[: len(log) // 9]),
    ):
        shutil.copytree(store, other)
        (other / "store.db-shm").unlink(missing_ok=True)
        if left is None:
            (other / "store.db-wal").unlink()
        else:
            (other / "store.db-wal").write_bytes(left)
        with Engine.open(other, model=model(), read_only=True) as opened:
            assert opened.stats().generation == before, what
            assert any("what was committed between is gone" in p for p in opened.verify().problems)
            assert opened.get(["5"])[0] == whole.documents["5"]
            check_answers(whole, opened)
        shutil.rmtree(other)
    engine.close()
