"""A query in its context: a word alone has no sense, the words around it give it one.

The text is embedded once named before its context ("bank: we sat by the river bank") and once
where it stands in it, if it does; the query is the sum of the two unit vectors: that of the whole
named context, and that of the text's own words as the context makes them. Of the ways that
`benchmarks/senses.py` compares, on WordNet's example sentences, this one was best at telling
senses apart and at finding the right definition among all, taken together.
"""

from __future__ import annotations

import re

import numpy as np

from engine.arrays import Float32Array
from engine.embedding.base import Embedder, gives_words
from engine.embedding.words import with_words
from engine.text.terms import is_unspaced
from engine.types import Words
from engine.vectors import unit_rows


def occurrence(text: str, context: str) -> tuple[int, int] | None:
    """Where `text` stands in `context` as whole words, in whatever case; the first place.

    Where a script puts no spaces between words (銀行 in 銀行で), a word needs none around it.
    """
    left = "" if is_unspaced(text[:1]) else r"(?<!\w)"
    right = "" if is_unspaced(text[-1:]) else r"(?!\w)"
    found = re.search(f"{left}{re.escape(text)}{right}", context, re.IGNORECASE)
    return None if found is None else found.span()


def embed(embedder: Embedder, text: str, context: str) -> tuple[Float32Array, Words | None]:
    """The vector (1, d) of a text in its context and the text's words there, at their places in
    the text itself; both texts composed (NFC). A model without word vectors gives the vector of
    the named context alone.
    """
    named = f"{text}: {context}"
    able = gives_words(embedder)
    if able is None:
        return embedder.embed_queries([named]), None
    place = occurrence(text, context)
    matrix, found = with_words(embedder, able, [named, context], query=True)
    start = 0 if place is None else place[0]
    own = _within(found[place is not None], start, start + len(text))
    whole = unit_rows(matrix[:1])
    if not len(own.spans) or own.vectors.shape[1] != whole.shape[1]:
        return whole, own if len(own.spans) else None
    return whole + unit_rows(own.vectors.sum(axis=0, keepdims=True)), own


def _within(words: Words, start: int, end: int) -> Words:
    """The words of a text that lie in [start, end), counted from there."""
    inside = (words.spans[:, 0] >= start) & (words.spans[:, 1] <= end)
    return Words(words.spans[inside] - start, np.ascontiguousarray(words.vectors[inside]))
