"""The part of `Engine` that writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.session import Session, path_list, text_list
from engine.settings import IndexKind
from engine.types import AddReport, Document, Item, Progress, PruneReport, TuneReport

if TYPE_CHECKING:
    from engine.text.readers import ReadOptions
    from engine.transfer import ExportFile


class Writing(Session):
    """Whatever changes the store; one writer at a time."""

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
        from engine.incoming import from_documents

        return self.ingest(from_documents(documents), on_progress=on_progress)

    def add_vectors(
        self,
        matrix: object,
        *,
        ids: Sequence[str],
        texts: Sequence[str] | None = None,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> AddReport:
        """Index ready vectors: row i of `matrix` (n, d), any real dtype, under `ids[i]`.

        `texts` are what is shown for them (nothing, where not given). The matrix may be
        memory-mapped: it is read batch by batch. Otherwise as `add`. Raises `DimensionError` for
        another width than the store's, `InvalidInputError` where the lists are not n long.
        """
        from engine import vectors as matrices
        from engine.incoming import from_matrix

        where = "the matrix"
        rows = matrices.as_table(matrix, where=where)
        matrices.check_width(rows, self._store.settings.dimension, where=where)
        return self.ingest(from_matrix(rows, ids, texts, metadata), on_progress=on_progress)

    def add_files(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        options: ReadOptions | None = None,
        glob: Sequence[str] = (),
        exclude: Sequence[str] = (),
        follow_links: bool = False,
        vectors: str | os.PathLike[str] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> AddReport:
        """Index files and directories, as `attendex index` does.

        A file indexed again replaces what it held before. In directories `glob` and `exclude`
        choose files by patterns written as in a .gitignore, and symbolic links that lead out are
        refused, unless `follow_links`. Files and rows that cannot be read are
        named in the report. `vectors` is a .npy file of ready vectors, in step with the rows of
        the one file given.
        """
        from engine.intake import Intake

        intake = Intake(
            path_list(paths, "paths"),
            options,
            base=self._store.path.parent,
            glob=text_list(glob, "glob"),
            exclude=text_list(exclude, "exclude"),
            follow_links=follow_links,
            vectors=None if vectors is None else os.fspath(vectors),
        )
        intake.check_width(self._store.settings.dimension)
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
        return self._ingest(items, on_progress, fraction)

    def _ingest(
        self,
        items: Iterable[Item],
        on_progress: Callable[[Progress], None] | None,
        fraction: Callable[[], float | None] = lambda: None,
        is_finished: Callable[[str], bool] | None = None,
    ) -> AddReport:
        from engine import upkeep
        from engine.ingest import Ingest

        self._check_writable()
        with self._store.lock.held():
            self._store.reload()
            keeper = self._open_index()
            work = Ingest(
                self._store,
                self._models.load,
                lambda: keeper.publish_if_due(upkeep.WHILE_WRITING),
                is_finished,
            )
            report = work.run(items, on_progress=on_progress, fraction=fraction)
            keeper.publish_if_due(upkeep.WHEN_DONE)
            return report

    def import_file(
        self,
        exported: str | os.PathLike[str] | ExportFile,
        *,
        format: str | None = None,
        vectors: bool = True,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> AddReport:
        """Take in what `export_file` wrote: documents, sources, passages and vectors as they were.

        The vectors must be of the store's own model (`ModelMismatchError`) and metric; with
        `vectors` False, or where there are none, the texts are embedded. Documents whose id
        exists are replaced. Raises `InvalidInputError` for a file that is no export.
        """
        from engine.transfer import ExportFile

        if not isinstance(exported, ExportFile):
            with ExportFile(exported, format) as opened:
                return self.import_file(opened, vectors=vectors, on_progress=on_progress)
        items = exported.items(self._store.settings, vectors=vectors)
        return self._ingest(items, on_progress, is_finished=exported.is_finished)

    def prune(
        self, roots: Sequence[str | os.PathLike[str]], *, dry_run: bool = False
    ) -> PruneReport:
        """Remove the documents of files that are gone from the given files and directories.

        With `dry_run` nothing is removed and the report says what would be. Sources elsewhere
        are left alone.
        """
        from engine.pruning import prune

        self._check_writable()
        with self._store.lock.held():
            return prune(self._store, path_list(roots, "roots"), dry_run=dry_run)

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents; ids that do not exist are ignored. Returns how many were deleted."""
        self._check_writable()
        with self._store.lock.held():
            return self._store.delete(text_list(ids, "ids"))

    def rebuild(self) -> None:
        """Make the index file and the lexical index anew from the database's passages."""
        self._check_writable()
        with self._store.lock.held():
            self._store.rebuild_lexical()
            self._open_index().publish()

    def build_tokens(self, *, on_progress: Callable[[Progress], None] | None = None) -> int:
        """Give word vectors to the passages that have none; returns how many got them.

        Goes on where an interrupted call ended; from then on new passages get theirs. Raises
        `ModelError` where the model gives none.
        """
        from engine.tokens import build

        self._check_writable()
        with self._store.lock.held():
            return build(self._store, self._models.load(), on_progress)

    def drop_tokens(self) -> int:
        """Forget all word vectors and keep none from now on; returns of how many passages."""
        from engine.tokens import drop

        self._check_writable()
        with self._store.lock.held():
            return drop(self._store)

    def tune(
        self,
        *,
        kind: IndexKind | str = IndexKind.AUTO,
        recall: float | None = None,
        memory: int | None = None,
        factory: str | None = None,
    ) -> TuneReport:
        """Measure the kinds of index on the store's own rows, and use the best from now on.

        `auto` builds a graph (HNSW) and cells (IVF) and takes the fastest of them and the exact
        way whose recall@10 is at least `recall` (None: the store's own target, at first 0.98),
        with 95 % certainty on queries that had no part in the choice, and whose file is of at
        most `memory` bytes; `flat` goes back to exact answers. With `factory`, a string as
        `faiss.index_factory` reads it, that index alone is measured. Builds an index of all rows,
        which takes memory and, for a million, minutes. Raises `InvalidInputError`, also for a
        string of which FAISS makes nothing, or not of so few rows: then all stays as it was.
        """
        from engine.tuned import tune

        self._check_writable()
        with self._store.lock.held():
            return tune(
                self._store,
                self._open_index(),
                kind=kind,
                recall=recall,
                memory=memory,
                factory=factory,
            )

    def compact(self) -> int:
        """Drop what was deleted from the index and give the disk its room back: bytes freed.

        Searches go on meanwhile. Writes the index and the database anew, so needs as much room
        again while it works; raises `StorageError` where there is none, and nothing is lost.
        """
        self._check_writable()
        with self._store.lock.held():
            before = self._store.stats()
            self._open_index().publish()
            self._store.compact()
            after = self._store.stats()
        freed = before.database_bytes + before.index_bytes
        return max(0, freed - after.database_bytes - after.index_bytes)
