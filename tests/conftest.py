from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import Engine
from engine.embedding.fingerprint import fingerprint
from engine.embedding.locate import PACKAGE, locate
from engine.settings import DEFAULT_MODEL
from tests.words import WordEmbedder

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not DATA.is_dir():
        for item in items:
            if item.get_closest_marker("data"):
                item.add_marker(pytest.mark.skip(reason=f"no collections at {DATA}"))


@pytest.fixture
def words() -> WordEmbedder:
    return WordEmbedder()


@pytest.fixture
def engine(tmp_path: Path, words: WordEmbedder) -> Iterator[Engine]:
    """A new store of word-count vectors."""
    with Engine.create(tmp_path / "s", model=words) as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def exports_of_this_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Models are exported into a directory of our own, for child processes too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTENDEX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def minilm() -> object:
    """The real model, loaded once; the command line shares it within this process."""
    pytest.importorskip(PACKAGE)
    from engine.embedding import sentence_transformer

    located = locate(DEFAULT_MODEL, offline=True)
    return sentence_transformer.load(located, fingerprint(located.path))
