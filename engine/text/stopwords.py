"""English words that carry structure, not content. Elsewhere every word counts."""

from __future__ import annotations

from engine.types import Words

_WORDS = """
    a about above after again against all am an and any are aren't as at be because been before
    being below between both but by can can't cannot could couldn't did didn't do does doesn't
    doing don't down during each few for from further had hadn't has hasn't have haven't having he
    her here hers herself him himself his how i if in into is isn't it its itself just me more most
    must mustn't my myself no nor not now of off on once only or other ought our ours ourselves out
    over own same shall shan't she should shouldn't so some such than that the their theirs them
    themselves then there these they this those through to too under until up upon very was wasn't
    we were weren't what when where which while who whom whose why will with won't would wouldn't
    you your yours yourself yourselves
"""
STOP_WORDS = frozenset(_WORDS.split())


def is_content(word: str) -> bool:
    """Whether a word says something by itself; a piece of a contraction (don't: t) does not."""
    lowered = word.lower().replace("’", "'")
    return lowered not in STOP_WORDS and lowered not in {"s", "t", "d", "ll", "m", "re", "ve"}


def content(text: str, words: Words) -> Words:
    """The words of a text that say something by themselves; all of them, where none does."""
    kept = [n for n, (start, end) in enumerate(words.spans.tolist()) if is_content(text[start:end])]
    if not kept or len(kept) == len(words.spans):
        return words
    return Words(words.spans[kept], words.vectors[kept])
