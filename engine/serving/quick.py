"""`attendex query` by the helper, before anything else is loaded: the command line goes there as it
is, and comes back as the lines to print. Whatever is not that simple is left to the command itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from engine.serving import protocol
from engine.serving.link import linked
from engine.serving.protocol import MalformedError

_WANTED = ("", "1", "true", "t", "yes", "y", "on")


class Told(NamedTuple):
    """What is to be printed: notes on standard error, lines on standard output."""

    notes: list[str]
    lines: list[str]

    def show(self) -> None:
        for note in self.notes:
            print(note, file=sys.stderr)
        for line in self.lines:
            print(line)
        sys.stdout.flush()


def told(arguments: Sequence[str]) -> Told | None:
    """What the helper answers to a command line; None where it does not."""
    if not arguments or arguments[0] != "query" or sys.stdout is None:
        return None
    if os.environ.get("ATTENDEX_DAEMON", "").lower() not in _WANTED:
        return None
    given = list(arguments[1:])
    default = os.environ.get("ATTENDEX_STORE") or protocol.DEFAULT_STORE
    link = linked(_store_in(given) or default)
    if link is None:
        return None
    form = "--table" if sys.stdout.isatty() else "--json"
    try:
        with link:
            if link.hello() is not None:
                return None
            message = {
                "do": "line",
                "arguments": [form, "--store", default, *given],
                "directory": os.getcwd(),
            }
            reply = link.call(message, patient=True)
            return Told(reply["notes"], reply["lines"]) if "lines" in reply else None
    except (OSError, EOFError, MalformedError):
        return None


def _store_in(arguments: Sequence[str]) -> str | None:
    """The store that is probably named; the helper, which reads the line in earnest, compares."""
    found = None
    for option, value in zip(arguments, [*arguments[1:], ""], strict=False):
        if option == "--store":
            found = value
        elif option.startswith("--store="):
            found = option.removeprefix("--store=")
    return found
