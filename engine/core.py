"""`Engine`: opens, wires and closes the rooms; it holds no algorithm.

Importing it is light: the model, FAISS and torch are loaded by the first call that needs them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine import opening
from engine.embedding.base import Embedder
from engine.errors import DocumentNotFoundError, InvalidInputError
from engine.searching import Searching, Where
from engine.session import text_list
from engine.settings import DEFAULT_MODEL, IndexSpec, Metric, Precision, Runtime
from engine.storage.where import as_filter
from engine.types import (
    Explanation,
    Stats,
    StoredDocument,
    VerifyReport,
)
from engine.writing import Writing

if TYPE_CHECKING:
    from engine.ranking.contract import Reranker
    from engine.transfer import ExportFile


class Engine(Writing, Searching):
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
        runtime: Runtime | str | None = None,
        precision: Precision | str | None = None,
        tokens: bool | None = None,
        reranker: Reranker | None = None,
    ) -> Engine:
        """Make a new store at `path` (a directory) and open it.

        `model` is a sentence-transformers model by hub name or local path, one behind an HTTP
        endpoint ("openai:MODEL@https://host/v1"), or any `Embedder`.
        `offline` forbids fetching it; with `half` it runs in 16 bit on a GPU. `runtime` is what
        runs it: "auto", "onnx" or "sentence-transformers", which give the same vectors.
        `precision` is "float32" (None) or "int8": by onnxruntime in 8-bit integers, quicker and a
        little less true; the store embeds in it from then on. `tokens` says whether the vectors of
        the texts' words are kept, for ranking and explanations (None: yes, or as an existing store
        does). Where a store exists, `StoreExistsError` is raised, or with `exist_ok` that store is
        opened, if it is of the same model and metric. Raises `ModelError` where the model cannot be
        had, `StorageError` where the store cannot be made.
        """
        made = opening.create(
            path,
            model,
            index,
            exist_ok=exist_ok,
            offline=offline,
            half=half,
            runtime=runtime,
            precision=precision,
            tokens=tokens,
        )
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
        runtime: Runtime | str | None = None,
        precision: Precision | str | None = None,
        reranker: Reranker | None = None,
    ) -> Engine:
        """Open an existing store; it remembers its model, so none need be given.

        A given `model` must be the store's own (a moved or renamed copy is), and so must a given
        `precision`, or `ModelMismatchError` is raised. A store of an older schema is backed up and
        upgraded. Raises `StoreNotFoundError`, `SchemaVersionError`, `CorruptionError`.
        """
        return cls(
            *opening.open_store(
                path,
                model,
                read_only=read_only,
                offline=offline,
                half=half,
                runtime=runtime,
                precision=precision,
            ),
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
        runtime: Runtime | str | None = None,
        precision: Precision | str | None = None,
        reranker: Reranker | None = None,
    ) -> Engine:
        """Make a new, empty store for the vectors of an export, as `engine.transfer` opens it.

        The model is the one the header names; it is neither looked for nor loaded. Raises
        `InvalidInputError` for an export without vectors, `StoreExistsError`.
        """
        settings = exported.settings()
        if settings is None:
            raise InvalidInputError(f"{exported.path} has no vectors; make a store with a model")
        return cls(
            *opening.create_with(
                path,
                settings,
                offline=offline,
                half=half,
                runtime=runtime,
                precision=precision,
            ),
            reranker,
        )

    def get(self, ids: Sequence[str]) -> list[StoredDocument]:
        """The documents of the given ids, in that order.

        Raises `DocumentNotFoundError` naming those that do not exist.
        """
        self._check_open()
        wanted = text_list(ids, "ids")
        with self._store.counting() as view:
            found = view.documents(wanted)
        missing = [id_ for id_ in wanted if id_ not in found]
        if missing:
            raise DocumentNotFoundError(missing)
        return [found[id_] for id_ in wanted]

    def stats(self) -> Stats:
        """What the store holds; loads neither the model nor the index."""
        self._check_open()
        return replace(
            self._store.stats(),
            runtime=self._models.runtime,
            precision=self._models.precision.value,
            cosine=self._models.cosine,
        )

    def verify(self) -> VerifyReport:
        """Check the database and the index file against each other; changes nothing."""
        self._check_open()
        from engine import checks

        with self._store.reading() as view:
            state = view.state()
            problems = checks.problems(view, self._store.settings, self._store.path)
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


def explain_texts(
    a: str,
    b: str,
    *,
    model: str | Embedder = DEFAULT_MODEL,
    offline: bool = False,
    runtime: Runtime | str | None = None,
) -> Explanation:
    """`Engine.explain` without a store: by any model, compared by cosine."""
    from engine.explaining import explain
    from engine.models import ModelSource

    return explain(ModelSource(model, offline=offline, runtime=runtime).load(), Metric.COSINE, a, b)
