"""The route of an explanation: two texts -> their words and vectors -> attention between them."""

from __future__ import annotations

from engine import vectors
from engine.embedding.base import Embedder, WordEmbedder
from engine.errors import InvalidInputError, ModelError
from engine.ranking import explain as attention
from engine.settings import Metric
from engine.text import unicode
from engine.types import Explanation


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
    if not isinstance(embedder, WordEmbedder):
        raise ModelError(f"the model {embedder.name} gives no word vectors to explain with")
    query = vectors.prepare(embedder.embed_queries([unicode.composed(a)]), metric)[0]
    document = vectors.prepare(embedder.embed_documents([unicode.composed(b)]), metric)
    words_a, rows_a = embedder.word_vectors(a, query=True)
    words_b, rows_b = embedder.word_vectors(b, query=False)
    similarity = float(vectors.similarities(document, query, metric)[0])
    return attention.explain((a, b), (words_a, words_b), (rows_a, rows_b), similarity)
