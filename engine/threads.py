"""How many threads a library of this process may take."""

from __future__ import annotations

import os


def processors() -> int:
    """The processors this process may use: those of the machine, or fewer by its affinity."""
    own = getattr(os, "sched_getaffinity", None)
    return len(own(0)) if own is not None else os.cpu_count() or 1


def sleep_at_once() -> None:
    """Let OpenBLAS's threads wait for work asleep, from when numpy or faiss is loaded.

    Both bring it, and its threads spin (a sixth of a second of processor time in a process that
    answers one query). Whoever has set OPENBLAS_THREAD_TIMEOUT (the binary logarithm of how many
    cycles they spin, 26 by default) is heeded.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")


def wanted() -> int:
    """OMP_NUM_THREADS, which faiss, torch and numpy heed by themselves; else all processors."""
    told = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(told) if told.isdigit() and int(told) > 0 else processors()
