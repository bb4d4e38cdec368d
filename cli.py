"""The command line: the commands together, and what becomes of their errors.

Exit status: 0 answered (or an empty answer), 1 error, 2 wrong usage, 3 the store is being
written by another process, 4 another model than the store's, 130 interrupted.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence

import click

from engine import __version__, notes, threads
from engine.commands import asking, evaluating, indexing, keeping, moving, serving
from engine.errors import EngineError, InvalidInputError, LockedError, ModelMismatchError


class _OutputClosed(Exception):  # noqa: N818  (no error: whoever read it has enough)
    """The other end of the pipe is closed. Click would make it a failure."""


class _Commands(click.Group):
    def invoke(self, context: click.Context) -> object:
        try:
            return super().invoke(context)
        except BrokenPipeError as closed:
            raise _OutputClosed from closed


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="attendex")
@click.option("--debug", is_flag=True, help="Show the trace of an internal error.")
def cli(debug: bool) -> None:
    """Semantic search that shows its work.

    \b
    attendex index notes/ talks.csv     make or update the store ./attendex.store
    attendex query "how to prune roses" ask it
    """
    if debug:
        os.environ["ATTENDEX_DEBUG"] = "1"


for command in (
    indexing.index,
    asking.query,
    asking.explain,
    asking.why,
    keeping.status,
    keeping.get,
    keeping.delete,
    keeping.verify,
    keeping.doctor,
    keeping.recover,
    keeping.rebuild,
    keeping.compact,
    keeping.tune,
    keeping.tokens,
    serving.daemon,
    evaluating.evaluate,
    moving.export,
    moving.import_,
    moving.backup,
    indexing.demo,
):
    cli.add_command(command)


class _NoteHandler(logging.Handler):
    """What the engine logs is a note for the person at the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        notes.note(record.getMessage())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    threads.sleep_at_once()
    log = logging.getLogger("attendex")
    if not any(isinstance(handler, _NoteHandler) for handler in log.handlers):
        log.addHandler(_NoteHandler())
        log.propagate = False
    try:
        cli.main(args=arguments, prog_name="attendex", standalone_mode=False)
        sys.stdout.flush()
        return 0
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return ended(error)


def ended(error: BaseException) -> int:
    """Say what ended a command, and return its exit status."""
    match error:
        case SystemExit():
            return error.code if isinstance(error.code, int) else 1
        case click.exceptions.Exit():
            return error.exit_code
        case click.ClickException():
            error.show()
            return error.exit_code
        case click.Abort() | KeyboardInterrupt():
            notes.note("interrupted; what was committed is kept")
            return 130
        case _OutputClosed() | BrokenPipeError():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        case OSError():
            notes.note(f"{error.filename or 'the output'}: {error.strerror or error}")
            return 1
        case EngineError():
            notes.note(str(error))
            return _status(error)
    if os.environ.get("ATTENDEX_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error)
    notes.note(
        f"internal error: {type(error).__name__}: {error} (a fault of attendex; "
        "run `attendex --debug …` to see the trace)"
    )
    return 1


def _status(error: EngineError) -> int:
    match error:
        case LockedError():
            return 3
        case ModelMismatchError():
            return 4
        case InvalidInputError():
            return 2
        case _:
            return 1


def main() -> None:
    """The `attendex` command."""
    sys.exit(run())


if __name__ == "__main__":
    main()
