"""The rerank stage: softmax attention of the query's words over the words of each candidate.

    m_i = sum_j a_ij s_ij               how well the text answers query word i
    A = sum_i w_i m_i                   w_i: the words' weights, which sum to 1
    T = (1 - mix) cos + mix A
    T <- (1 - b) T + b t                one word asked among words: t, nearness without context
    F = (1 - share) T + share bm25 / max bm25 over the candidates, with a lexical leg

(`matches.word_matches` for s_ij and a_ij. The mix and the temperature were chosen on Cranfield
and CACM; see the README's figures for other collections.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from engine.arrays import Float64Array
from engine.errors import InvalidInputError
from engine.ranking.confidence import softmax, temperature_of
from engine.ranking.contract import ATTENTION_TEMPERATURE, Reranked, RerankInput, WordInput
from engine.ranking.matches import word_matches

MIX = 0.5
LEXICAL_SHARE = 0.1


def ranked(
    one: RerankInput, parts: Mapping[str, Float64Array], k: int, temperature: float | None = None
) -> Reranked:
    """The best k candidates by the sum of some parts, each (n,), with their softmax weights."""
    scores = np.zeros(len(one.similarities))
    for part in parts.values():
        scores += part
    order = np.argsort(-scores, kind="stable")[:k]
    temperature = temperature or temperature_of(scores)
    weights = softmax(scores[order], temperature)
    return Reranked(
        order=order,
        scores=scores[order],
        weights=weights,
        context=weights @ one.vectors[order].astype(np.float64),
        temperature=temperature,
        parts={name: part[order] for name, part in parts.items()},
    )


def _with_bare(
    parts: dict[str, Float64Array], bare: Float64Array, share: float
) -> dict[str, Float64Array]:
    """A part for what bare words are worth without context, at the level and the spread of their
    scores by the other parts, so that they keep their place among candidates of other kinds."""
    known = ~np.isnan(bare)
    if not known.any():
        return parts
    others = sum(parts.values(), np.zeros(len(bare)))[known]
    near = bare[known]
    spread = float(near.std())
    scaled = (near - near.mean()) * (float(others.std()) / spread if spread > 0 else 0.0)
    word = np.zeros(len(bare))
    word[known] = share * (others.mean() + scaled)
    kept = np.where(known, 1.0 - share, 1.0)
    return {name: kept * part for name, part in parts.items()} | {"word": word}


class AttentionReranker:
    """Ranks candidates by cosine, word attention and BM25, each where it is at hand.

    `mix` is the share of the attention score beside the cosine, `lexical_share` that of BM25
    beside the two; `attention_temperature` is that of the softmax over a text's words (0.025 at
    least: float32 holds no less). A candidate without word vectors keeps its cosine. `temperature`
    is that of the hits' weights; None takes 1.3 standard deviations of the candidates' scores
    (`confidence.temperature_of`).
    """

    reads_texts = False

    def __init__(
        self,
        temperature: float | None = None,
        *,
        mix: float = MIX,
        attention_temperature: float = ATTENTION_TEMPERATURE,
        lexical_share: float = LEXICAL_SHARE,
    ) -> None:
        if temperature is not None and not 0 < temperature < float("inf"):
            raise InvalidInputError(f"the temperature must be a number above 0, not {temperature}")
        if not 0.025 <= attention_temperature < float("inf"):
            raise InvalidInputError(
                f"the attention's temperature must be at least 0.025, not {attention_temperature}"
            )
        for name, share in (("mix", mix), ("lexical_share", lexical_share)):
            if not 0 <= share <= 1:
                raise InvalidInputError(f"{name} must be a share from 0 to 1, not {share}")
        self.temperature = temperature
        self.mix = mix
        self.attention_temperature = attention_temperature
        self.lexical_share = lexical_share

    def rerank(self, batch: Sequence[RerankInput], k: int) -> list[Reranked]:
        """See `Reranker.rerank`; equal scores keep the candidates' order."""
        return [self._rerank(one, k) for one in batch]

    def _rerank(self, one: RerankInput, k: int) -> Reranked:
        found = ranked(one, self._parts(one), k, self.temperature)
        return replace(found, attention_temperature=self.attention_temperature)

    def _parts(self, one: RerankInput) -> dict[str, Float64Array]:
        """The named summands of the candidates' scores."""
        dense, lexical = one.similarities, one.lexical
        parts = {"cosine": dense}
        if one.words is not None and len(one.words.query):
            mixed = self._attention(one.words, dense)
            parts = {"cosine": (1 - self.mix) * dense, "attention": self.mix * mixed}
        if one.bare is not None:
            parts = _with_bare(parts, one.bare, one.bare_share)
        top = 0.0 if lexical is None else float(lexical.max(initial=0.0))
        if lexical is None or top <= 0:
            return parts
        kept = 1 - self.lexical_share
        scaled = {name: kept * part for name, part in parts.items()}
        return scaled | {"lexical": self.lexical_share * lexical / top}

    def _attention(self, words: WordInput, otherwise: Float64Array) -> Float64Array:
        matches = word_matches(words.query, words.texts, words.cuts, self.attention_temperature)
        has_words = words.cuts[1:] > words.cuts[:-1]
        return np.where(has_words, words.weights @ matches, otherwise)
