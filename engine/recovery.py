"""A damaged store's readable documents, put into a new store.

Nothing is taken on trust: a text is that of its hash, a vector of the store's width and length, or
it is left out; so what is recovered is what was stored. A document whose text is whole and whose
vectors are not is embedded again.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from engine import opening, vectors
from engine.embedding.base import Embedder
from engine.errors import CorruptionError, InvalidInputError, ModelError, StoreExistsError
from engine.ingest import Ingest
from engine.models import ModelSource
from engine.settings import IndexKind, Metric, Runtime
from engine.storage.records import StoreSettings
from engine.storage.salvage import FoundDocument, FoundPassage, Salvage
from engine.storage.store import as_path, new_store_id, store_exists
from engine.text import unicode
from engine.types import Document, Incoming, Passage, Progress
from engine.upkeep import IndexKeeper

_UNIT_TOLERANCE = 1e-4
_NAMED = 20


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What was saved. `documents` are in the new store, `embedded` of them with vectors made anew.

    `expected` is how many there were by the damaged store's own counter (None: not readable), and
    `lost` how many of those are not in the new one. `partial` counts documents that are there
    without all that belonged to them: `notes` names the first of them and says what is missing.
    `wordless` passages have lost their word vectors (`Engine.build_tokens`).
    """

    documents: int
    passages: int
    embedded: int
    expected: int | None
    lost: int | None
    partial: int
    notes: tuple[str, ...]
    wordless: int


@dataclass
class _Losses:
    """What is missing, by kind: the ids of the documents concerned."""

    ids: dict[str, list[str]] = field(default_factory=dict)

    def note(self, kind: str, id_: str) -> None:
        self.ids.setdefault(kind, []).append(id_)

    def notes(self) -> Iterator[str]:
        for kind, ids in self.ids.items():
            more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
            yield f"{len(ids)} documents {kind}: {', '.join(ids[:_NAMED])}{more}"


def recover(
    damaged: str | os.PathLike[str],
    new: str | os.PathLike[str],
    *,
    model: str | Embedder | None = None,
    offline: bool = False,
    runtime: Runtime | str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> RecoveryReport:
    """Make a store at `new` of all that can be read of the one at `damaged`, which stays as it is.

    Vectors come along; word vectors do not (`tokens build` makes them anew). `model` is needed
    where the settings cannot be read; it embeds again what lost its vectors. Needs room for a copy
    of the database beside `new` meanwhile. Raises `StoreNotFoundError`, `StoreExistsError`,
    `CorruptionError` where nothing can be read, `ModelMismatchError`.
    """
    source, target = as_path(damaged), as_path(new)
    if target.is_relative_to(source):
        raise InvalidInputError(f"{target} lies in the damaged store; name a directory elsewhere")
    if store_exists(target):
        raise StoreExistsError(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".recover-", dir=target.parent) as folder:
        salvage = Salvage(source, Path(folder))
        settings = _settings(salvage, model, offline=offline, runtime=runtime)
        if model is not None:  # before anything is made
            ModelSource(model, offline=offline, expected=settings).identify()
        opening.create_with(
            target, settings, offline=offline, half=False, runtime=runtime, precision=None
        )[0].close()
        store, models = opening.open_store(
            target,
            model,
            read_only=False,
            offline=offline,
            half=False,
            runtime=runtime,
            precision=None,
        )
        losses = _Losses()
        try:
            with store.lock.held():
                documents = embedded = 0
                for whole in (True, False):
                    work = Ingest(store, models.load, lambda: None, salvage.finished.__contains__)
                    try:
                        report = work.run(
                            _items(salvage, settings, losses, whole), on_progress=on_progress
                        )
                    except ModelError as error:
                        if whole:
                            raise
                        losses.note(f"could not be embedded again ({error})", "all of these")
                        continue
                    documents += report.documents
                    embedded += 0 if whole else report.documents
                    for refusal in report.refusals:
                        losses.note(f"were refused ({refusal.detail})", refusal.where)
                IndexKeeper(store).publish()
            stats = store.stats()
        finally:
            store.close()
    expected = None if salvage.counted is None else salvage.counted[0]
    lost = None if expected is None else max(0, expected - stats.documents)
    partial = len({id_ for kind, ids in losses.ids.items() if kind in _PARTIAL for id_ in ids})
    return RecoveryReport(
        stats.documents,
        stats.passages,
        embedded,
        expected,
        lost,
        partial,
        tuple(losses.notes()),
        stats.wordless,
    )


_NO_METADATA = "lost their metadata and source"
_NO_KEY = "lost their id and have a new one"
_IN_PART = "lost a part of their text"
_GONE = "cannot be put together and are left out"
_PARTIAL = {_NO_METADATA, _NO_KEY, _IN_PART}


def _settings(
    salvage: Salvage, model: str | Embedder | None, *, offline: bool, runtime: Runtime | str | None
) -> StoreSettings:
    """The damaged store's settings under a new name; made of the model where they are lost."""
    try:
        kept = StoreSettings.of(salvage.settings)
    except (KeyError, TypeError, ValueError):
        if model is None:
            raise CorruptionError(
                "the settings of the damaged store cannot be read; name the model that embedded "
                "it (--model)"
            ) from None
        models = ModelSource(model, offline=offline, runtime=runtime)
        embedder = models.load()
        kept = StoreSettings(
            model=models.identify(),
            custom=models.is_custom,
            fingerprint=embedder.fingerprint,
            dimension=int(embedder.dimension),
            metric=_metric(salvage, int(embedder.dimension)),
            kind=IndexKind.AUTO,
            store_id="",
        )
    return replace(kept, store_id=new_store_id())


def _metric(salvage: Salvage, dimension: int) -> Metric:
    """Cosine stores hold unit vectors."""
    for document in salvage.documents():
        for part in document.passages:
            if len(part.vector) == 4 * dimension:
                length = float(vectors.row_norms(vectors.from_blobs([part.vector], dimension))[0])
                return Metric.COSINE if abs(length - 1) < _UNIT_TOLERANCE else Metric.IP
    return Metric.COSINE


def _items(
    salvage: Salvage, settings: StoreSettings, losses: _Losses, whole: bool
) -> Iterator[Incoming]:
    """The documents whose vectors are all there, or those that are to be embedded again."""
    for document in salvage.documents():
        text, passages, in_part = _mended(document, settings)
        key = f"recovered-{document.id}" if document.key is None else document.key
        if text is None:
            if whole:
                losses.note(_GONE, key)
            continue
        if (passages is not None) is not whole:
            continue
        metadata = _metadata(document.metadata)
        if in_part:
            losses.note(_IN_PART, key)
        if document.key is None:
            losses.note(_NO_KEY, key)
        if metadata is None:
            losses.note(_NO_METADATA, key)
        made = Document(text, key, metadata or {})
        yield Incoming(f"document {key}", made, document.source, passages)


def _mended(
    document: FoundDocument, settings: StoreSettings
) -> tuple[str | None, tuple[Passage, ...] | None, bool]:
    """The text (None: not to be had), the passages (None: to be embedded again), and whether a
    part of the text is missing."""
    own = [part.vector for part in document.passages if part.content_hash is None]
    sound = [part for part in document.passages if _is_sound(part)]
    joined = _joined(document.passages)
    for text in (document.text, joined):
        if text is not None and unicode.digest(text.encode(), *own) == document.content_hash:
            made = _passages(text, sound, settings)
            if made is None and own:
                return None, None, False
            return text, made, False
    if own or not sound:
        return None, None, False
    text = _joined(sound)
    if document.lost and text is not None and _covers(text, sound):
        return text, _passages(text, sound, settings), len(sound) != len(document.passages)
    return "\n".join(part.text for part in sound), None, True


def _is_sound(part: FoundPassage) -> bool:
    """Its text is the one that was embedded; one of a caller's own vector says nothing of it."""
    if part.content_hash is None:
        return True
    return unicode.digest(unicode.composed(part.text).encode()) == part.content_hash


def _has_vector(part: FoundPassage, settings: StoreSettings) -> bool:
    if len(part.vector) != 4 * settings.dimension:
        return False
    row = vectors.from_blobs([part.vector], settings.dimension)
    with np.errstate(all="ignore"):
        length = float(vectors.row_norms(row)[0])
    if settings.metric is Metric.COSINE:
        return abs(length - 1) < _UNIT_TOLERANCE
    return bool(np.isfinite(length))


def _joined(parts: list[FoundPassage]) -> str | None:
    """The text that overlapping passages were cut from; None where they leave a gap."""
    text = ""
    for part in sorted(parts, key=lambda part: (part.start, part.end)):
        if part.start > len(text) or part.end - part.start != len(part.text):
            return None
        if part.end > len(text):
            text = text[: part.start] + part.text
    return text if parts else None


def _covers(text: str, parts: list[FoundPassage]) -> bool:
    """No passage is missing between the first and the last: all but white space is in one."""
    reached = 0
    for part in sorted(parts, key=lambda part: part.start):
        if text[reached : part.start].strip():
            return False
        reached = max(reached, part.end)
    return not text[reached:].strip()


def _passages(
    text: str, parts: list[FoundPassage], settings: StoreSettings
) -> tuple[Passage, ...] | None:
    """The passages of a text with their vectors; None where one of them is missing."""
    fit = all(text[part.start : part.end] == part.text for part in parts)
    if not parts or not fit or not _covers(text, parts):
        return None
    if not all(_has_vector(part, settings) for part in parts):
        return None
    return tuple(
        Passage(
            part.start,
            part.end,
            part.tokens,
            bool(part.truncated),
            part.content_hash is None,
            vectors.from_blobs([part.vector], settings.dimension)[0],
        )
        for part in parts
    )


def _metadata(written: str | None) -> dict[str, Any] | None:
    try:
        found = json.loads(written) if written is not None else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
