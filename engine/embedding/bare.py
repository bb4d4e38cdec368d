"""A word asked for among words: both without any context, as the model's own table has them.

The table of input embeddings gives every piece of a word a vector before any attention; of a word
it is the mean of its pieces' rows. Synonyms are nearer to each other in it than by the vectors of
the words as texts, where a word is one piece; where it is made of several, less so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.embedding.base import Embedder, WordTable
from engine.text import unicode
from engine.text.terms import is_unspaced
from engine.types import Float32Array, Float64Array
from engine.vectors import row_norms

SHARE_WHOLE = 0.8
SHARE_PIECES = 0.3
"""The table's share in the score for a query of one piece, and of several; chosen on one half of
the queries of `benchmarks/synonyms.py`."""


def is_word(text: str) -> bool:
    """The text is one word of letters, in a script that puts spaces between words."""
    word = unicode.composed(text.strip())
    return word.isalpha() and not is_unspaced(word)


@dataclass(frozen=True, slots=True)
class BareWord:
    """A query of one word: its row (w,) of the model's table, and the table's share in a score."""

    row: Float32Array
    share: float
    table: WordTable

    def cosines(self, texts: Sequence[str]) -> Float64Array | None:
        """How near each text is in the table, NaN for what is not a word; None where that is most.

        (n,) for n texts: an answer among sentences is left to what compares sentences.
        """
        places = [n for n, text in enumerate(texts) if is_word(text)]
        if not places or 2 * len(places) < len(texts):
            return None
        rows = self.table.table_rows([unicode.composed(texts[n].strip()) for n in places])
        found = np.full(len(texts), np.nan)
        if rows is not None:
            found[places] = _unit(rows) @ self.row
        return found


def bare_word(embedder: Embedder, text: str) -> BareWord | None:
    """A text as a bare word; None where it is none, or the model has no table."""
    if not is_word(text) or not isinstance(embedder, WordTable):
        return None
    word = unicode.composed(text.strip())
    rows = embedder.table_rows([word])
    if rows is None:
        return None
    (pieces,) = embedder.count_tokens([word])
    share = SHARE_WHOLE if pieces == 1 else SHARE_PIECES
    return BareWord(_unit(rows)[0], share, embedder)


def _unit(rows: Float32Array) -> Float32Array:
    """Rows of length 1; those without a direction stay zero."""
    lengths = row_norms(rows)
    return (rows / np.where(lengths > 0, lengths, 1.0)[:, None]).astype(np.float32)
