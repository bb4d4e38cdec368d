"""Files beside the database: atomic publication, checksums, the writer's lock.

A published file appears under its name complete and synced, or not at all.
"""

from __future__ import annotations

import glob
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakSet

from filelock import FileLock, Timeout

from engine.errors import LockedError, StorageError

LOCK_WAIT_SECONDS = 5.0
_ABANDONED_SECONDS = 600.0
"""So old must a file of a process that is gone be: it may live on another machine."""


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def path_text(path: object) -> str | None:
    """A path as text; None for what names no file."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    return text if isinstance(text, str) and text and "\0" not in text else None


def stamp_of(path: Path) -> tuple[int, ...]:
    """Size, time of the last change, and number of a file: other after any write or exchange."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


def publish(target: Path, write: Callable[[Path], None], *, replace: bool = True) -> None:
    """Let `write` fill a temporary file beside `target`, sync it, and rename it into place.

    Without `replace` a file of that name, even one that came meanwhile, is left alone:
    `FileExistsError`. One that is replaced leaves its permissions to the new one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        write(temporary)
        sync(temporary)
        if not replace:
            rename_new(temporary, target)
            return
        with suppress(FileNotFoundError):
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(temporary, target)
        sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_abandoned(target: Path) -> None:
    """Remove what processes that were killed while they wrote `target` left behind."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.*.*"):
        pid = path.name.split(".")[-2]
        with suppress(OSError):
            if pid.isdigit() and not _is_alive(int(pid)) and _age(path) > _ABANDONED_SECONDS:
                path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def rename_new(source: Path, target: Path) -> None:
    """Give a file its name; raises `FileExistsError` where the name is taken."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if target.exists():
            raise FileExistsError(target) from None
        os.replace(source, target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Flush a file, or a directory's entries, to the disk."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Mutex:
    """A re-entrant lock between threads, which a forked child finds free, whoever held it in the
    parent: that thread is not there to give it back."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _MUTEXES.add(self)

    def acquire(self, *, blocking: bool = True) -> bool:
        return self._lock.acquire(blocking=blocking)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def renew(self) -> None:
        """Be free: in a child that was just forked."""
        self._lock = threading.RLock()


_MUTEXES: WeakSet[Mutex] = WeakSet()


def _renew_all() -> None:
    for mutex in list(_MUTEXES):
        mutex.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class _WriterMutex(Mutex):
    """The mutex of a `WriterLock`, which has more to forget in a child."""

    def __init__(self, forget: Callable[[], None]) -> None:
        super().__init__()
        self._forget = forget

    def renew(self) -> None:
        super().renew()
        self._forget()


class WriterLock:
    """One writer a store: between processes by a lock file, between threads by a mutex.

    The operating system releases the lock of a process that dies. The holder's pid stands in a
    file beside the lock, for the message of whoever has to wait.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mutex = _WriterMutex(self._forget)
        self._lock = FileLock(directory / "writer.lock", thread_local=False)
        self._pid_file = directory / "writer.pid"
        self._depth = 0

    def _forget(self) -> None:
        """In a forked child: what the parent holds is not the child's, nor kept by it when the
        parent dies, as an open file of it would."""
        inherited = getattr(getattr(self._lock, "_context", None), "lock_file_fd", None)
        if inherited is not None:
            with suppress(OSError):
                os.close(inherited)
        self._lock = FileLock(self._directory / "writer.lock", thread_local=False)
        self._depth = 0

    @contextmanager
    def held(self, wait: float = LOCK_WAIT_SECONDS) -> Iterator[None]:
        """Hold the lock; re-entrant within a thread.

        Threads of this process take turns, however long; another process is waited for at most
        `wait` seconds. With `wait` 0 neither is waited for. Raises `LockedError` naming the
        holder's process, `StorageError` in a directory that cannot be written.
        """
        if not self._mutex.acquire(blocking=wait > 0):
            raise LockedError(self._directory, pid=os.getpid(), waited=wait)
        try:
            if self._depth == 0:
                self._take(wait)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    with suppress(OSError):
                        self._pid_file.unlink(missing_ok=True)
                    self._lock.release()
        finally:
            self._mutex.release()

    def _take(self, wait: float) -> None:
        try:
            self._lock.acquire(timeout=wait)
        except Timeout:
            raise LockedError(self._directory, pid=self._holder(), waited=wait) from None
        except OSError as error:
            raise StorageError(
                f"the store {self._directory} cannot be written ({error.strerror}); "
                "check its permissions"
            ) from error
        with suppress(OSError):
            self._pid_file.write_text(str(os.getpid()))

    def _holder(self) -> int | None:
        try:
            return int(self._pid_file.read_text())
        except (OSError, ValueError):
            return None
