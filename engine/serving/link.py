"""A connection to the helper of a store, and nothing that takes long to load."""

from __future__ import annotations

import socket
import stat
from typing import Self

import engine
from engine.serving import protocol
from engine.serving.protocol import MalformedError, Message, Place

PATIENCE_SECONDS = 0.5
"""So long is waited for a helper to accept."""


class Link:
    """A connection to the helper of a store. Raises `OSError`, `EOFError`, `MalformedError`."""

    def __init__(self, place: Place) -> None:
        if not protocol.is_private(place.directory, stat.S_IFDIR):
            raise FileNotFoundError(place.directory)
        if not protocol.is_private(place.socket, stat.S_IFSOCK):
            raise FileNotFoundError(place.socket)
        self.place = place
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(PATIENCE_SECONDS)
            self._socket.connect(place.socket)
            if not protocol.is_own_peer(self._socket):
                raise PermissionError(place.socket)
        except BaseException:
            self._socket.close()
            raise
        self._reader = self._socket.makefile("rb")

    @property
    def process(self) -> int | None:
        """The helper's process, where the system says."""
        peer = protocol.peer_of(self._socket)
        return None if peer is None else peer[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def call(self, message: Message, *, patient: bool = False) -> Message:
        """The reply to a message, waited for as long as it takes where `patient`."""
        data = protocol.encoded(message)
        if len(data) > protocol.MOST_ASKED:
            raise MalformedError("more than a helper reads")
        if patient:
            self._socket.settimeout(None)
        self._socket.sendall(data)
        reply = protocol.receive(self._reader, protocol.MOST_ANSWERED)
        if reply is None:
            raise EOFError("the helper is gone")
        return reply

    def hello(self, options: Message | None = None) -> str | None:
        """Why the helper would not answer as this process does, with these options if any are
        given; None where it would."""
        said = {
            "do": "hello",
            "version": engine.__version__,
            "surroundings": protocol.surroundings(),
            "store": self.place.store,
        }
        reply = self.call(said if options is None else {**said, "options": options})
        return None if reply.get("ok") is True else reason_of(reply)


def reason_of(reply: Message) -> str:
    """Why there is no answer in a reply."""
    return str(reply.get("declined", reply.get("fault")))


def linked(store: str) -> Link | None:
    """A connection to the helper of a store, None where there is none."""
    if not hasattr(socket, "AF_UNIX") or not store or "\0" in store:
        return None
    try:
        return Link(protocol.place_of(store))
    except OSError:
        return None
