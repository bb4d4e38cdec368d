"""The helper of one store for one user: it keeps an engine open and answers by a Unix socket.

It answers only what it can answer as a process that opens the store now would: before each answer
the store is looked at again (still the same file, the same schema, the settings of now), and an
error that is not about the question itself is left to who asked, to be met there. It holds the
writer's lock no longer than an answer takes, and ends by itself: unused, or when the store it
opened is no longer there.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import engine as package
from engine import console, notes
from engine.errors import EngineError, StorageError
from engine.serving import protocol
from engine.serving.claim import usable
from engine.serving.client import Options
from engine.serving.protocol import MalformedError, Message, Place
from engine.serving.questions import QUESTIONS, Question, Search, error_out

if TYPE_CHECKING:
    from engine.core import Engine

log = logging.getLogger("attendex")

_LOOK_SECONDS = 1.0
"""So often is the store looked at while nothing is asked."""
_END_SECONDS = 10.0
"""So long may answers that are being made take when the helper ends."""
_SILENCE_SECONDS = 60.0
"""So long may who asks say nothing, or not take the answer."""
_PAUSE_SECONDS = 0.05
_CONNECTIONS = 64
_WAITING = 16


class _Notes(logging.Handler):
    """What the engine says in a thread while it answers there."""

    def __init__(self) -> None:
        super().__init__()
        self._own = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        lines = getattr(self._own, "lines", None)
        if lines is not None:
            lines.append(record.getMessage())

    @contextmanager
    def kept(self) -> Iterator[list[str]]:
        """A list that is filled meanwhile."""
        lines: list[str] = []
        self._own.lines = lines
        try:
            yield lines
        finally:
            self._own.lines = None


@dataclass(frozen=True, slots=True)
class Line:
    """What the arguments of a command ask, and by which store and options."""

    question: Search
    store: str
    options: Options


class Daemon:
    """Answers for an open engine of the store at `place` until it is ended.

    The engine was opened by the place's path with these `options`, and is closed by the caller.
    `idle` are the seconds without a question after which it ends, None for never; `surroundings`
    those of before the libraries were loaded; `read` makes a question of the arguments of `query`,
    or None where it is another matter.
    """

    def __init__(
        self,
        engine: Engine,
        place: Place,
        options: Options,
        *,
        idle: float | None,
        surroundings: str,
        read: Callable[[list[str]], Line | None] = lambda _: None,
    ) -> None:
        self._engine = engine
        self._place = place
        self._options = options
        self._idle = idle
        self._surroundings = surroundings
        self._read = read
        self._file = self._engine.file_number()
        self._store_id = engine.refresh()
        self._began = self._last = time.monotonic()
        self._state = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._active = self._answered = self._number = 0
        self._ended: str | None = None
        self._notes = _Notes()
        self._awake, self._waker = socket.socketpair()
        self._waker.setblocking(False)

    def warm_up(self) -> None:
        """Load the model and the index, so that the first question need not wait."""
        self._engine.search_many(["a"], k=1)

    def end(self, why: str) -> None:
        """Answer what was asked, and return from `run`; from any thread, or a signal's handler."""
        if self._ended is None:
            self._ended = why
        with suppress(OSError):
            self._waker.send(b"\0")

    def run(self, ready: Callable[[], None] = lambda: None) -> str:
        """Answer until it is ended; returns why. `ready` is called once questions are heard."""
        log.addHandler(self._notes)
        try:
            with self._awake, self._waker, self._listen() as listener:
                ready()
                self._hear(listener)
        finally:
            if self._is_found():
                os.unlink(self._place.socket)
            self._part()
            log.removeHandler(self._notes)
        return self._ended or "interrupted"

    def _hear(self, listener: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(self._awake, selectors.EVENT_READ)
            while self._ended is None:
                if any(key.fileobj is listener for key, _ in selector.select(_LOOK_SECONDS)):
                    self._accept(listener)
                self._look()

    def _listen(self) -> socket.socket:
        with suppress(FileNotFoundError):
            os.unlink(self._place.socket)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with usable(self._place):
                listener.bind(self._place.socket)
                os.chmod(self._place.socket, 0o600)
                listener.listen(_WAITING)
                listener.setblocking(False)
                self._number = os.lstat(self._place.socket).st_ino
        except StorageError:
            listener.close()
            raise
        return listener

    def _is_found(self) -> bool:
        """The socket is still where those who ask look for it."""
        try:
            return os.lstat(self._place.socket).st_ino == self._number
        except OSError:
            return False

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it has gone again, or there are too many files open
            time.sleep(_PAUSE_SECONDS)
            return
        with self._state:
            if len(self._connections) >= _CONNECTIONS or not protocol.is_own_peer(connection):
                connection.close()
                return
            self._connections.add(connection)
        connection.settimeout(_SILENCE_SECONDS)
        threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _look(self) -> None:
        """End where there is nothing left to answer from, or nobody who asks."""
        if not self._is_there():
            self.end(f"the store {self._place.store} is no longer what it was")
        if not self._is_found():
            self.end(f"its socket {self._place.socket} is gone")
        with self._state:
            quiet = time.monotonic() - self._last
            if self._idle is not None and not self._active and quiet >= self._idle:
                self.end(f"nothing was asked for {self._idle:g} s")

    def _is_there(self) -> bool:
        try:
            return self._engine.file_number() == self._file
        except (OSError, EngineError):
            return False

    def _part(self) -> None:
        """Let answers in the making be sent, then close every connection."""
        with self._state:
            self._state.wait_for(lambda: not self._active, _END_SECONDS)
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as reader, suppress(OSError, EOFError):
                self._exchange(connection, reader)
        finally:
            with self._state:
                self._connections.discard(connection)

    def _exchange(self, connection: socket.socket, reader: BinaryIO) -> None:
        greeted = False
        while True:
            try:
                message = protocol.receive(reader, protocol.MOST_ASKED)
            except MalformedError as error:
                connection.sendall(protocol.encoded({"fault": str(error)}))
                continue
            except EOFError as error:
                connection.sendall(protocol.encoded({"fault": str(error)}))
                return
            if message is None:
                return
            with self._counted():
                reply = self._reply(message, greeted)
                if message.get("do") == "hello":
                    greeted = reply.get("ok") is True and "options" in message
                connection.sendall(_sendable(reply))

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._state:
            self._active += 1
        try:
            yield
        finally:
            with self._state:
                self._active -= 1
                self._state.notify_all()

    def _reply(self, message: Message, greeted: bool) -> Message:
        match message.get("do"):
            case "hello":
                why = self._difference(message) or self._gone()
                return {"ok": True} if why is None else {"declined": why}
            case "status":
                return self._status()
            case "stop":
                self.end("it was told to stop")
                return {"ok": True}
            case "line":
                return self._line(message)
            case str(name) if name in QUESTIONS:
                if not greeted:
                    return {"fault": "a question needs a hello before it"}
                try:
                    question = QUESTIONS[name](**message.get("with", {}))
                except TypeError as error:
                    return {"fault": f"this is no question: {error}"}
                return self._answer(question)
        return {"fault": f"do is one of: hello, line, status, stop, {', '.join(QUESTIONS)}"}

    def _answer(self, question: Question[Any], *, packed: bool = True) -> Message:
        if (why := self._gone()) is not None:
            return {"declined": why}
        with self._notes.kept() as notes:
            try:
                answer = question.of(self._engine)
                value = question.packed(answer) if packed else answer
            except EngineError as error:
                if (fields := error_out(error)) is None:
                    return {"declined": str(error)}
                reply: Message = {"error": fields, "notes": notes}
            except Exception as error:  # a fault of the program: shown where it was asked
                return {"declined": f"{type(error).__name__}: {error}"}
            else:
                reply = {"value": value, "notes": notes}
        with self._state:
            self._answered += 1
            self._last = time.monotonic()
        return reply

    def _line(self, message: Message) -> Message:
        """A command line answered as the lines that are to be printed; what is not a plain question
        with a plain answer is left to who asked."""
        try:
            asked = self._read(list(message["arguments"]))
            own = os.path.join(message["directory"], asked.store) if asked is not None else ""
            is_own = asked is not None and os.path.realpath(own) == self._place.store
        except Exception:  # what no shell can pass on is read by nobody else either
            return {"fault": "this is no command line"}
        if asked is None or not is_own:
            return {"declined": "it is not answered by lines"}
        if asked.options != self._options:
            return {"declined": "it was started with other options"}
        reply = self._answer(asked.question, packed=False)
        if "value" not in reply or reply["value"][0].error is not None:
            return {"declined": "there is an error to be shown"}
        (result,) = reply["value"]
        told = [line.replace(self._place.store, os.path.abspath(own)) for line in reply["notes"]]
        return {
            "notes": [notes.noted(line) for line in [*told, *result.notes]],
            "lines": list(console.json_lines(result)),
        }

    def _difference(self, hello: Message) -> str | None:
        """In what the asking process differs; None where it would answer as this one does."""
        if hello.get("version") != package.__version__:
            return f"it is of attendex {package.__version__}"
        if hello.get("store") != self._place.store:
            return f"it is of the store {self._place.store}"
        if hello.get("options", asdict(self._options)) != asdict(self._options):
            return "it was started with other options"
        if hello.get("surroundings") != self._surroundings:
            return "it was started in another environment"
        return None

    def _gone(self) -> str | None:
        """Why there is nothing to answer from any more; then this ends."""
        if self._ended is not None:
            return self._ended
        try:
            same = self._is_there() and self._engine.refresh() == self._store_id
        except EngineError as error:
            same, why = False, str(error)
        else:
            why = "the store is no longer what it was"
        if same:
            return None
        self.end(why)
        return why

    def _status(self) -> Message:
        now = time.monotonic()
        with self._state:
            return {
                "store": self._place.store,
                "process": os.getpid(),
                "version": package.__version__,
                **asdict(self._options),
                "answered": self._answered,
                "seconds": round(now - self._began, 1),
                "unused_seconds": round(now - self._last, 1),
                "idle_seconds": self._idle,
            }


def _sendable(reply: Message) -> bytes:
    data = protocol.encoded(reply)
    if len(data) > protocol.MOST_ANSWERED:
        return protocol.encoded({"declined": "the answer is too long"})
    return data
