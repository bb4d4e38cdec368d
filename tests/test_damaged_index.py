"""Whatever becomes of the index's files: noticed before FAISS reads them, and put back."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import Document, Engine
from engine.index import flat, native, quantised
from engine.settings import IndexKind
from engine.types import Hit
from tests.words import WordEmbedder

QUERIES = ["text 7", "text 100", "red text 31"]
COLOURS = ["red", "green", "blue", "pear", "plum"]
FILES = ["copy", "hnsw", "ids", "index"]


def model() -> WordEmbedder:
    return WordEmbedder(32)


def answers(engine: Engine) -> list[tuple[Hit, ...]]:
    return [engine.search(query, k=5, rerank=False, exact=True).hits for query in QUERIES]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A store with every kind of file beside it, and the files of an earlier generation."""
    folder = tmp_path_factory.mktemp("whole")
    chance = random.Random(5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantised, "SMALLEST", 64)
        patch.setattr("engine.approximation.FEWEST", 64)
        with Engine.create(folder / "s", model=model()) as engine:
            engine.add(
                Document(f"text {i} {chance.choice(COLOURS)}", id=str(i)) for i in range(150)
            )
            engine.tune(kind=IndexKind.HNSW, recall=0.05)
            shutil.copytree(folder / "s" / "index", folder / "older")
            engine.add([Document("text 7 is red now", id="7")])
            engine.tune(kind=IndexKind.HNSW, recall=0.05)
        yield folder / "s", folder / "older"


Damage = Callable[[Path], object]


def written(data: bytes) -> Damage:
    return lambda path: path.write_bytes(data)


def replaced(make: Damage) -> Damage:
    """Something else stands where the file was."""

    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


def damages(data: bytes) -> dict[str, Damage]:
    """Ways to damage a file of these bytes."""
    chance = random.Random(3)
    cuts = {0, 1, 3, 4, 8, 33, 36, 37, 77, len(data) // 2, len(data) - 8, len(data) - 1}
    cuts |= {chance.randrange(len(data)) for _ in range(5)}
    found = {f"cut at {cut}": written(data[:cut]) for cut in cuts if 0 <= cut < len(data)}
    for at in {0, 4, 8, 33, len(data) - 1, *(chance.randrange(len(data)) for _ in range(6))}:
        bit = bytes([data[at] ^ (1 << chance.randrange(8))])
        found[f"a bit of {at}"] = written(data[:at] + bit + data[at + 1 :])
    return found | {
        "longer": written(data + b"\0"),
        "zeros": written(bytes(len(data))),
        "gone": Path.unlink,
        "a directory": replaced(Path.mkdir),
        "a full directory": replaced(lambda path: (path / "x").mkdir(parents=True)),
        "a pipe": replaced(os.mkfifo),
        "a link to nothing": replaced(lambda path: path.symlink_to("nothing")),
        "a link to itself": replaced(lambda path: path.symlink_to(path.name)),
        "a link to a device": replaced(lambda path: path.symlink_to("/dev/zero")),
    }


@pytest.mark.parametrize("kind", FILES)
def test_damage_is_noticed_and_put_back(
    whole: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(quantised, "SMALLEST", 64)
    monkeypatch.setattr("engine.approximation.FEWEST", 64)
    store, older = whole
    with Engine.open(store, model=model(), read_only=True) as sound:
        assert sound.verify().problems == ()
        expected = answers(sound)
    (name,) = (path.name for path in (store / "index").iterdir() if path.name.startswith(kind))
    data = (store / "index" / name).read_bytes()
    (old,) = (path.read_bytes() for path in older.iterdir() if path.name.startswith(kind))
    read: list[Path] = []
    plain = flat.mapped

    def watched(path: Path) -> object:
        read.append(path)
        return plain(path)

    tried = [*{**damages(data), "older": written(old)}.items()]
    for what, damage in tried if kind in ("index", "copy") else tried[::3]:
        place = tmp_path / what
        shutil.copytree(store, place)
        path = place / "index" / name
        damage(path)
        with monkeypatch.context() as patch:
            for module in (flat, quantised, native):
                patch.setattr(module, "mapped", watched)
            with Engine.open(place, model=model(), read_only=True) as reader:
                assert any(name in one for one in reader.verify().problems), what
                assert answers(reader) == expected, what
            assert read == [], "FAISS was given a damaged file, or one of its generation"
        with Engine.open(place, model=model()) as engine:
            assert answers(engine) == expected, what
        with Engine.open(place, model=model(), read_only=True) as again:
            assert again.verify().problems == (), what
            assert answers(again) == expected, what
        shutil.rmtree(place)


def test_a_link_to_a_whole_file_elsewhere_is_as_good(
    whole: tuple[Path, Path], tmp_path: Path
) -> None:
    store, _ = whole
    shutil.copytree(store, tmp_path / "s")
    for path in (tmp_path / "s" / "index").iterdir():
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)
    with Engine.open(tmp_path / "s", model=model()) as engine:
        assert engine.verify().problems == ()
        assert [hits[0].id for hits in answers(engine)][:2] == ["7", "100"]
        engine.rebuild()
        assert engine.verify().problems == ()
    assert not any(path.is_symlink() for path in (tmp_path / "s" / "index").glob("index-*"))


def test_an_index_directory_that_is_none(whole: tuple[Path, Path], tmp_path: Path) -> None:
    """Answers come from the database, and go on coming from it."""
    store, _ = whole
    shutil.copytree(store, tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / "index")
    (tmp_path / "s" / "index").write_text("a file")
    with Engine.open(tmp_path / "s", model=model()) as engine:
        assert [hits[0].id for hits in answers(engine)][:2] == ["7", "100"]
        assert engine.add([f"more {i}" for i in range(400)]).added == 400
        assert engine.search("more 311", k=1, rerank=False).hits[0].text == "more 311"
