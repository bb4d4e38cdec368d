"""Asking: the helper of a store where one runs that answers as this process would, else the store.

Whatever is amiss with the helper (none there, another version, other options, gone meanwhile,
busy, an error of the store) is no concern of who asks: the store is opened here, and says itself
what is wrong with it.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Generic, Self, TypeVar, cast

import engine
from engine.errors import EngineError, StorageError
from engine.serving import protocol
from engine.serving.link import Link, linked, reason_of
from engine.serving.protocol import MalformedError, Place
from engine.serving.questions import Question, error_in

if TYPE_CHECKING:
    from engine.core import Engine

Answer = TypeVar("Answer")
_START_SECONDS = 60.0
"""So often at most is a helper started in the background that then is not there."""
_HOME = os.path.dirname(os.path.dirname(os.path.realpath(engine.__file__)))
_START = "import sys; sys.path.append(sys.argv.pop(1)); import cli; sys.exit(cli.run())"


@dataclass(frozen=True, slots=True)
class Options:
    """What a store is opened with; directories are paths without links."""

    model: str | None = None
    runtime: str = "auto"
    cross_encoder: str | None = None

    @classmethod
    def of(cls, model: str | None, runtime: str | None, cross_encoder: str | None = None) -> Self:
        """Options as given to a command."""
        return cls(_place(model), "auto" if runtime is None else runtime, _place(cross_encoder))


def _place(name: str | None) -> str | None:
    """A model's name, or its directory, whoever reads it from wherever."""
    path = None if name is None else os.path.expanduser(name)
    return os.path.realpath(path) if path and os.path.isdir(path) else name


@dataclass(frozen=True, slots=True)
class Reply(Generic[Answer]):
    """An answer, or the error in the question; `notes` are what was to be said meanwhile."""

    answer: Answer | None
    error: EngineError | None
    notes: tuple[str, ...]


class Declined(Exception):  # noqa: N818  (a signal within this process, no error)
    """The helper does not answer this; the message says why."""


def _asked(link: Link, question: Question[Answer]) -> Reply[Answer]:
    """What the helper answers. Raises `Declined`."""
    reply = link.call({"do": question.name, "with": asdict(question)}, patient=True)
    notes = tuple(map(str, reply.get("notes", ())))
    if "error" in reply:
        return Reply(None, error_in(reply["error"]), notes)
    if "value" not in reply:
        raise Declined(reason_of(reply))
    return Reply(question.unpacked(reply["value"]), None, notes)


class Asking:
    """An open store, or its helper: a context manager.

    `opened` opens the store here; `note` says what the engine logs. With `use` False no helper is
    asked; with True one is started in the background where there is none.
    """

    def __init__(
        self,
        store: str,
        options: Options,
        opened: Callable[[], Engine],
        note: Callable[[str], None],
        *,
        use: bool | None,
        offline: bool = False,
    ) -> None:
        self._store, self._options, self._offline = store, options, offline
        self._opened, self._note, self._use = opened, note, use
        self._link: Link | None = None
        self._engine: Engine | None = None
        self._starts = False

    def __enter__(self) -> Self:
        if self._use is not False:
            self._link = linked(self._store)
            self._starts = self._use is True and self._link is None
        if self._link is not None:
            with self._falling_back():
                if (why := self._link.hello(asdict(self._options))) is not None:
                    raise Declined(why)
        if self._link is None:
            self._engine = self._opened()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._unlink()
        if self._engine is not None:
            self._engine.close()
        if self._starts and kind is None:
            start(self._store, self._options, offline=self._offline)

    def ask(self, question: Question[Answer]) -> Answer:
        """The answer, whoever gives it. Raises `EngineError`s."""
        reply: Reply[Answer] | None = None
        if self._link is not None:
            path, own = self._link.place.store, os.path.abspath(self._store)
            with self._falling_back():
                reply = _asked(self._link, question)
                if own != path and reply.error is not None and path in str(reply.error):
                    raise Declined("the error names the store by another path")
        if reply is None:
            if self._engine is None:
                self._engine = self._opened()
            return question.of(self._engine)
        for line in reply.notes:
            self._note(line.replace(path, own))
        if reply.error is not None:
            raise reply.error
        return cast(Answer, reply.answer)

    @contextmanager
    def _falling_back(self) -> Iterator[None]:
        """Without the helper from now on, where it fails."""
        try:
            yield
        except (OSError, EOFError, MalformedError, Declined, KeyError, TypeError):
            self._unlink()

    def _unlink(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


def make_directory(place: Place) -> None:
    """Make the directory where they meet. Raises `StorageError` where it is not this user's own."""
    with suppress(FileExistsError):
        os.mkdir(place.directory, 0o700)
    if not protocol.is_private(place.directory, stat.S_IFDIR):
        raise StorageError(
            f"{place.directory} must be a directory of yours that no other user may enter "
            "(mode 0700): make it so, or set XDG_RUNTIME_DIR to a directory of yours"
        )


def start(store: str, options: Options, *, offline: bool) -> None:
    """Start a helper in the background, unless one was started within the last minute.

    It is on its own: not of this terminal, in no directory, what it says goes into its log. Where
    it cannot be started nothing is said: who asked has an answer.
    """
    if not hasattr(socket, "AF_UNIX"):
        return
    with suppress(OSError, EngineError):
        place = protocol.place_of(store)
        make_directory(place)
        if _age(place.log) < _START_SECONDS:
            return
        command = [sys.executable, "-P", "-c", _START, _HOME]
        command += ["daemon", "--store", place.store]
        for name, value in asdict(options).items():
            if value is not None:
                command += [f"--{name.replace('_', '-')}", value]
        if offline:
            command.append("--offline")
        import subprocess

        environment = {k: v for k, v in os.environ.items() if k != "ATTENDEX_DAEMON"}
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        log = os.open(place.log, flags, 0o600)
        try:
            os.utime(log)
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(log)


def _age(path: str) -> float:
    """Seconds since a file was written; endless where there is none."""
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return float("inf")
