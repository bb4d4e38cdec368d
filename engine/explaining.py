"""The route of an explanation: two texts -> their words and vectors -> attention between them."""

from __future__ import annotations

from engine import vectors
from engine.embedding.base import Embedder, WordEmbedder
from engine.errors import InvalidInputError, ModelError
from engine.ranking import explain as attention
from engine.settings import Metric
from engine.text import unicode
from engine.text.stopwords import is_content
from engine.types import Explanation, Float32Array, Word


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
    query, document = (
        vectors.prepare(vectors.from_model(raw, 1, embedder.dimension, embedder.name), metric)
        for raw in (
            embedder.embed_queries([unicode.composed(a)]),
            embedder.embed_documents([unicode.composed(b)]),
        )
    )
    words_a, rows_a = _content(*embedder.word_vectors(a, query=True))
    words_b, rows_b = _content(*embedder.word_vectors(b, query=False))
    similarity = float(vectors.similarities(document, query[0], metric)[0])
    return attention.explain((a, b), (words_a, words_b), (rows_a, rows_b), similarity)


def _content(words: list[Word], rows: Float32Array) -> tuple[list[Word], Float32Array]:
    """The content words and their vectors; all words where there is no content word."""
    kept = [n for n, word in enumerate(words) if is_content(word.text)]
    return ([words[n] for n in kept], rows[kept]) if kept else (words, rows)
