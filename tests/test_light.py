"""What must start at once loads nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine import Engine
from tests.words import WordEmbedder

ROOT = Path(__file__).resolve().parents[1]
MODELS = {"torch", "faiss", "transformers", "sentence_transformers", "tokenizers"}


def loaded(code: str, *arguments: str) -> set[str]:
    """Top-level modules in a fresh process after `code`."""
    ending = "\nimport json, sys\nprint(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", code + ending, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_loads_no_library() -> None:
    assert not loaded("import engine; engine.__version__") & {*MODELS, "sqlalchemy", "numpy"}


def test_public_names_are_those_of_the_design() -> None:
    import engine

    for name in engine.__all__:
        assert getattr(engine, name) is not None
    assert set(dir(engine)) == set(engine.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        engine.Nonsense  # noqa: B018


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("light") / "s"
    with Engine.create(path, model=WordEmbedder()) as made:
        made.add(["a dog", "a cat"])
        made.rebuild()
    return str(path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["index", "--help"],
        ["query", "--help"],
        ["status"],
        ["get", "nothing"],
        ["delete", "nothing"],
        ["export", "-"],
    ],
    ids=" ".join,
)
def test_light_commands_load_no_model_library(arguments: list[str], store: str) -> None:
    named = [*arguments, "--store", store] if "--help" not in arguments else arguments
    code = "import sys, cli; cli.run(sys.argv[1:])"
    assert not loaded(code, *named) & MODELS


@pytest.mark.parametrize("arguments", [["--help"], ["query", "--help"]], ids=" ".join)
def test_help_loads_no_database(arguments: list[str]) -> None:
    code = "import sys, cli; cli.run(sys.argv[1:])"
    assert not loaded(code, *arguments) & {*MODELS, "sqlalchemy", "alembic", "rich"}


@pytest.mark.parametrize("arguments", [["status"], ["get", "nothing"]], ids=" ".join)
def test_what_only_counts_loads_no_arrays(arguments: list[str], store: str) -> None:
    code = "import sys, cli; cli.run(sys.argv[1:])"
    found = loaded(code, *arguments, "--store", store)
    assert not found & {*MODELS, "numpy", "sqlalchemy", "alembic", "onnxruntime"}


def test_searching_vectors_without_a_rerank_loads_no_torch(store: str) -> None:
    code = """
import sys
import numpy as np
from engine import Engine
from tests.words import WordEmbedder
with Engine.open(sys.argv[1], model=WordEmbedder()) as engine:
    assert engine.search_vectors(np.ones((1, 512)), rerank=False)[0].hits
"""
    assert loaded(code, store) & MODELS == {"faiss"}
