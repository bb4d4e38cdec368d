"""What a model made of single texts, kept for the next process: a query asked again needs no model.

One file a text under the cache directory, named by a hash of all that shapes what is in it. The
least lately used go when all take more than `MOST_BYTES`. Whatever cannot be read is not there.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from engine.arrays import Float32Array
from engine.embedding import exports
from engine.text import unicode
from engine.types import Words

MOST_BYTES: Final = 16 << 20
_KEPT_SHARE = 0.75


class Embedded(NamedTuple):
    """A text's raw vector (d,), float32, its words where they are wanted and given, how many
    tokens it has, and how many the model reads (None: all)."""

    vector: Float32Array
    words: Words | None
    tokens: int
    limit: int | None


def path_of(model: str, fingerprint: str, text: str, context: str | None, *, words: bool) -> Path:
    """Where a text's file lies. The model's name counts too: fingerprints that are not made of the
    model's files (a server's, a plugin's) tell two models of one store, but not of all stores."""
    parts = (model, fingerprint, text, "" if context is None else f"={context}", f"{words:d}")
    name = unicode.digest(*(part.encode("utf-8", "surrogatepass") for part in parts)).hex()
    return exports.cache() / "queries" / f"{name}.npz"


def read(path: Path, dimension: int) -> Embedded | None:
    """What is kept of a text; None where nothing is that can be trusted."""
    try:
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as held:
            vector, spans, rows, numbers = (
                held[name].astype(kind, casting="same_kind")
                for name, kind in (
                    ("vector", np.float32),
                    ("spans", np.int64),
                    ("rows", np.float32),
                    ("numbers", np.int64),
                )
            )
    except Exception:  # a damaged archive may fail in any way
        return None
    if (
        vector.shape != (dimension,)
        or numbers.shape != (3,)
        or spans.shape[1:] != (2,)
        or rows.ndim != 2
        or len(spans) != len(rows)
    ):
        return None
    with suppress(OSError):
        os.utime(path)
    has_words, tokens, limit = numbers.tolist()
    words = Words(spans, rows) if has_words else None
    return Embedded(vector, words, tokens, None if limit < 0 else limit)


def write(path: Path, made: Embedded) -> None:
    """Keep what a model made of a text, where there is a place for it."""
    words = made.words
    limit = -1 if made.limit is None else made.limit
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(suffix=path.suffix, dir=path.parent)
        try:
            with open(handle, "wb") as file:
                np.savez(
                    file,
                    vector=made.vector,
                    spans=np.empty((0, 2), np.int64) if words is None else words.spans,
                    rows=np.empty((0, 0), np.float32) if words is None else words.vectors,
                    numbers=np.array([words is not None, made.tokens, limit]),
                )
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
        _shrink(path.parent)


def _shrink(directory: Path) -> None:
    """Remove the least lately used files where all are too many bytes."""
    with os.scandir(directory) as entries:
        found = [(entry.stat(), entry.path) for entry in entries if entry.name.endswith(".npz")]
    total = sum(status.st_size for status, _ in found)
    if total <= MOST_BYTES:
        return
    for status, path in sorted(found, key=lambda one: one[0].st_mtime_ns):
        with suppress(OSError):
            os.unlink(path)
        total -= status.st_size
        if total <= _KEPT_SHARE * MOST_BYTES:
            return
