"""A process that forks another for each operation, kills it where told, and says how it ended.

`python -m tests.crash.child` reads a JSON line for each and answers with one. What a child needs
is loaded before it is forked, so that a kill takes the time of the operation alone.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from tests.crash import looking
from tests.crash.operations import (
    OPERATIONS,
    POINTS,
    SMALLER,
    WITHIN,
    digest_of,
    generation,
    snapshot,
)

_LOADED = (
    "engine.upkeep",
    "engine.ingest",
    "engine.intake",
    "engine.checks",
    "engine.tokens",
    "engine.transfer",
    "engine.search",
    "engine.index.tuning",
    "alembic.command",
)


class _Watch:
    """Counts how often each point is passed; kills at one of them. Tells of every commit."""

    def __init__(self, asked: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        self._point, self._number = asked.get("point"), asked.get("number", 0)
        self._store = Path(asked["store"])
        self._tell = tell
        self._record = asked.get("record", False)
        self.passed: Counter[str] = Counter()

    def install(self) -> None:
        for name in dict.fromkeys(path for path, _ in POINTS.values()):
            owner, attribute = _found(name)
            setattr(owner, attribute, self._around(getattr(owner, attribute), name))
        for point, name in WITHIN.items():
            owner, attribute = _found(name)
            setattr(owner, attribute, self._inside(getattr(owner, attribute), point))

    def _around(self, plain: Callable[..., Any], name: str) -> Callable[..., Any]:
        points = {when: point for point, (path, when) in POINTS.items() if path == name}

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._pass(points.get("before"))
            try:
                return plain(*args, **kwargs)
            finally:
                if points.get("after") == "after a commit":
                    self._committed()
                self._pass(points.get("after"))

        return watched

    def _inside(self, plain: Callable[..., Iterator[Any]], point: str) -> Callable[..., Any]:
        def watched(*args: Any) -> Iterator[Any]:
            for one in plain(*args):
                yield one
                self._pass(point)

        return watched

    def _pass(self, point: str | None) -> None:
        if point is None:
            return
        self.passed[point] += 1
        if point == self._point and self.passed[point] == self._number:
            os.kill(os.getpid(), signal.SIGKILL)

    def _committed(self) -> None:
        """A transaction has ended, one that only read or one that wrote."""
        if not self._record:
            self._tell({"generation": generation(self._store)})
        elif (self._store / "store.db").exists():
            number, rows = snapshot(self._store)
            self._tell({"generation": number, "digest": digest_of(rows)})


def _found(name: str) -> tuple[Any, str]:
    """What holds a named function, and under which name."""
    owner_name, attribute = name.rsplit(".", 1)
    try:
        return importlib.import_module(owner_name), attribute
    except ModuleNotFoundError:
        module, kind = owner_name.rsplit(".", 1)
        return getattr(importlib.import_module(module), kind), attribute


def _work(asked: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    store = Path(asked["store"])
    if asked["do"] == "look":
        tell({"faults": looking.faults(store)})
        return
    operation = OPERATIONS[asked["operation"]]
    if asked["do"] == "before":
        operation.before(store)
        return
    watch = _Watch(asked, tell)
    watch.install()
    if asked.get("room") is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (asked["room"], asked["room"]))
    try:
        operation.run(store)
    except EngineError as error:
        tell({"refused": f"{type(error).__name__}: {error}"})
        return
    finally:
        tell({"passed": watch.passed})


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """Fork, do as asked, and say how that ended: `status` as `waitpid` gives it, `seconds`, and
    all that the child told."""
    reading, writing = os.pipe()
    started = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            _work(asked, lambda said: _tell(writing, said))
            status = 0
        except BaseException:
            _tell(writing, {"trace": traceback.format_exc()})
        finally:
            os._exit(status)
    os.close(writing)
    over = threading.Event()
    if "after" in asked:
        threading.Thread(target=_kill_later, args=(child, asked["after"], over)).start()
    with os.fdopen(reading) as told:
        lines = told.read().splitlines()
    over.set()
    _, status = os.waitpid(child, 0)
    said = [json.loads(line) for line in lines]
    return {"status": status, "seconds": time.perf_counter() - started, "said": said}


def _kill_later(child: int, seconds: float, over: threading.Event) -> None:
    if not over.wait(seconds):
        os.kill(child, signal.SIGKILL)


def _tell(descriptor: int, said: dict[str, Any]) -> None:
    os.write(descriptor, json.dumps(said).encode() + b"\n")


def main() -> None:
    for name in _LOADED:
        importlib.import_module(name)
    for name, value in SMALLER.items():
        owner, attribute = _found(name)
        plain = getattr(owner, attribute)
        setattr(owner, attribute, type(plain)(*value) if isinstance(value, tuple) else value)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
