"""Queries made of others: texts added and taken away, documents that stand for themselves.

    v = sum of the unit vectors of `plus` and of `like` - sum of those of `minus`
    v <- v - P v  with P the projection on the vectors of `unlike`

What is taken away by `minus` pulls to the other side (king - man + woman: Mikolov et al., 2013);
`unlike` only takes out what is shared with it (orthogonal negation: Widdows, ACL 2003), so that
what remains is orthogonal to each of its texts, in whatever order they are given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine import queries
from engine.arrays import Float64Array
from engine.errors import DocumentNotFoundError, InvalidInputError
from engine.index.snapshot import Snapshot
from engine.lookup import TextVectors
from engine.queries import Query
from engine.storage.records import StoreSettings
from engine.storage.view import View
from engine.vectors import unit_rows

_TERM = re.compile(r"(?:^|\s)([+-])(?=\s|$)")
_FAINT = 1e-6


@dataclass(frozen=True, slots=True)
class Combination:
    """Texts to add, to take away and to be unlike, and ids of documents to be like."""

    plus: tuple[str, ...] = ()
    minus: tuple[str, ...] = ()
    like: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The combination as one line."""
        added = " + ".join([*self.plus, *(f"like {id_}" for id_ in self.like)])
        taken = "".join(f" - {text}" for text in self.minus)
        return (added + taken + "".join(f" not {text}" for text in self.unlike)).strip()


def parse(expression: str) -> Combination:
    """`king - man + woman` as a combination; signs stand between spaces."""
    parts = _TERM.split(expression.strip())
    signs = ["+", *parts[1::2]]
    terms = [term.strip() for term in parts[::2]]
    if not terms[0]:
        signs, terms = signs[1:], terms[1:]
    if not terms or not all(terms):
        raise InvalidInputError(
            f"{expression!r} is no sum of texts; write it as: king - man + woman"
        )
    by_sign = {
        sign: tuple(term for own, term in zip(signs, terms, strict=True) if own == sign)
        for sign in "+-"
    }
    return Combination(plus=by_sign["+"], minus=by_sign["-"])


def embedded(
    combination: Combination, vectors_of: TextVectors, settings: StoreSettings
) -> dict[str, Float64Array]:
    """The unit vector of each text of a combination. Raises `InvalidInputError`, `ModelError`."""
    texts = list(dict.fromkeys([*combination.plus, *combination.minus, *combination.unlike]))
    found: dict[str, Float64Array] = {}
    asked = queries.text_queries(texts, vectors_of, settings)
    for text, one in zip(texts, asked, strict=True):
        if not isinstance(one, Query):
            raise InvalidInputError(one.fault)
        if not one.vector.any():
            raise InvalidInputError(f"the vector of {text!r} is all zeros and has no direction")
        found[text] = unit_rows(one.vector[None])[0].astype(np.float64)
    return found


def query(
    view: View, snapshot: Snapshot, combination: Combination, texts: dict[str, Float64Array]
) -> tuple[Query, frozenset[int]]:
    """The combination's vector, and the documents that went into it.

    Raises `DocumentNotFoundError`, and `InvalidInputError` where nothing remains of it.
    """
    known = view.known(combination.like)
    if missing := [id_ for id_ in combination.like if id_ not in known]:
        raise DocumentNotFoundError(missing)
    parts = view.passage_ids([one.row_id for one in known.values()])
    total = np.zeros(snapshot.dimension)
    for ids in parts.values():
        mean = unit_rows(snapshot.vectors(ids)).mean(axis=0, dtype=np.float64)
        total += mean / (np.linalg.norm(mean) or 1.0)
    for text in combination.plus:
        total += texts[text]
    for text in combination.minus:
        total -= texts[text]
    if combination.unlike:
        taken = np.stack([texts[text] for text in combination.unlike], axis=1)
        total -= taken @ np.linalg.lstsq(taken, total, rcond=None)[0]
    length = float(np.linalg.norm(total))
    if length < _FAINT:
        raise InvalidInputError(f"nothing remains of {combination.title!r}: its parts cancel out")
    return Query((total / length).astype(np.float32)), frozenset(parts)


def as_combination(
    plus: Sequence[str], minus: Sequence[str], like: Sequence[str], unlike: Sequence[str]
) -> Combination:
    """Checked; there must be something to be near to."""
    if not plus and not like:
        raise InvalidInputError("there is nothing to be near to: give a text, or a document's id")
    return Combination(tuple(plus), tuple(minus), tuple(like), tuple(unlike))
