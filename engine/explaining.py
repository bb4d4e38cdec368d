"""The route of an explanation: two texts -> their words and vectors -> attention between them."""

from __future__ import annotations

from engine import vectors
from engine.embedding.base import Embedder, gives_words
from engine.embedding.words import with_words
from engine.errors import InvalidInputError, ModelError
from engine.ranking import explain as attention
from engine.settings import Metric
from engine.text import unicode
from engine.text.stopwords import content
from engine.types import Explanation
from engine.wording import words_at


def explain(embedder: Embedder, metric: Metric, a: str, b: str) -> Explanation:
    """Which words of `a`, read as a query, find an answer in which words of `b`.

    Raises `InvalidInputError` for a text that cannot be embedded, `ModelError` where the model
    gives no word vectors.
    """
    for text in (a, b):
        if not isinstance(text, str) or unicode.is_blank(text):
            raise InvalidInputError(f"there is nothing to explain in {text!r}; give two texts")
        if fault := unicode.fault(text):
            raise InvalidInputError(f"a text cannot be used: {fault}")
    able = gives_words(embedder)
    if able is None:
        raise ModelError(f"the model {embedder.name} gives no word vectors to explain with")
    pooled, words, rows = [], [], []
    for text, is_query in ((a, True), (b, False)):
        plain = unicode.composed(text)
        matrix, (found,) = with_words(embedder, able, [plain], query=is_query)
        pooled.append(vectors.prepare(matrix, metric))
        kept = content(plain, found)
        words.append(words_at(text, 0, kept))
        rows.append(kept.vectors)
    similarity = float(vectors.similarities(pooled[1], pooled[0][0], metric)[0])
    return attention.explain((a, b), (words[0], words[1]), (rows[0], rows[1]), similarity)
