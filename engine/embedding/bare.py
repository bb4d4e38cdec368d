"""A word asked for among words: both without any context, as the model's own table has them.

The table of input embeddings gives every piece of a word a vector before any attention; of a word
it is the mean of its pieces' rows. Synonyms are nearer to each other in it than by the vectors of
the words as texts, where a word is one piece; where it is made of several, less so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from engine.arrays import Float32Array, Float64Array
from engine.embedding.base import Embedder, WordTable
from engine.text import unicode
from engine.text.terms import is_unspaced
from engine.vectors import row_norms

SHARE_WHOLE = 0.8
SHARE_PIECES = 0.3
"""The table's share in the score for a query of one piece, and of several; chosen on the queries of
`benchmarks/synonyms.py`."""


def is_word(text: str) -> bool:
    """The text is one word of letters, in a script that puts spaces between words."""
    word = unicode.composed(text.strip())
    return word.isalpha() and not is_unspaced(word)


def are_words(texts: Sequence[str]) -> bool:
    """There are texts, and at least half of them are one word each."""
    return bool(texts) and 2 * sum(map(is_word, texts)) >= len(texts)


@dataclass(frozen=True, slots=True)
class BareWord:
    """A query of one word, whose model is loaded where it turns out to be asked among words."""

    word: str
    load: Callable[[], Embedder]

    def cosines(self, texts: Sequence[str]) -> tuple[Float64Array, float] | None:
        """How near each text is in the table, (n,) for n texts, NaN for what is not a word, and the
        table's share in a score. None where most are no words (an answer among sentences is left
        to what compares sentences), and where the model has no table.
        """
        if not are_words(texts):
            return None
        places = [n for n, text in enumerate(texts) if is_word(text)]
        embedder = self.load()
        if not isinstance(embedder, WordTable):
            return None
        rows = embedder.table_rows(
            [self.word, *(unicode.composed(texts[n].strip()) for n in places)]
        )
        if rows is None:
            return None
        own, *others = _unit(rows)
        found = np.full(len(texts), np.nan)
        found[places] = np.stack(others) @ own
        (pieces,) = embedder.count_tokens([self.word])
        return found, SHARE_WHOLE if pieces == 1 else SHARE_PIECES


def bare_word(text: str, load: Callable[[], Embedder]) -> BareWord | None:
    """A text as a bare word; None where it is none."""
    return BareWord(unicode.composed(text.strip()), load) if is_word(text) else None


def _unit(rows: Float32Array) -> Float32Array:
    """Rows of length 1; those without a direction stay zero."""
    lengths = row_norms(rows)
    return (rows / np.where(lengths > 0, lengths, 1.0)[:, None]).astype(np.float32)
