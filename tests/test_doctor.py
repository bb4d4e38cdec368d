"""What `doctor` finds, and that libraries may be loaded in any order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import cli
from engine import Engine, __version__, threads
from engine.doctor import Finding, examine
from engine.embedding import exports, locate, onnx
from engine.errors import ModelUnavailableError
from engine.models import ModelSource
from engine.settings import DEFAULT_MODEL
from tests.words import WordEmbedder

ROOT = Path(__file__).resolve().parents[1]


def found(store: str | None = None) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(store)}


@pytest.mark.model
def test_a_sound_installation_has_no_fault(engine: Engine, tmp_path: Path) -> None:
    engine.add(["a dog", "a cat"])
    facts = found(str(tmp_path / "s"))
    assert [one for one in facts.values() if one.fault] == []
    assert facts["attendex"].value == __version__
    assert "2 documents" in facts["store"].value
    assert {"numpy", "faiss-cpu", "torch", "sqlalchemy", "device", "model"} <= set(facts)
    assert any("openmp" in one.value for one in facts.values())


def test_what_is_wrong_is_said_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ModelUnavailableError("there is no model")

    monkeypatch.setattr(locate, "locate", refuse)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATTENDEX_CACHE", str(tmp_path / "file"))
    facts = found(str(tmp_path / "nowhere"))
    assert facts["model"].fault == "there is no model"
    assert "cannot be written" in (facts["cache"].fault or "")
    assert "nowhere" in (facts["store"].fault or "")
    assert facts["numpy"].fault is None


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s"
    with Engine.create(path, model=WordEmbedder()) as engine:
        engine.add(["a dog"])
        engine.rebuild()
    status = cli.run(["doctor", "--json", "--store", str(path)])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {"name": "attendex", "value": __version__, "fault": None}
    assert status == (1 if any(line["fault"] for line in lines) else 0)
    assert cli.run(["doctor", "--table", "--store", str(tmp_path / "none")]) == 1
    assert "! " in capsys.readouterr().out


@pytest.mark.parametrize("order", list(permutations(["torch", "faiss", "numpy"])), ids="-".join)
def test_libraries_in_any_order_give_the_same_answers(
    order: tuple[str, ...], tmp_path: Path
) -> None:
    code = f"""
import {order[0]}
import {order[1]}
import {order[2]}
import sys
import numpy as np
from engine import Engine
from engine.models import ModelSource
from engine.settings import DEFAULT_MODEL
from tests.words import WordEmbedder
rows = np.random.default_rng(0).standard_normal((3000, 512), dtype=np.float32)
with Engine.create(sys.argv[1], model=WordEmbedder()) as engine:
    engine.add_vectors(rows, ids=[str(n) for n in range(len(rows))])
    engine.rebuild()
    for count in (1, 40):
        found = engine.search_vectors(rows[:count] + 1, k=3)
        print([[hit.id for hit in result.hits] for result in found])
right = (rows[:40] + 1) @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T
print(np.argsort(-right, axis=1)[:, :3].astype(str).tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    one, many, right = done.stdout.splitlines()
    assert many == right
    assert one == f"{right[: right.index(']') + 1]}]"


@pytest.mark.parametrize(
    ("told", "right"), [("1", 1), ("3,2", 3), ("", None), ("0", None), ("many", None)]
)
def test_threads_are_those_told(
    told: str, right: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert threads.wanted() == (threads.processors() if right is None else right)


@pytest.mark.model
def test_the_runtime_takes_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder: Any = ModelSource(DEFAULT_MODEL, offline=True, runtime="onnx").load()
    export = exports.find(embedder.fingerprint)
    assert export is not None
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = onnx.OnnxEmbedder("other", "other", export)
    assert made._session.get_session_options().intra_op_num_threads == 1


@pytest.mark.parametrize("told", [None, "20"])
@pytest.mark.parametrize("program", ["cli.run(['--version'])", "entry.main()"])
def test_commands_let_idle_threads_sleep(program: str, told: str | None) -> None:
    """Before numpy or faiss is loaded; whoever has said otherwise is heeded."""
    code = "import os, sys; sys.argv = ['attendex', '--version']\n"
    code += "import cli\nfrom engine import entry\n"
    code += f"assert 'numpy' not in sys.modules and 'faiss' not in sys.modules\ntry: {program}\n"
    code += "finally: print(os.environ['OPENBLAS_THREAD_TIMEOUT'])"
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_THREAD_TIMEOUT"}
    if told is not None:
        environment["OPENBLAS_THREAD_TIMEOUT"] = told
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        env=environment,
    )
    assert done.stdout.splitlines()[-1] == (told or "18")
