"""The part of `Engine` that answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from engine.errors import InvalidInputError
from engine.session import Session, text_list
from engine.settings import DEFAULT_K, Mode
from engine.storage.where import Filter, as_filter
from engine.types import Explanation, SearchResult, Why

if TYPE_CHECKING:
    from engine.arrays import IdArray
    from engine.candidates import Clock, Options
    from engine.evaluation import Evaluation, Stage
    from engine.index.snapshot import Snapshot
    from engine.lookup import TextVectors
    from engine.queries import Query
    from engine.ranking.contract import Reranker
    from engine.storage.view import View

Answer = TypeVar("Answer")
Where = str | Mapping[str, Any] | None
"""A filter on metadata: an expression, or field -> value or list of values; None for none."""


class Searching(Session):
    """Whatever reads the store to answer; any number of threads and processes at once."""

    def search(
        self,
        query: str,
        *,
        k: int = DEFAULT_K,
        where: Where = None,
        mode: Mode | str | None = None,
        rerank: bool | None = None,
        passages: bool = False,
        exact: bool = False,
        explain: bool = False,
        mass: float | None = None,
        context: str | None = None,
    ) -> SearchResult:
        """The `k` documents that answer a text best; fewer where there are no more.

        `where` filters on metadata: an expression ("year >= 2000 and lang = 'en'") or a mapping
        of field to value or list of values. `mode` says which legs find the candidates: "hybrid"
        (the default, but for ip), "dense" (the texts' vectors) or "lexical" (BM25; without
        `rerank` it needs no model). The best 50 (or k) are then ranked by cosine, by the softmax
        attention of the query's words over theirs, and by BM25, and each hit gets its weight; with
        `rerank` False they stay in the order the legs found them (None: True, but for "lexical").

        `context` is a sentence that says in which sense the text is meant. `explain` gives each
        hit its `explanation`; `mass` cuts the hits where that share of the weight is reached.
        With `passages`, a long document is answered by each of its passages that is near. The
        dense leg is exact unless the store has an approximate index (`tune`); then with `exact`
        it is. Raises `InvalidInputError` for an empty query or k < 1, `FilterError`.
        """
        (result,) = self.search_many(
            [query],
            k=k,
            where=where,
            mode=mode,
            rerank=rerank,
            passages=passages,
            exact=exact,
            explain=explain,
            mass=mass,
            context=context,
        )
        if result.error is not None:
            raise result.error
        return result

    def search_many(
        self,
        queries: Sequence[str],
        *,
        k: int = DEFAULT_K,
        where: Where = None,
        mode: Mode | str | None = None,
        rerank: bool | None = None,
        passages: bool = False,
        exact: bool = False,
        explain: bool = False,
        mass: float | None = None,
        context: str | None = None,
    ) -> list[SearchResult]:
        """`search` for many texts at once, one result each, in order.

        A text that cannot be searched for gives a result with `error` set; the others are
        answered.
        """
        from engine import queries as preparing
        from engine import search
        from engine.candidates import Clock, Options

        if isinstance(queries, str | bytes) or not isinstance(queries, Iterable):
            raise InvalidInputError("search_many takes a list of texts; use search for one")
        chosen = search.as_mode(mode, self._store.settings.metric)
        reranked = chosen is not Mode.LEXICAL if rerank is None else bool(rerank)
        options = Options(
            k=search.check_k(k),
            mode=chosen,
            rerank=reranked,
            passages=passages,
            exact=exact,
            explain=explain,
            mass=search.check_mass(mass),
        )
        if not reranked and (explain or mass is not None):
            raise InvalidInputError(
                "explanations and mass need the rerank stage (rerank=True, --rerank)"
            )
        if context is not None and not options.needs_vector:
            raise InvalidInputError("a lexical search has no use for a context")
        condition = as_filter(where)
        self._check_open()
        texts = self._text_vectors() if options.needs_vector else None
        clock = Clock()
        with clock.stage("embed"):
            asked = preparing.text_queries(list(queries), texts, self._store.settings, context)
        return preparing.answers(asked, lambda some: self._answer(some, options, condition, clock))

    def search_vectors(
        self,
        matrix: object,
        *,
        k: int = DEFAULT_K,
        where: Where = None,
        rerank: bool = True,
        passages: bool = False,
        exact: bool = False,
    ) -> list[SearchResult]:
        """`search_many` for query vectors: a numeric matrix (m, d), a row a query.

        Rows are normalised for cosine; the matrix is not changed. A row of NaN, infinity or
        (for cosine) zeros gives a result with `error` set. Raises `DimensionError` for another
        width than the store's.
        """
        from engine import queries as preparing
        from engine import search
        from engine.candidates import Clock, Options

        options = Options(
            k=search.check_k(k), mode=Mode.DENSE, rerank=rerank, passages=passages, exact=exact
        )
        condition = as_filter(where)
        self._check_open()
        asked = preparing.vector_queries(matrix, self._store.settings)
        return preparing.answers(
            asked, lambda some: self._answer(some, options, condition, Clock())
        )

    def combine(
        self,
        *,
        plus: Sequence[str] = (),
        minus: Sequence[str] = (),
        like: Sequence[str] = (),
        unlike: Sequence[str] = (),
        k: int = DEFAULT_K,
        where: Where = None,
        exact: bool = False,
    ) -> SearchResult:
        """The `k` documents nearest to a combination of texts and documents, by their vectors.

        `plus` and `minus` are texts whose vectors are added and taken away (king - man + woman),
        `like` are ids of documents to be near to; of what is left, that which it shares with each
        text of `unlike` is taken out. What went in is no answer: documents in `like`, and those
        whose text is one of the texts. Raises `InvalidInputError`, `DocumentNotFoundError`.
        """
        from engine import combining, search
        from engine.candidates import Clock, Options
        from engine.text import unicode

        given = [
            text_list(values, name)
            for values, name in (
                (plus, "plus"),
                (minus, "minus"),
                (like, "like"),
                (unlike, "unlike"),
            )
        ]
        combination = combining.as_combination(*given)
        options = Options(k=search.check_k(k), mode=Mode.DENSE, exact=exact)
        condition = as_filter(where)
        self._check_open()
        clock, settings = Clock(), self._store.settings
        with clock.stage("embed"):
            texts = combining.embedded(combination, self._text_vectors(), settings)
        reranker = self._reranking()

        def answer(view: View, snapshot: Snapshot, allowed: IdArray | None) -> SearchResult:
            query, used = combining.query(view, snapshot, combination, texts)
            spoken = frozenset(unicode.folded(text) for text in texts)
            asked = replace(options, exclude=used, exclude_texts=spoken)
            (result,) = search.run(
                view, snapshot, [query], asked, allowed, settings, reranker, clock
            )
            return replace(result, query=combination.title)

        return self._on_snapshot(condition, answer)

    def explain(self, a: str, b: str) -> Explanation:
        """Which words of `a`, read as a query, find an answer in which words of `b`.

        Raises `InvalidInputError` for an empty text, `ModelError` where the store's embedder
        gives no word vectors.
        """
        from engine.explaining import explain

        self._check_open()
        return explain(self._models.load(), self._store.settings.metric, a, b)

    def why(
        self,
        id: str,
        query: str,
        *,
        k: int = DEFAULT_K,
        where: Where = None,
        mode: Mode | str | None = None,
    ) -> Why:
        """Why a document is, or is not, among the first `k` answers of a text.

        Its rank and score in each leg and after ranking, how far it is from the last of the first
        k, which words of the query it does not hold, whether the filter or the model's window left
        it out. Raises `DocumentNotFoundError`, and what `search` raises.
        """
        from engine import queries as preparing
        from engine import reasons, search
        from engine.candidates import Options

        chosen = search.as_mode(mode, self._store.settings.metric)
        options = Options(k=search.check_k(k), mode=chosen, rerank=chosen is not Mode.LEXICAL)
        (key,) = text_list([id], "id")
        condition = as_filter(where)
        self._check_open()
        (asked,) = preparing.text_queries([query], self._text_vectors(), self._store.settings)
        if isinstance(asked, preparing.Unanswerable):
            raise InvalidInputError(asked.fault)
        reranker = self._reranking()
        return self._on_snapshot(
            condition,
            lambda view, snapshot, allowed: reasons.why(
                view, snapshot, key, asked, options, allowed, self._store.settings, reranker
            ),
        )

    def evaluate(
        self,
        queries: Mapping[str, str],
        qrels: Mapping[str, Mapping[str, int]],
        *,
        stages: Sequence[str] | None = None,
        where: Where = None,
    ) -> Evaluation:
        """How well each stage of the ranking answers judged queries: nDCG@10, MRR@10, Recall@100
        and MAP@100, and whether the stages differ.

        `queries` are texts by id, `qrels` judgements by the same ids and by document id, above 0
        for what is relevant; `engine.judgements` reads both from files. `stages` are some of the
        names in `engine.evaluation.STAGES` (None: all). Raises `InvalidInputError` where no query
        has judgements, `EngineError` without the extra `evaluate`.
        """
        from engine import evaluation

        self._check_open()

        def ask(texts: list[str], stage: Stage, k: int) -> list[SearchResult]:
            return self.search_many(texts, k=k, where=where, mode=stage.mode, rerank=stage.rerank)

        def existing(ids: Sequence[str]) -> Collection[str]:
            with self._store.reading() as view:
                return view.known(ids)

        return evaluation.evaluate(queries, qrels, evaluation.chosen(stages), ask, existing)

    def _answer(
        self, queries: list[Query], options: Options, where: Filter | None, clock: Clock
    ) -> list[SearchResult]:
        from engine import search

        reranker = self._reranking() if options.rerank else None
        if not options.needs_vector:
            with self._store.reading() as view:
                allowed = None if where is None else view.allowed(where)
                return search.run(
                    view, None, queries, options, allowed, self._store.settings, None, clock
                )
        return self._on_snapshot(
            where,
            lambda view, snapshot, allowed: search.run(
                view,
                snapshot,
                queries,
                options,
                allowed,
                self._store.settings,
                reranker,
                clock,
            ),
        )

    def _on_snapshot(
        self, where: Filter | None, work: Callable[[View, Snapshot, IdArray | None], Answer]
    ) -> Answer:
        """What `work` makes of one generation: its rows, its index, the ids a filter leaves."""
        from engine.upkeep import IndexReplaced

        keeper = self._open_index()
        while True:
            with self._store.reading() as view:
                try:
                    snapshot = keeper.snapshot(view)
                except IndexReplaced:
                    continue
                allowed = None if where is None else view.allowed(where)
                answer = work(view, snapshot, allowed)
            keeper.repair()
            return answer

    def _text_vectors(self) -> TextVectors:
        from engine.lookup import TextVectors

        return TextVectors(self._store, self._models)

    def _reranking(self) -> Reranker:
        if self._reranker is None:
            from engine.ranking.rerank import AttentionReranker

            self._reranker = AttentionReranker()
        return self._reranker
