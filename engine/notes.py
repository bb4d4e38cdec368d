"""What is said to the person at the terminal, on standard error: notes, and how far the work is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.text.unicode import printable
from engine.types import AddReport, Progress, SkipReason

_LINE_SECONDS = 10.0


def note(text: str) -> None:
    """A line for the person at the terminal, on standard error."""
    print(noted(text), file=sys.stderr)


def noted(text: str) -> str:
    """The line that `note` prints."""
    return f"attendex: {printable(text)}"


def of_report(report: AddReport) -> None:
    """What an `add` has to say: notes, the first refused rows of each kind, how many more."""
    for line in report.notes:
        note(line)
    for reason, count in report.skipped.items():
        named = [
            r for r in report.refusals if r.reason is reason and r.reason is not SkipReason.BLANK
        ]
        for refusal in named:
            note(f"skipped {refusal}")
        if count > len(named):
            more = "more for this" if named else "for this"
            note(f"skipped {count - len(named):,} {more}: {reason.value}")
    if report.truncated:
        note(f"of {report.truncated:,} passages the model saw only the beginning")


def wordless(passages: int) -> None:
    """So many passages came without their word vectors, if any did, and what makes them anew."""
    if passages:
        note(f"{passages:,} passages have no word vectors: `attendex tokens build`")


@contextmanager
def progress() -> Iterator[Callable[[Progress], None]]:
    """A bar with rate and time left on a terminal, a line every ten seconds elsewhere."""
    if sys.stderr.isatty():
        with _bar() as show:
            yield show
    else:
        yield _Lines()


class _Lines:
    def __init__(self) -> None:
        self._next = time.monotonic() + _LINE_SECONDS

    def __call__(self, now: Progress) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_SECONDS
            share = "" if now.fraction is None else f"{now.fraction:.0%}, "
            rate = now.documents / now.seconds if now.seconds else 0.0
            note(f"{share}{now.documents:,} documents, {rate:,.0f}/s")


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[count]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Bar(*columns, console=RichConsole(stderr=True), transient=True) as bar:
        task = bar.add_task("indexing", total=None, count="")

        def show(now: Progress) -> None:
            rate = now.documents / now.seconds if now.seconds else 0.0
            counted = f"{now.documents:,} documents, {rate:,.0f}/s"
            if now.fraction is None:
                bar.update(task, count=counted)
            else:
                bar.update(task, total=1.0, completed=now.fraction, count=counted)

        yield show
