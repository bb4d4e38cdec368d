"""Words as the lexical index takes them: what of a text is indexed, what of a query is looked up.

`fold` is part of the schema: a passage leaves the index by its folded text, so another fold needs
a revision that makes the index anew. It therefore rests on Unicode 3.2, which no Python changes;
case, diacritics and stems are left to the index's tokenizer.
"""

from __future__ import annotations

import re
import unicodedata

from engine.text.stopwords import is_content

MOST_TERMS = 256
"""Terms of a query beyond these are not looked up."""

_UNSPACED = re.compile(
    "[\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ebd\u0ec0-\u0ecd\u0edc-\u0edf\u1000-\u103f\u1050-\u109f"
    "\u1100-\u11ff\u1780-\u17d3\u3005\u3007\u3041-\u309a\u309d-\u30fa\u30fc-\u318f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]+"
)
"""Thai, Lao, Burmese, Khmer, Hangul, Kana, Han: words stand side by side, or grow endings."""
_DROPPED = re.compile(
    "[\u00ad\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670"
    "\u06d6-\u06ed\u200c\u200d\u2060\ufe00-\ufe0f\ufeff]+"
)
"""Soft hyphens, joiners, Hebrew and Arabic points: a word is the same without them."""
_JOINING = re.compile("[-'._/:‐‑’]+")
_CONTRACTED = re.compile("['’]")
_SAME = str.maketrans({"ß": "ss", "ẞ": "ss", "ς": "σ", "ё": "е", "Ё": "Е"})
_GREEK = re.compile("[\u0370-\u03ff\u1f00-\u1fff]+")
_MARKS = re.compile("[\u0300-\u036f]+")
"""The tokenizer takes diacritics off Latin letters alone."""


def fold(text: str) -> str:
    """What of a text is indexed: NFKC without NUL, runs of unspaced scripts cut into pairs.

    Every character of such a run begins one token: a pair with the next, the last one alone.
    """
    if text.isascii():
        return text.replace("\0", " ")
    return _UNSPACED.sub(_all_tokens, _normal(text)).replace("\0", " ")


def match_expression(query: str) -> str | None:
    """An FTS5 query for the passages that hold any word of `query`; None where it has no word.

    Any text gives a sound expression, for every term is quoted. Stop words count only where there
    is nothing else. A word of several parts is looked up by those that say something, one of
    letters (U.S.A.) as a whole, and a code (POL-358) both ways: for all words that ranks worse.
    """
    words = _words(query)
    content = [word for word in words if is_content(word)]
    terms = [term for word in content for term in _terms(word)]
    different: dict[str, str] = {}
    for term in terms or map(_whole, words):
        different.setdefault(term.casefold(), term)
    return " OR ".join(list(different.values())[:MOST_TERMS]) or None


def phrase(word: str) -> str | None:
    """An FTS5 query for the passages that hold a word, its parts side by side; None for no word."""
    words = _words(word)
    return _whole(" ".join(words)) if words else None


def is_unspaced(text: str) -> bool:
    """Words may stand side by side in the text: it holds a character of such a script."""
    return _UNSPACED.search(text) is not None


def _normal(text: str) -> str:
    if text.isascii():
        return text
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.ucd_3_2_0.normalize("NFKC", text)
    return _DROPPED.sub("", _GREEK.sub(_unmarked, text).translate(_SAME))


def _unmarked(greek: re.Match[str]) -> str:
    return _MARKS.sub("", unicodedata.ucd_3_2_0.normalize("NFD", greek[0]))


def _all_tokens(run: re.Match[str]) -> str:
    held = run[0]
    return f" {' '.join(held[i : i + 2] for i in range(len(held)))} "


def _sought_tokens(run: re.Match[str]) -> str:
    held = run[0]
    pairs = [held[i : i + 2] for i in range(len(held) - 1)]
    return f" {' '.join(pairs or [held])} "


def _words(query: str) -> list[str]:
    """The words of a query, with what joins their parts."""
    kept = [c if _is_part(c) or _JOINING.match(c) else " " for c in _normal(query)]
    words = "".join(kept).split()
    return [word for word in words if any(map(_is_part, word))]


def _is_part(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] in "LMN" or category == "Co"


def _terms(word: str) -> list[str]:
    parts = [part for part in _JOINING.split(word) if part]
    if len(parts) > 1 and all(len(part) == 1 for part in parts) and not _CONTRACTED.search(word):
        return [_whole(word)]
    tokens = [_quoted([one]) for part in parts if is_content(part) for one in _tokens(part)]
    is_code = len(parts) > 1 and any(map(str.isdigit, word))
    return [_whole(word), *tokens] if is_code else tokens


def _tokens(text: str) -> list[str]:
    return _UNSPACED.sub(_sought_tokens, text).split()


def _whole(word: str) -> str:
    return _quoted(_tokens(_JOINING.sub(" ", word)))


def _quoted(tokens: list[str]) -> str:
    """Tokens side by side; a lone character of an unspaced script begins the pairs it is in."""
    last = tokens[-1]
    begins = len(last) == 1 and _UNSPACED.match(last)
    return f'"{" ".join(tokens)}"{" *" if begins else ""}'
