"""Sources whose files are gone, and the documents they left behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.storage.store import Store
from engine.types import PruneReport


def prune(store: Store, roots: Sequence[str], *, dry_run: bool) -> PruneReport:
    """Forget the vanished files at or below `roots`, in one transaction."""
    with store.reading() as view:
        known = {
            uri for root in roots for uri in view.sources_under(Path(root).resolve().as_posix())
        }
        gone = sorted(uri for uri in known if not Path(uri).exists())
        documents = sum(view.count_documents_of(uri) for uri in gone)
    if gone and not dry_run:
        with store.writing() as writer:
            for uri in gone:
                writer.forget_source(uri)
    return PruneReport(tuple(gone), documents)
