"""Searches by both legs against a twin that recomputes every document's score from its text."""

from __future__ import annotations

import math
import random
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Document, Engine, IndexSpec, SearchResult, candidates, wording
from engine.arrays import Float64Array
from engine.errors import InvalidInputError
from engine.ranking.confidence import effective_number, holding
from engine.ranking.contract import Reranked, RerankInput
from engine.ranking.fusion import reciprocal_ranks
from engine.settings import Metric
from engine.text.stopwords import content, is_content
from engine.vectors import unit_rows
from engine.words import pack, unpack
from tests.test_light import MODELS, loaded
from tests.tokens import HandEmbedder

VOCABULARY = ["apple", "avocado", "boat", "banana", "sea", "sun", "sand", "the", "of", "zebra"]
VOCABULARY += [f"w{n}" for n in range(60)]
QUERIES = ["apple of the sea", "the of", "boat w3 w4 boat sun", "unheard words", "Zebra"]
WINDOW = 12


def corpus(count: int) -> list[Document]:
    """Texts of 1 to 40 words, two of some hundred (more than 16 passages), two bare vectors."""
    chance = random.Random(count)
    sizes = [chance.randint(1, 40) for _ in range(count - 4)] + [300, 400]
    texts = [" ".join(chance.choices(VOCABULARY, k=size)) for size in sizes]
    made = [Document(text, f"d{n}", {"odd": n % 2 == 1}) for n, text in enumerate(texts)]
    bare = np.random.default_rng(count).normal(size=(2, 512))
    return made + [Document(id=f"v{n}", vector=row) for n, row in enumerate(bare)]


@pytest.fixture(scope="module", params=[20, 150])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("hybrid") / "s"
    with Engine.create(path, model=HandEmbedder(max_tokens=WINDOW)) as engine:
        documents = corpus(request.param)
        engine.add(documents)
        yield engine, documents


@dataclass
class Passage:
    text: str
    vector: Float64Array
    words: Float64Array
    tokens: list[str]


class Twin:
    """All documents' scores for a query, by the formulas, passage by passage in float64."""

    def __init__(self, engine: Engine, documents: Sequence[Document]) -> None:
        self.model = HandEmbedder(max_tokens=WINDOW)
        found = engine.search("apple", k=10_000, mode="dense", rerank=False, passages=True).hits
        self.documents: dict[str, list[Passage]] = {}
        for document in documents:
            own = sorted((hit for hit in found if hit.id == document.id), key=lambda hit: hit.start)
            assert [document.text[hit.start : hit.end] for hit in own] == [h.text for h in own]
            self.documents[str(document.id)] = [self.passage(document, hit.text) for hit in own]
        self.all = [passage for own in self.documents.values() for passage in own]

    def passage(self, document: Document, text: str) -> Passage:
        if document.vector is not None:
            vector = unit_rows(np.asarray(document.vector, np.float32)[None])[0]
            return Passage("", vector.astype(np.float64), np.empty((0, 512)), [])
        matrix, (words,) = self.model.embed_with_words([text], query=False)
        kept = unpack(pack(content(text, words), None)).vectors.astype(np.float64)
        tokens = re.findall(r"\w+", text.lower())
        return Passage(text, unit_rows(matrix)[0].astype(np.float64), kept, tokens)

    def bm25(self, query: str) -> dict[int, float]:
        """Okapi BM25 of passages by identity, k1 1.2, b .75, by FTS5's idf."""
        texts = [one for one in self.all if one.tokens]
        mean = sum(len(one.tokens) for one in texts) / len(texts)
        terms = list(dict.fromkeys(re.findall(r"\w+", query.lower())))
        terms = [term for term in terms if is_content(term)] or terms
        scores = {id(one): 0.0 for one in self.all}
        for term in terms:
            df = sum(term in one.tokens for one in texts)
            idf = max(1e-6, math.log((len(texts) - df + 0.5) / (df + 0.5)))
            for one in texts:
                tf = one.tokens.count(term)
                length = 1 - 0.75 + 0.75 * len(one.tokens) / mean
                scores[id(one)] += idf * tf * 2.2 / (tf + 1.2 * length)
        return scores

    def weights(self, words: list[str]) -> Float64Array:
        if len(self.all) < 100:
            return np.full(len(words), 1 / len(words))
        df = np.array([sum(word.lower() in one.tokens for one in self.all) for word in words])
        idf = np.log(1 + (len(self.all) - df + 0.5) / (df + 0.5))
        return np.asarray(idf / idf.sum())

    def scores(self, query: str, mode: str, k: int) -> list[tuple[str, float, float, float]]:
        """The candidates for k answers, best first: id, score, similarity, BM25."""
        matrix, (words,) = self.model.embed_with_words([query], query=True)
        vector = unit_rows(matrix)[0].astype(np.float64)
        kept = content(query, words)
        weights = self.weights([query[start:end] for start, end in kept.spans.tolist()])
        bm25 = self.bm25(query)
        cosine, lexical, attention = {}, {}, {}
        for key, own in self.documents.items():
            similarities = [float(passage.vector @ vector) for passage in own]
            best = int(np.argmax(np.round(similarities, 12)))
            cosine[key] = similarities[best]
            lexical[key] = max(bm25[id(passage)] for passage in own)
            first = min(max(0, best - 8), max(0, len(own) - 16))
            rows = np.concatenate([passage.words for passage in own[first : first + 16]])
            attention[key] = cosine[key]
            if len(rows):
                shared = kept.vectors.astype(np.float64) @ rows.T
                powers = np.exp(shared / 0.1)
                match = (powers * shared).sum(axis=1) / powers.sum(axis=1)
                attention[key] = float(weights @ match)
        numbers = {key: n for n, key in enumerate(self.documents)}
        dense = sorted(cosine, key=lambda key: (-round(cosine[key], 9), numbers[key]))
        by_words = sorted(
            (key for key in lexical if lexical[key] > 0),
            key=lambda key: (-round(lexical[key], 9), numbers[key]),
        )
        rankings = {"dense": [dense], "lexical": [by_words], "hybrid": [dense, by_words]}[mode]
        wanted = max(k, 50)
        depth = max(wanted, 100) if mode == "hybrid" else wanted
        places = [[numbers[key] for key in ranking[:depth]] for ranking in rankings]
        chosen = [list(numbers)[n] for n in list(reciprocal_ranks(places))[:wanted]]
        top = 0.0 if mode == "dense" else max((lexical[key] for key in chosen), default=0.0)
        found = []
        for key in chosen:
            score = 0.5 * cosine[key] + 0.5 * attention[key]
            if top > 0:
                score = 0.9 * score + 0.1 * lexical[key] / top
            found.append((key, score, cosine[key], 0.0 if mode == "dense" else lexical[key]))
        return sorted(found, key=lambda one: -one[1])


@pytest.mark.parametrize("k", [7, 400])
@pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
def test_scores_and_order_equal_their_twin(store: Any, mode: str, k: int) -> None:
    engine, documents = store
    twin = Twin(engine, documents)
    for query in QUERIES:
        expected = twin.scores(query, mode, k)
        hits = engine.search(query, k=k, mode=mode, rerank=True).hits
        assert len({hit.id for hit in hits}) == len(hits) == min(k, len(expected))
        by_id = {key: rest for key, *rest in expected}
        best = [score for _, score, _, _ in expected[:k]]
        np.testing.assert_allclose([hit.score for hit in hits], best, atol=2e-6)
        for hit in hits:
            found = (hit.score, hit.similarity, hit.lexical)
            assert found == pytest.approx(tuple(by_id[hit.id]), abs=2e-6), (query, hit.id)


def scores(result: SearchResult) -> dict[str, float]:
    return {hit.id: hit.score for hit in result.hits}


def test_a_score_depends_on_its_document_alone(store: Any) -> None:
    engine, _ = store
    together = engine.search_many(QUERIES, mode="dense", k=9)
    for query, one in zip(QUERIES, together, strict=True):
        alone, many = (scores(engine.search(query, mode="dense", k=k)) for k in (9, 400))
        assert scores(one) == pytest.approx(alone, abs=1e-6)
        assert alone == pytest.approx({key: many[key] for key in alone}, abs=1e-6)
        odd = engine.search(query, mode="dense", where={"odd": True}, k=400)
        assert scores(odd) == pytest.approx({key: many[key] for key in scores(odd)}, abs=1e-6)


def test_past_the_attended_candidates_it_is_the_cosine(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = store
    before = engine.search(QUERIES[0], mode="dense", k=400)
    monkeypatch.setattr(wording, "MOST_ATTENDED", 5)
    after = engine.search(QUERIES[0], mode="dense", k=400, explain=True)
    near = [hit.id for hit in engine.search(QUERIES[0], mode="dense", k=5, rerank=False).hits]
    explained = [hit for hit in after.hits if hit.explanation]
    assert {hit.id for hit in explained} == {key for key in near if not key.startswith("v")}
    for hit in after.hits:
        expected = scores(before)[hit.id] if hit in explained else hit.similarity
        assert hit.score == pytest.approx(expected, abs=1e-6)


def test_bm25_is_that_of_the_passage_however_few_the_leg_found(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = store
    query = "apple boat sea"
    everything = scores(engine.search(query, mode="lexical", k=400))
    monkeypatch.setattr(candidates, "_PASSAGES", 1)
    monkeypatch.setattr(candidates, "_FUSED", 1)
    monkeypatch.setattr(candidates, "CANDIDATES", 1)
    for k in (1, 8):
        hits = engine.search(query, k=k).hits
        assert len(hits) == k
        for hit in hits:
            assert hit.lexical == pytest.approx(everything.get(hit.id, 0.0), abs=1e-9)


@pytest.mark.parametrize(
    ("where", "values"),
    [(None, (True, False, None)), ({"odd": True}, (True,)), ("odd = false", (False,))],
)
@pytest.mark.parametrize("rerank", [True, False])
def test_filters_hold_in_both_legs_and_hybrid_never_finds_less(
    store: Any, where: Any, values: tuple[bool | None, ...], rerank: bool
) -> None:
    engine, documents = store
    allowed = {one.id for one in documents if one.metadata.get("odd") in values}
    for query in QUERIES[:3]:
        for k in (1, 3, 30, 400):
            counts = []
            for mode in ("hybrid", "dense", "lexical"):
                hits = engine.search(query, k=k, where=where, mode=mode, rerank=rerank).hits
                assert {hit.id for hit in hits} <= allowed
                assert len({hit.id for hit in hits}) == len(hits)
                counts.append(len(hits))
            assert counts[:2] == [min(k, len(allowed))] * 2


def test_a_document_is_answered_by_its_nearest_passage(store: Any) -> None:
    engine, _ = store
    for mode in ("hybrid", "dense", "lexical"):
        every = engine.search(QUERIES[2], mode=mode, rerank=True, k=1000, passages=True).hits
        nearest: dict[str, float] = {}
        for hit in every:
            nearest[hit.id] = max(nearest.get(hit.id, -1.0), hit.similarity)
        assert len({(hit.id, hit.start) for hit in every}) == len(every) > len(nearest)
        whole = engine.search(QUERIES[2], mode=mode, rerank=True, k=1000).hits
        assert {hit.id for hit in whole} == set(nearest)
        for hit in whole:
            if mode != "lexical":
                assert hit.similarity == nearest[hit.id]
            assert hit.similarity >= nearest[hit.id]


@pytest.mark.parametrize("mass", [0.2, 0.6, 1.0])
def test_mass_keeps_the_hits_that_hold_it(store: Any, mass: float) -> None:
    engine, _ = store
    whole = engine.search(QUERIES[0], k=20)
    weights = np.array([hit.weight for hit in whole.hits])
    assert weights.sum() == pytest.approx(1.0, abs=1e-9)
    assert whole.effective == pytest.approx(effective_number(weights))
    cut = engine.search(QUERIES[0], k=20, mass=mass)
    count = holding(weights, mass)
    assert [hit.id for hit in cut.hits] == [hit.id for hit in whole.hits[:count]]
    assert [hit.weight for hit in cut.hits] == pytest.approx(weights[:count].tolist())
    assert cut.effective == pytest.approx(whole.effective)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Engine]:
    with Engine.create(tmp_path / "s", model=HandEmbedder()) as engine:
        engine.add([Document("apple boat", "a"), Document("sea sun", "b"), Document("sand", "c")])
        yield engine


def test_what_is_deleted_or_replaced_is_not_answered(small: Engine) -> None:
    assert small.search("boat", k=1).hits[0].id == "a"
    small.add([Document("zebra", "a")])
    for mode in ("hybrid", "dense", "lexical"):
        assert "apple boat" not in [hit.text for hit in small.search("boat", mode=mode).hits]
    assert small.search("zebra", k=1).hits[0].id == "a"
    small.delete(["a"])
    for mode in ("hybrid", "dense", "lexical"):
        assert "a" not in scores(small.search("zebra sea", mode=mode))


@pytest.mark.parametrize(
    ("asked", "legs"),
    [
        ({"query": "boat"}, ("dense", "attention", "lexical")),
        ({"query": "boat", "mode": "dense"}, ("dense", "attention")),
        ({"query": "unheard"}, ("dense", "attention")),
        ({"query": "boat", "rerank": False}, ("dense", "lexical")),
        ({"query": "unheard", "rerank": False}, ("dense",)),
        ({"query": "boat", "mode": "lexical"}, ("lexical",)),
    ],
)
def test_legs_are_those_that_had_a_part(
    small: Engine, asked: dict[str, Any], legs: tuple[str, ...]
) -> None:
    assert small.search(**asked).legs == legs


def test_an_ip_store_is_searched_by_its_vectors(tmp_path: Path) -> None:
    spec = IndexSpec(metric=Metric.IP)
    with Engine.create(tmp_path / "s", model=HandEmbedder(), index=spec) as engine:
        engine.add(["apple boat", "apple apple apple sea"])
        assert engine.search("apple").legs == ("dense",)
        assert [hit.score for hit in engine.search("apple").hits] == [3.0, 1.0]
        assert engine.search("apple", mode="hybrid").legs == ("dense", "lexical")
        with pytest.raises(InvalidInputError, match="all zeros"):
            engine.combine(plus=["?!"])


def test_stages_are_timed_by_name(small: Engine) -> None:
    stages = set(small.search("boat", explain=True).seconds_by_stage)
    assert stages == {"embed", "dense", "lexical", "fuse", "fetch", "rerank", "explain"}
    assert set(small.search("boat", mode="lexical").seconds_by_stage) == {
        "embed",
        "lexical",
        "fuse",
        "fetch",
    }


def test_a_lexical_search_loads_no_library(small: Engine) -> None:
    code = """
import sys
from engine import Engine
with Engine.open(sys.argv[1]) as engine:
    assert engine.search("boat", mode="lexical").hits[0].id == "a"
"""
    assert not loaded(code, str(small.stats().path)) & MODELS


@pytest.mark.parametrize("k", [2**63, 10**30])
def test_any_whole_k(small: Engine, k: int) -> None:
    for mode in ("hybrid", "dense", "lexical"):
        assert "a" in scores(small.search("boat", k=k, mode=mode))
    assert small.why("a", "boat", k=k).rank == 1


class Earlier:
    """A reranker of the earlier contract: the worst first, and no parts."""

    def rerank(self, batch: Sequence[RerankInput], k: int) -> list[Reranked]:
        answers = []
        for one in batch:
            order = np.argsort(one.similarities, kind="stable")[:k]
            weights = np.full(len(order), 1 / len(order))
            context = weights @ one.vectors[order].astype(np.float64)
            answers.append(Reranked(order, -one.similarities[order], weights, context, 1.0))
        return answers


def test_rerankers_of_the_earlier_contract_serve(small: Engine) -> None:
    with Engine.open(small.stats().path, model=HandEmbedder(), reranker=Earlier()) as engine:
        found = engine.search("apple boat", explain=True)
        assert [hit.id for hit in found.hits] == ["b", "c", "a"]
        assert found.legs == ("dense", "lexical")
        assert found.hits[-1].explanation is not None
        assert found.hits[-1].explanation.parts == {}


def test_threads_search_while_another_writes(small: Engine) -> None:
    done, faults = threading.Event(), []

    def search(mode: str) -> None:
        try:
            while not done.is_set():
                hits = small.search("apple sea", mode=mode, k=50, rerank=True, explain=True).hits
                assert len({hit.id for hit in hits}) == len(hits)
                for hit in hits:
                    assert sum(hit.explanation.parts.values()) == pytest.approx(hit.score)  # type: ignore[union-attr]
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=search, args=[mode]) for mode in ("dense", "hybrid")]
    for thread in threads:
        thread.start()
    chance = random.Random(1)
    for turn in range(40):
        texts = [" ".join(chance.choices(VOCABULARY[:7], k=5)) for _ in range(3)]
        small.add([Document(text, f"d{chance.randint(0, 20)}") for text in texts])
        small.delete([f"d{turn % 20}"])
    done.set()
    for thread in threads:
        thread.join()
    assert faults == []
