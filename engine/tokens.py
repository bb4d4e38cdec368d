"""Word vectors added to passages that have none, or taken from all."""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.embedding.base import Embedder, gives_words
from engine.embedding.words import embed
from engine.errors import ModelError
from engine.storage.connection import next_after
from engine.storage.store import Store
from engine.text import unicode
from engine.types import Progress

_PASSAGES_A_COMMIT = 512


def build(
    store: Store, embedder: Embedder, on_progress: Callable[[Progress], None] | None = None
) -> int:
    """Give word vectors to every embedded passage without them; returns how many that were.

    Committed some hundred passages at a time: after an interruption it goes on where it was. From
    then on new passages get theirs. Raises `ModelError` where the model gives none.
    """
    if gives_words(embedder) is None:
        raise ModelError(f"the model {embedder.name} gives no word vectors")
    store.keep_tokens()
    started = time.perf_counter()
    with store.reading() as view:
        total = max(1, view.count_wordless())
    done = last = 0
    while True:
        with store.reading() as view:
            rows = view.wordless(last, _PASSAGES_A_COMMIT)
            directions = view.directions()
        if not rows:
            return done
        texts = [unicode.composed(text) for _, text in rows]
        _, packed = embed(embedder, texts, directions, words=True)
        found = [(row[0], one) for row, one in zip(rows, packed, strict=True) if one is not None]
        with store.writing() as writer:
            writer.add_words(found)
        last = next_after(last, rows)
        done += len(rows)
        if on_progress is not None:
            seconds = time.perf_counter() - started
            on_progress(Progress(done, done, seconds, min(1.0, done / total)))


def drop(store: Store) -> int:
    """Forget all word vectors, and keep none from now on; returns of how many passages."""
    with store.writing() as writer:
        gone = writer.drop_words()
    store.reload()
    return gone
