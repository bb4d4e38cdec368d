"""The place of a store's helper, one process's alone: a lock that the system frees of who dies."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from engine.errors import StorageError
from engine.serving import protocol
from engine.serving.client import make_directory
from engine.serving.link import linked
from engine.serving.protocol import Place


@contextmanager
def claimed(store: str) -> Iterator[Place]:
    """The place of a store's helper, this process's alone; whoever was killed there has left it.

    Raises `StorageError` where another helper has it, or there can be none.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise StorageError("a daemon needs a system with Unix sockets")
    place = protocol.place_of(store)
    with usable(place):
        make_directory(place)
    lock = FileLock(place.lock, timeout=0)
    try:
        with usable(place):
            lock.acquire()
    except Timeout:
        raise StorageError(f"{_other(store)}; end it with: attendex daemon --stop") from None
    try:
        yield place
    finally:
        lock.release()


@contextmanager
def usable(place: Place) -> Iterator[None]:
    """Where the system does not let the place be used: `StorageError`."""
    try:
        yield
    except Timeout:
        raise
    except OSError as error:
        raise StorageError(
            f"no daemon can be had in {place.directory} ({error.strerror or error}); "
            "set XDG_RUNTIME_DIR to a directory of yours"
        ) from error


def is_free(place: Place, seconds: float) -> bool:
    """No helper has the place, or none any more within that time."""
    try:
        with FileLock(place.lock, timeout=seconds):
            return True
    except Timeout:
        return False


def _other(store: str) -> str:
    link = linked(store)
    if link is None:
        return f"another daemon of {store} is starting or ending"
    with link:
        return f"a daemon of {store} runs already (process {link.process})"
