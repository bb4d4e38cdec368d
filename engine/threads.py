"""How many threads a library of this process may take."""

from __future__ import annotations

import os


def processors() -> int:
    """The processors this process may use: those of the machine, or fewer by its affinity."""
    own = getattr(os, "sched_getaffinity", None)
    return len(own(0)) if own is not None else os.cpu_count() or 1


def wanted() -> int:
    """OMP_NUM_THREADS, which faiss, torch and numpy heed by themselves; else all processors."""
    told = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(told) if told.isdigit() and int(told) > 0 else processors()
