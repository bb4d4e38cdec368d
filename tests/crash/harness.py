"""Kills children at named points and at random moments, and tells what they left behind.

A store killed at any moment must hold exactly one of the states that an undisturbed run commits,
none older than the last commit that returned; and the same operation, run again, must end as the
undisturbed run did.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.operations import OPERATIONS, POINTS, WITHIN, digest, generation, pending

ROOT = Path(__file__).resolve().parents[2]
_ROOM = 1 << 28


@dataclass
class Tally:
    """How an operation's kills ended. `faults` are the sentences behind `lost` and `wrong`."""

    kills: int = 0
    survived: int = 0
    refused: int = 0
    lost: int = 0
    wrong: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass
class _Reference:
    """An undisturbed run: the store before it, its states by generation, and how it ended."""

    before: Path
    states: dict[int, str]
    last: str
    pending: int
    passed: dict[str, int]
    seconds: float
    sizes: tuple[int, int]


class Harness:
    """Works in `folder`; `seed` decides every kill."""

    def __init__(self, folder: Path, seed: int, zygote: subprocess.Popen[str]) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._zygote = zygote
        self._references: dict[str, _Reference] = {}
        self.tallies = {name: Tally() for name in OPERATIONS}

    def kill(self, operation: str) -> None:
        """Kill it once, at a named point or at a random moment, and look at what is left."""
        reference, chance = self._reference(operation), self._chance
        points = [point for point in (*POINTS, *WITHIN) if reference.passed.get(point)]
        if chance.random() < 0.6:
            point = chance.choice(points)
            number = chance.randint(1, reference.passed[point])
            self._try(operation, f"{point} ({number})", point=point, number=number)
        else:
            moment = chance.uniform(0, reference.seconds)
            self._try(operation, f"after {moment:.3f} s", after=moment)

    def deny(self, operation: str) -> None:
        """Let it run where no file may grow past some size, and look at what is left."""
        first, last = self._reference(operation).sizes
        room = self._chance.randint(first // 2, max(last, first + 1))
        self._try(operation, f"no file past {room} bytes", room=room)

    def _try(self, operation: str, what: str, **how: Any) -> None:
        tally, reference = self.tallies[operation], self._reference(operation)
        place = self._emptied()
        shutil.copytree(reference.before, place, dirs_exist_ok=True)
        store = place / "s"
        done = self._ask("run", store, operation, **how)
        tally.kills += 1
        lost, wrong = self._left(reference, store, done)
        if not lost and not wrong:
            again = self._ask("run", store, operation)
            if again["status"] or digest(store) != reference.last:
                wrong.append(f"run again it ends otherwise {_trace(again)}")
            elif pending(store) != reference.pending:
                wrong.append("run again it leaves sources pending")
        for said in done["said"]:
            tally.refused += "refused" in said
        tally.lost += bool(lost)
        tally.wrong += bool(wrong)
        tally.survived += not lost and not wrong
        tally.faults += [f"{operation}, {what}: {fault}" for fault in (*lost, *wrong)]

    def _left(
        self, reference: _Reference, store: Path, done: dict[str, Any]
    ) -> tuple[list[str], list[str]]:
        """What is lost of a disturbed run's commits, and what is wrong with what it left."""
        lost: list[str] = []
        wrong: list[str] = []
        status = done["status"]
        if status and not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            wrong.append(f"ended by itself: {_trace(done)}")
        committed = max((s["generation"] for s in done["said"] if "generation" in s), default=0)
        if not (store / "store.db").exists():
            if committed or 0 not in reference.states:
                lost.append("the store is gone")
            return lost, wrong
        reached = generation(store)
        if reached < committed:
            lost.append(f"generation {committed} was committed, {reached} is there")
        if digest(store) != reference.states.get(reached):
            wrong.append(f"generation {reached} is another than that of an undisturbed run")
        looked = self._ask("look", store)
        wrong += [
            fault for said in looked["said"] for fault in said.get("faults", [_trace(looked)])
        ]
        return lost, wrong

    def _reference(self, operation: str) -> _Reference:
        if operation in self._references:
            return self._references[operation]
        place, first = self._emptied(), OPERATIONS[operation].before
        store, before = place / "s", self._folder / first.__name__
        if before.exists():
            shutil.copytree(before, place, dirs_exist_ok=True)
        else:
            made = self._ask("before", store, operation)
            assert not made["status"], _trace(made)
            shutil.copytree(place, before)
        states = {generation(store): digest(store) if store.exists() else ""}
        done = self._ask("run", store, operation, record=True)
        assert not done["status"], _trace(done)
        passed: dict[str, int] = {}
        for said in done["said"]:
            if "digest" in said:
                states[said["generation"]] = said["digest"]
            passed |= said.get("passed", {})
        if operation == "index":
            states[0] = self._empty_digest()
        sizes = (_largest(before), _largest(place))
        self._references[operation] = _Reference(
            before, states, digest(store), pending(store), passed, done["seconds"], sizes
        )
        return self._references[operation]

    def _emptied(self) -> Path:
        """Where all of it happens, each time in the same place: sources are named by their path."""
        place = self._folder / "try"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return place

    def _empty_digest(self) -> str:
        """The digest of a store that was made and holds nothing yet."""
        from engine import Engine
        from tests.crash.operations import model

        Engine.create(self._folder / "empty", model=model()).close()
        return digest(self._folder / "empty")

    def _ask(self, do: str, store: Path, operation: str = "", **how: Any) -> dict[str, Any]:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        asked = {"do": do, "store": str(store), "operation": operation, **how}
        self._zygote.stdin.write(json.dumps(asked) + "\n")
        self._zygote.stdin.flush()
        answer: dict[str, Any] = json.loads(self._zygote.stdout.readline())
        return answer


def _trace(done: dict[str, Any]) -> str:
    return " ".join(said["trace"] for said in done["said"] if "trace" in said)[-1000:]


def _largest(folder: Path) -> int:
    return max((p.stat().st_size for p in folder.rglob("*") if p.is_file()), default=0)


@contextmanager
def harness(seed: int) -> Iterator[Harness]:
    """A harness with a process that forks its children, in memory where there is room for that:
    a killed process leaves the same there, and nothing waits for a disk."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > _ROOM
    folder = tempfile.mkdtemp(dir=memory if roomy else None)
    zygote = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.child"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert zygote.stdin is not None
    assert zygote.stdout is not None
    try:
        yield Harness(Path(folder), seed, zygote)
    finally:
        zygote.stdin.close()
        zygote.wait(timeout=60)
        zygote.stdout.close()
        shutil.rmtree(folder)
