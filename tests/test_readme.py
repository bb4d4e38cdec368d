"""The README's commands and example do what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.model


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def command(tmp_path: Path) -> dict[str, str]:
    """An environment in which `attendex` is this checkout's program."""
    script = tmp_path / "bin" / "attendex"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "cli.py"}" "$@"\n')
    script.chmod(0o755)
    return {"PATH": f"{script.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8"}


def test_commands(command: dict[str, str], tmp_path: Path) -> None:
    (block,) = blocks("console")
    lines = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    assert len(lines) > 8
    outputs: dict[str, str] = {}
    for line in lines:
        done = subprocess.run(
            ["sh", "-c", line],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=command,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        outputs[line] = done.stdout
    for text, answer in (("how warm is it?", "notes.txt:1"), ("a sleeping pet", "8")):
        found = next(
            out for line, out in outputs.items() if line.startswith(f'attendex query "{text}"')
        )
        assert f'"rank": 1, "id": "{answer}"' in found


def test_example(
    minilm: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (block,) = blocks("python")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})
    first, score = capsys.readouterr().out.splitlines()
    assert first.startswith("1 physics 0.")
    assert 0 < float(score) < 1


def test_every_command_is_in_the_readme() -> None:
    import cli

    for name in cli.cli.commands:
        assert re.search(rf"\b{name}\b", README), name
