"""Where a client and the helper of a store meet, and what passes between them.

They meet at a Unix socket in a directory that only their user may enter; a message is one line of
JSON in ASCII, so that any text, lone surrogates too, and any float arrive as they were sent. This
module and the client are what a query by the helper has to load: the standard library alone.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import sys
import zlib
from typing import Any, BinaryIO, NamedTuple

import engine

MOST_ASKED = 32 << 20
"""Bytes of a request at most."""
MOST_ANSWERED = 256 << 20
"""Bytes of a reply at most."""
DEFAULT_STORE = "attendex.store"
Message = dict[str, Any]

_OWN = ("ATTENDEX_STORE", "ATTENDEX_DAEMON", "ATTENDEX_DEBUG", "OPENBLAS_THREAD_TIMEOUT")
_PREFIXES = (
    *("ATTENDEX_", "HF_", "HUGGINGFACE_", "SENTENCE_TRANSFORMERS_", "TRANSFORMERS_"),
    *("CUDA_", "TORCH_", "OMP_", "MKL_", "OPENBLAS_"),
)
_NAMES = ("HOME", "XDG_CACHE_HOME")


class MalformedError(ValueError):
    """What arrived is no message."""


class Place(NamedTuple):
    """The files by which the helper of a store is found; `store` is its path without links."""

    store: str
    directory: str
    name: str

    @property
    def socket(self) -> str:
        return f"{self.directory}/{self.name}.sock"

    @property
    def lock(self) -> str:
        """Held by the one helper as long as it lives."""
        return f"{self.directory}/{self.name}.lock"

    @property
    def log(self) -> str:
        """What a helper in the background had to say."""
        return f"{self.directory}/{self.name}.log"


def place_of(store: str) -> Place:
    """Where the helper of a store is, whether there is one or not.

    In XDG_RUNTIME_DIR, if that is a directory of this user's, else beside the temporary files.
    """
    path = os.path.realpath(store)
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and _is_own_directory(runtime):
        directory = os.path.join(runtime, "attendex")
    else:
        directory = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"attendex-{os.geteuid()}")
    return Place(path, directory, _digest(os.fsencode(path)))


def _is_own_directory(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def is_private(path: str, kind: int) -> bool:
    """A file of that kind (`stat.S_IFDIR`, `stat.S_IFSOCK`), this user's and nobody else's."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    mine = found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
    return mine and stat.S_IFMT(found.st_mode) == kind


def _digest(data: bytes) -> str:
    """A name for some bytes; who meets under it compares the bytes themselves."""
    return f"{zlib.crc32(data):08x}{zlib.crc32(data[::-1]):08x}"


def surroundings() -> str:
    """A digest of what decides, beside the store and the options, how a query is answered: the
    program, its Python, and the environment of the libraries it loads."""
    names = sorted(
        name
        for name in os.environ
        if name in _NAMES or (name.startswith(_PREFIXES) and name not in _OWN)
    )
    home = os.path.dirname(os.path.realpath(engine.__file__))
    parts = [engine.__version__, home, sys.prefix, sys.version]
    parts += [f"{name}={os.environ[name]}" for name in names]
    return _digest("\0".join(parts).encode(errors="surrogateescape"))


def peer_of(connection: socket.socket) -> tuple[int, int] | None:
    """Process and user of the other side; None where the system does not say.

    There the mode of the directory alone keeps others out.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    size = struct.calcsize("3i")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    process, user, _ = struct.unpack("3i", found)
    return process, user


def is_own_peer(connection: socket.socket) -> bool:
    """The other side is a process of this user's."""
    peer = peer_of(connection)
    return peer is None or peer[1] == os.geteuid()


def encoded(message: Message) -> bytes:
    """A message as it is sent."""
    return json.dumps(message).encode("ascii") + b"\n"


def receive(reader: BinaryIO, most: int) -> Message | None:
    """The next message, None at the end; raises `MalformedError` for what is none.

    Of a message of more than `most` bytes the rest is not read: the connection is of no more use.
    """
    line = reader.readline(most + 1)
    if not line.endswith(b"\n"):
        if len(line) > most:
            raise EOFError(f"a message has at most {most:,} bytes")
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"a message is a line of JSON ({error})") from None
    if not isinstance(message, dict):
        raise MalformedError("a message is a JSON object")
    return message
