"""`Engine`: opens, wires and closes the rooms; it holds no algorithm.

Importing it is light: the model, FAISS and torch are loaded by the first call that needs them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine import opening, vectors
from engine.embedding.base import Embedder
from engine.errors import (
    DocumentNotFoundError,
    InvalidInputError,
    StorageError,
)
from engine.models import ModelSource
from engine.settings import DEFAULT_K, DEFAULT_MODEL, IndexSpec
from engine.storage.store import Store
from engine.storage.where import Filter, as_filter
from engine.text import unicode
from engine.types import (
    AddReport,
    Document,
    Explanation,
    Item,
    Progress,
    PruneReport,
    SearchResult,
    Stats,
    StoredDocument,
    VerifyReport,
)

if TYPE_CHECKING:
    from engine.ranking.rerank import Reranker
    from engine.search import Query
    from engine.text.readers import ReadOptions
    from engine.upkeep import IndexKeeper

Where = str | Mapping[str, Any] | None
"""A filter on metadata: an expression, or field -> value or list of values; None for none."""


class Engine:
    """An open store and the model that embedded it. Threads may share one.

    Use `Engine.create` for a new store, `Engine.open` for an existing one, and close it (or use
    it as a context manager).
    """

    def __init__(self, store: Store, models: ModelSource, reranker: Reranker | None) -> None:
        self._store = store
        self._models = models
        self._reranker = reranker
        self._index: IndexKeeper | None = None
        self._setup = threading.Lock()
        self._closed = False

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        model: str | Embedder = DEFAULT_MODEL,
        index: IndexSpec | None = None,
        exist_ok: bool = False,
        offline: bool = False,
        reranker: Reranker | None = None,
    ) -> Engine:
        """Make a new store at `path` (a directory) and open it.

        `model` is a sentence-transformers model by hub name or local path, or any `Embedder`.
        `offline` forbids fetching it. Where a store exists, `StoreExistsError` is raised, or with
        `exist_ok` that store is opened, if it is of the same model and metric. Raises
        `ModelError` where the model cannot be had, `StorageError` where the store cannot be made.
        """
        made = opening.create(path, model, index, exist_ok=exist_ok, offline=offline)
        return cls(*made, reranker)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        model: str | Embedder | None = None,
        offline: bool = False,
        reranker: Reranker | None = None,
    ) -> Engine:
        """Open an existing store; it remembers its model, so none need be given.

        A given `model` must be the store's own (a moved or renamed copy is), or
        `ModelMismatchError` is raised. A store of an older schema is backed up and upgraded.
        Raises `StoreNotFoundError`, `SchemaVersionError`, `CorruptionError`.
        """
        return cls(*opening.open_store(path, model, read_only=read_only, offline=offline), reranker)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the database and the index; publishes nothing. A closed engine stays closed."""
        self._closed = True
        self._index = None
        self._store.close()

    def add(
        self,
        documents: Iterable[Document | str],
        *,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> AddReport:
        """Index documents (or plain texts), replacing those whose id exists.

        The iterable is consumed batch by batch and never held whole; every batch is committed
        with its vectors. A document that cannot be indexed is refused and named in the report,
        and the others go in. Raises `LockedError` while another process writes, `ModelError`.
        """
        from engine.ingest import from_documents

        return self.ingest(from_documents(documents), on_progress=on_progress)

    def add_files(
        self,
        paths: Sequence[str],
        *,
        options: ReadOptions | None = None,
        glob: Sequence[str] = (),
        exclude: Sequence[str] = (),
        on_progress: Callable[[Progress], None] | None = None,
    ) -> AddReport:
        """Index files and directories, as `attendex index` does.

        A file indexed again replaces what it held before. In directories `glob` and `exclude`
        choose files by patterns written as in a .gitignore. Files and rows that cannot be read are
        named in the report.
        """
        from engine.intake import Intake

        intake = Intake(
            _texts(paths, "paths"),
            options,
            base=self._store.path.parent,
            glob=_texts(glob, "glob"),
            exclude=_texts(exclude, "exclude"),
        )
        return self.ingest(intake, on_progress=on_progress, fraction=intake.fraction)

    def ingest(
        self,
        items: Iterable[Item],
        *,
        on_progress: Callable[[Progress], None] | None = None,
        fraction: Callable[[], float | None] = lambda: None,
    ) -> AddReport:
        """`add` for items that know their place and source, as the file readers give them.

        `fraction` tells how much of the input was read, for progress.
        """
        from engine import upkeep
        from engine.ingest import Ingest

        self._check_writable()
        with self._store.lock.held():
            keeper = self._open_index()
            work = Ingest(
                self._store,
                self._models.load,
                lambda: keeper.publish_if_due(upkeep.SHARE_WHILE_WRITING),
            )
            report = work.run(items, on_progress=on_progress, fraction=fraction)
            keeper.publish_if_due(upkeep.SHARE_WHEN_DONE)
            return report

    def prune(self, roots: Sequence[str], *, dry_run: bool = False) -> PruneReport:
        """Remove the documents of files that are gone from the given files and directories.

        With `dry_run` nothing is removed and the report says what would be. Sources elsewhere
        are left alone.
        """
        from engine.pruning import prune

        self._check_writable()
        with self._store.lock.held():
            return prune(self._store, _texts(roots, "roots"), dry_run=dry_run)

    def get(self, ids: Sequence[str]) -> list[StoredDocument]:
        """The documents of the given ids, in that order.

        Raises `DocumentNotFoundError` naming those that do not exist.
        """
        self._check_open()
        wanted = _texts(ids, "ids")
        with self._store.reading() as view:
            found = view.documents(wanted)
        missing = [id_ for id_ in wanted if id_ not in found]
        if missing:
            raise DocumentNotFoundError(missing)
        return [found[id_] for id_ in wanted]

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents; ids that do not exist are ignored. Returns how many were deleted."""
        self._check_writable()
        with self._store.lock.held():
            return self._store.delete(_texts(ids, "ids"))

    def search(
        self,
        query: str,
        *,
        k: int = DEFAULT_K,
        where: Where = None,
        rerank: bool = True,
        passages: bool = False,
    ) -> SearchResult:
        """The `k` documents closest to a text; fewer where the store, or the filter, has fewer.

        `where` filters on metadata: an expression ("year >= 2000 and lang = 'en'") or a mapping
        of field to value or list of values. With `rerank`, every hit gets its softmax weight;
        with `passages`, a long document is answered by each of its passages that is near.
        Raises `InvalidInputError` for an empty query or k < 1, `FilterError`.
        """
        result = self.search_many([query], k=k, where=where, rerank=rerank, passages=passages)[0]
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
    ) -> list[SearchResult]:
        """`search` for many texts at once, one result each, in order.

        A text that cannot be searched for gives a result with `error` set; the others are
        answered.
        """
        from engine import search

        if isinstance(queries, str | bytes) or not isinstance(queries, Iterable):
            raise InvalidInputError("search_many takes a list of texts; use search for one")
        texts = list(queries)
        faults = {n: f for n, text in enumerate(texts) if (f := search.text_fault(text))}
        usable = [text for n, text in enumerate(texts) if n not in faults]
        search.check_k(k)
        condition = as_filter(where)
        self._check_open()
        asked: list[Query] = []
        if usable:
            embedded = search.embed(self._models.load(), usable, self._store.settings)
            numbers = [n for n in range(len(texts)) if n not in faults]
            for n, query in zip(numbers, embedded, strict=True):
                if isinstance(query, str):
                    faults[n] = query
                else:
                    asked.append(query)
        answers = iter(self._answer(asked, k, condition, rerank, passages))
        return [
            SearchResult(
                text if isinstance(text, str) else None, (), error=InvalidInputError(fault)
            )
            if (fault := faults.get(n))
            else next(answers)
            for n, text in enumerate(texts)
        ]

    def search_vectors(
        self,
        matrix: object,
        *,
        k: int = DEFAULT_K,
        where: Where = None,
        rerank: bool = True,
        passages: bool = False,
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
        settings = self._store.settings
        rows = vectors.as_matrix(matrix, settings.dimension, where="the query matrix")
        faults = vectors.unusable_rows(rows, settings.metric)
        usable = [n for n in range(len(rows)) if n not in faults]
        prepared = vectors.prepare(rows[usable], settings.metric)
        answers = iter(
            self._answer([search.Query(row) for row in prepared], k, condition, rerank, passages)
        )
        return [
            SearchResult(None, (), error=InvalidInputError(f"query vector {n} {faults[n]}"))
            if n in faults
            else next(answers)
            for n in range(len(rows))
        ]

    def explain(self, a: str, b: str) -> Explanation:
        """Which words of `a`, read as a query, find an answer in which words of `b`.

        Raises `InvalidInputError` for an empty text, `ModelError` where the store's embedder
        gives no word vectors.
        """
        from engine.explaining import explain

        self._check_open()
        return explain(self._models.load(), self._store.settings.metric, a, b)

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

    def rebuild(self) -> None:
        """Make the index file anew from the database."""
        self._check_writable()
        with self._store.lock.held():
            self._open_index().publish()

    def _answer(
        self, queries: list[Query], k: int, where: Filter | None, rerank: bool, passages: bool
    ) -> list[SearchResult]:
        from engine import search
        from engine.upkeep import IndexReplaced

        if not queries:
            return []
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
                    view, snapshot, queries, k, allowed, reranker, passages=passages
                )
            keeper.repair()
            return results

    def _reranking(self) -> Reranker:
        if self._reranker is None:
            from engine.ranking.rerank import AttentionReranker

            self._reranker = AttentionReranker()
        return self._reranker

    def _open_index(self) -> IndexKeeper:
        with self._setup:
            if self._index is None:
                from engine.upkeep import IndexKeeper

                self._index = IndexKeeper(self._store)
            return self._index

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(f"the store {self._store.path} was closed")

    def _check_writable(self) -> None:
        self._check_open()
        if self._store.read_only:
            raise StorageError(f"the store {self._store.path} was opened to be read only")


def _texts(values: object, what: str) -> list[str]:
    """A list of texts; one text alone is a mistake."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidInputError(f"{what} must be a list of texts, not {values!r}")
    listed = list(values)
    for value in listed:
        if not isinstance(value, str):
            raise InvalidInputError(f"{what} must be texts, not {value!r}")
        if fault := unicode.fault(value):
            raise InvalidInputError(f"{what}: {value!r} cannot be used, {fault}")
    return listed
