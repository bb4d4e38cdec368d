"""Files beside the database: atomic publication, checksums, the writer's lock.

A published file appears under its name complete and synced, or not at all.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from engine.errors import LockedError, StorageError

LOCK_WAIT_SECONDS = 5.0


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def stamp(path: Path) -> tuple[int, ...]:
    """Size, time of the last change, and number of a file: other after any write or exchange."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


def publish(target: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `target`, sync it, and rename it into place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        write(temporary)
        sync(temporary)
        os.replace(temporary, target)
        sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


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


class WriterLock:
    """One writer a store: between processes by a lock file, between threads by a mutex.

    The operating system releases the lock of a process that dies. The holder's pid stands in a
    file beside the lock, for the message of whoever has to wait.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mutex = threading.RLock()
        self._lock = FileLock(directory / "writer.lock", thread_local=False)
        self._pid_file = directory / "writer.pid"
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
