"""`Engine`: opens, wires and closes the rooms; it holds no algorithm.

Importing it is light: the model, FAISS and torch are loaded by the first call that needs them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine import opening
from engine.embedding.base import Embedder
from engine.errors import DocumentNotFoundError, InvalidInputError
from engine.session import text_list
from engine.settings import DEFAULT_K, DEFAULT_MODEL, IndexSpec
from engine.storage.where import Filter, as_filter
from engine.types import (
    Explanation,
    SearchResult,
    Stats,
    StoredDocument,
    VerifyReport,
)
from engine.writing import Writing

if TYPE_CHECKING:
    from engine.evaluation import Evaluation, Stage
    from engine.ranking.contract import Reranker
    from engine.search import Query
    from engine.transfer import ExportFile

Where = str | Mapping[str, Any] | None
"""A filter on metadata: an expression, or field -> value or list of values; None for none."""


class Engine(Writing):
    """An open store and the model that embedded it. Threads may share one.

    Use `Engine.create` for a new store, `Engine.open` for an existing one, and close it (or use
    it as a context manager).
    """

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        model: str | Embedder = DEFAULT_MODEL,
        index: IndexSpec | None = None,
        exist_ok: bool = False,
        offline: bool = False,
        half: bool = False,
        reranker: Reranker | None = None,
    ) -> Engine:
        """Make a new store at `path` (a directory) and open it.

        `model` is a sentence-transformers model by hub name or local path, or any `Embedder`.
        `offline` forbids fetching it; with `half` it runs in 16 bit on a GPU. Where a store
        exists, `StoreExistsError` is raised, or with `exist_ok` that store is opened, if it is of
        the same model and metric. Raises `ModelError` where the model cannot be had,
        `StorageError` where the store cannot be made.
        """
        made = opening.create(path, model, index, exist_ok=exist_ok, offline=offline, half=half)
        return cls(*made, reranker)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        model: str | Embedder | None = None,
        offline: bool = False,
        half: bool = False,
        reranker: Reranker | None = None,
    ) -> Engine:
        """Open an existing store; it remembers its model, so none need be given.

        A given `model` must be the store's own (a moved or renamed copy is), or
        `ModelMismatchError` is raised. A store of an older schema is backed up and upgraded.
        Raises `StoreNotFoundError`, `SchemaVersionError`, `CorruptionError`.
        """
        return cls(
            *opening.open_store(path, model, read_only=read_only, offline=offline, half=half),
            reranker,
        )

    @classmethod
    def create_for(
        cls,
        path: str | os.PathLike[str],
        exported: ExportFile,
        *,
        offline: bool = False,
        half: bool = False,
        reranker: Reranker | None = None,
    ) -> Engine:
        """Make a new, empty store for the vectors of an export, as `engine.transfer` opens it.

        The model is the one the header names; it is neither looked for nor loaded. Raises
        `InvalidInputError` for an export without vectors, `StoreExistsError`.
        """
        settings = exported.settings()
        if settings is None:
            raise InvalidInputError(f"{exported.path} has no vectors; make a store with a model")
        return cls(*opening.create_with(path, settings, offline=offline, half=half), reranker)

    def get(self, ids: Sequence[str]) -> list[StoredDocument]:
        """The documents of the given ids, in that order.

        Raises `DocumentNotFoundError` naming those that do not exist.
        """
        self._check_open()
        wanted = text_list(ids, "ids")
        with self._store.reading() as view:
            found = view.documents(wanted)
        missing = [id_ for id_ in wanted if id_ not in found]
        if missing:
            raise DocumentNotFoundError(missing)
        return [found[id_] for id_ in wanted]

    def search(
        self,
        query: str,
        *,
        k: int = DEFAULT_K,
        where: Where = None,
        rerank: bool = True,
        passages: bool = False,
        exact: bool = False,
    ) -> SearchResult:
        """The `k` documents closest to a text; fewer where the store, or the filter, has fewer.

        `where` filters on metadata: an expression ("year >= 2000 and lang = 'en'") or a mapping
        of field to value or list of values. With `rerank`, every hit gets its softmax weight;
        with `passages`, a long document is answered by each of its passages that is near. Answers
        are exact unless the store has an approximate index (`tune`); then with `exact` they are.
        Raises `InvalidInputError` for an empty query or k < 1, `FilterError`.
        """
        (result,) = self.search_many(
            [query], k=k, where=where, rerank=rerank, passages=passages, exact=exact
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
        rerank: bool = True,
        passages: bool = False,
        exact: bool = False,
    ) -> list[SearchResult]:
        """`search` for many texts at once, one result each, in order.

        A text that cannot be searched for gives a result with `error` set; the others are
        answered.
        """
        from engine import search

        if isinstance(queries, str | bytes) or not isinstance(queries, Iterable):
            raise InvalidInputError("search_many takes a list of texts; use search for one")
        search.check_k(k)
        condition = as_filter(where)
        self._check_open()
        asked = search.text_queries(list(queries), self._models.load, self._store.settings)
        return search.answers(
            asked, lambda some: self._answer(some, k, condition, rerank, passages, exact)
        )

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
        from engine import search

        search.check_k(k)
        condition = as_filter(where)
        self._check_open()
        asked = search.vector_queries(matrix, self._store.settings)
        return search.answers(
            asked, lambda some: self._answer(some, k, condition, rerank, passages, exact)
        )

    def explain(self, a: str, b: str) -> Explanation:
        """Which words of `a`, read as a query, find an answer in which words of `b`.

        Raises `InvalidInputError` for an empty text, `ModelError` where the store's embedder
        gives no word vectors.
        """
        from engine.explaining import explain

        self._check_open()
        return explain(self._models.load(), self._store.settings.metric, a, b)

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
            return self.search_many(texts, k=k, where=where, rerank=stage.rerank)

        def existing(ids: Sequence[str]) -> Collection[str]:
            with self._store.reading() as view:
                return view.known(ids)

        return evaluation.evaluate(queries, qrels, evaluation.chosen(stages), ask, existing)

    def stats(self) -> Stats:
        """What the store holds; loads neither the model nor the index."""
        self._check_open()
        return self._store.stats()

    def verify(self) -> VerifyReport:
        """Check the database and the index file against each other; changes nothing."""
        self._check_open()
        from engine import checks

        with self._store.reading() as view:
            state = view.state()
            problems = checks.problems(view, self._store.settings)
            problems += self._open_index().problems(view)
        return VerifyReport(state.documents, state.passages, tuple(problems))

    def export_file(
        self,
        path: str | os.PathLike[str],
        *,
        format: str | None = None,
        vectors: bool = True,
        where: Where = None,
        overwrite: bool = False,
    ) -> int:
        """Write all documents, or those of a filter, to a file; returns how many.

        The format is that of the suffix: .jsonl, .jsonl.gz or .parquet, else `format`. With
        `vectors`, `import_file` gives the same store back without embedding anything. Others may
        write meanwhile: one generation is exported. Raises `InvalidInputError` where the file
        exists, unless `overwrite`, `StorageError` where it cannot be written.
        """
        from engine import transfer

        self._check_open()
        return transfer.export(
            self._store,
            path,
            format_=format,
            vectors=vectors,
            where=as_filter(where),
            overwrite=overwrite,
        )

    def backup(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Copy the database of one generation into one file, while others may write.

        Put into an empty directory as `store.db` it is the same store. Errors as `export_file`.
        """
        from engine import transfer

        self._check_open()
        transfer.backup(self._store, path, overwrite=overwrite)

    def _answer(
        self,
        queries: list[Query],
        k: int,
        where: Filter | None,
        rerank: bool,
        passages: bool,
        exact: bool,
    ) -> list[SearchResult]:
        from engine import search
        from engine.upkeep import IndexReplaced

        keeper = self._open_index()
        reranker = self._reranking() if rerank else None
        while True:
            with self._store.reading() as view:
                try:
                    snapshot = keeper.snapshot(view)
                except IndexReplaced:
                    continue
                allowed = None if where is None else view.allowed(where)
                results = search.run(
                    view,
                    snapshot,
                    queries,
                    k,
                    allowed,
                    reranker,
                    passages=passages,
                    exact=exact,
                )
            keeper.repair()
            return results

    def _reranking(self) -> Reranker:
        if self._reranker is None:
            from engine.ranking.rerank import AttentionReranker

            self._reranker = AttentionReranker()
        return self._reranker
