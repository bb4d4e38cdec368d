"""The write route: rows -> documents -> passages -> vectors -> one commit a batch.

Each batch is one transaction. What is committed stays, whatever happens to the next batch, and
the same input again embeds nothing that the store holds.
"""

from __future__ import annotations

import gc
import sys
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from engine import vectors
from engine.admission import Admitted, admit
from engine.arrays import Float32Array, IdArray
from engine.embedding.base import Embedder
from engine.embedding.words import embed
from engine.storage.records import KnownDocument, NewDocument, NewPassage
from engine.storage.store import Store
from engine.text import chunking, unicode
from engine.types import AddReport, EndOfSource, Incoming, Item, Progress, Refusal, SkipReason
from engine.words import Packed

BATCH = 1024
CHARACTERS = 1 << 20
"""A batch is at most this many rows, or about this many characters of text."""
ROW_COST = 4
"""How many rows with their own vector count as one to embed."""
EXAMPLES = 5
STAGES = ("reading", "embedding", "writing")
UNKNOWN_ROW = 0
_OVERLAP_SHARE = 8


class Embedded(NamedTuple):
    """The vector (d,) of a text, and those of its words, where they are kept."""

    vector: Float32Array
    words: Packed | None


@dataclass
class _Tally:
    """The report in the making."""

    counts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[SkipReason] = field(default_factory=Counter)
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def refuse(self, refusal: Refusal) -> None:
        self.skipped[refusal.reason] += 1
        if self.skipped[refusal.reason] <= EXAMPLES:
            self.refusals.append(refusal)

    def report(self, seconds: float) -> AddReport:
        return AddReport(
            **self.counts,
            skipped=dict(self.skipped),
            refusals=tuple(self.refusals),
            notes=tuple(self.notes),
            seconds=seconds,
            seconds_by_stage={stage: self.seconds[stage] for stage in STAGES},
        )


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A batch that is paid for: what to store, what was there, and the sources that ended."""

    checked: list[NewDocument]
    known: dict[str, KnownDocument]
    ready: list[NewDocument]
    vectors: dict[bytes, Embedded | str]
    ends: list[EndOfSource]


class Ingest:
    """One `add`: feed it items with `run`. `after_commit` is called when a batch is in;
    `is_finished` is as for `Writer.add`.

    A batch is committed by a thread of its own while the next is embedded. The next one looks
    things up while the commit runs, so it is also shown the batch in flight; one that may remove
    documents (its sources end) is waited for.
    """

    def __init__(
        self,
        store: Store,
        embedder: Callable[[], Embedder],
        after_commit: Callable[[], None] = lambda: None,
        is_finished: Callable[[str], bool] | None = None,
    ) -> None:
        self._store = store
        self._load = embedder
        self._after_commit = after_commit
        self._is_finished = is_finished
        self._tally = _Tally()
        self._kept_rows: defaultdict[str, array[int]] = defaultdict(lambda: array("q"))
        self._faulty: set[str] = set()
        self._in_flight: _Prepared | None = None
        self._last_rows: dict[str, int] = {}
        self._started = time.perf_counter()

    def run(
        self,
        items: Iterable[Item],
        *,
        on_progress: Callable[[Progress], None] | None = None,
        fraction: Callable[[], float | None] = lambda: None,
    ) -> AddReport:
        """Take everything in, batch by batch; returns the report.

        Raises what makes going on pointless: `ModelError`, `StorageError`. What was committed
        before stays, and what was embedded before is committed.
        """
        commit: Future[None] | None = None
        done = Progress(0, 0, 0.0)
        with ThreadPoolExecutor(1, "attendex-commit") as committer:
            for batch in self._batches(items):
                if commit is not None and self._in_flight is not None and self._in_flight.ends:
                    commit.result()
                with nullcontext() if any(map(_is_to_embed, batch)) else _uncollected():
                    prepared = self._prepare(batch)
                if commit is not None:
                    commit.result()
                    _tell(on_progress, done)
                done = self._progress(fraction())
                self._in_flight = prepared
                commit = committer.submit(self._commit, prepared)
            if commit is not None:
                commit.result()
                _tell(on_progress, done)
        return self._tally.report(time.perf_counter() - self._started)

    def _batches(self, items: Iterable[Item]) -> Iterator[list[Item]]:
        """Up to BATCH rows to embed, ROW_COST times as many others, or CHARACTERS of text."""
        batch: list[Item] = []
        rows = characters = 0
        waiting = time.perf_counter()
        for item in items:
            batch.append(item)
            rows += 1
            if isinstance(item, Incoming):
                characters += _length(item)
                rows += ROW_COST - 1 if _is_to_embed(item) else 0
            if rows >= BATCH * ROW_COST or characters >= CHARACTERS:
                self._tally.seconds["reading"] += time.perf_counter() - waiting
                yield batch
                batch, rows, characters = [], 0, 0
                waiting = time.perf_counter()
        self._tally.seconds["reading"] += time.perf_counter() - waiting
        if batch:
            yield batch

    def _progress(self, fraction: float | None) -> Progress:
        counts = self._tally.counts
        return Progress(
            documents=counts["added"] + counts["replaced"] + counts["unchanged"],
            embedded=counts["embedded"],
            seconds=time.perf_counter() - self._started,
            fraction=fraction,
        )

    def _prepare(self, batch: Sequence[Item]) -> _Prepared:
        """Check, look up and embed: all that needs no write."""
        for item in batch:
            if isinstance(item, Refusal):
                self._tally.refuse(item)
            elif isinstance(item, str):
                self._tally.notes.append(item)
        rows = [item for item in batch if isinstance(item, Incoming)]
        checked = self._last_of_each_key(self._check(rows))
        with self._store.reading() as view:
            known = view.known([one.new.key for one in checked])
        known |= self._known_in_flight(checked)
        fresh = [one for one in checked if _content_changed(one.new, known.get(one.new.key))]
        passages, found = self._passages(fresh)
        ready: list[NewDocument] = []
        for _, document in checked:
            before = known.get(document.key)
            content = _content_changed(document, before)
            parts = passages.get(document.key)
            if content and parts is None:
                continue
            if content or before is None or _label_changed(document, before):
                changed = document.passages is not parts
                ready.append(document._replace(passages=parts) if changed else document)
            self._tally.counts[_verdict(document, before, content)] += 1
        ends = [item for item in batch if isinstance(item, EndOfSource)]
        return _Prepared([one.new for one in checked], known, ready, found, ends)

    def _known_in_flight(self, checked: Sequence[Admitted]) -> dict[str, KnownDocument]:
        """Documents that the batch in flight is about to store; its thread knows their rows."""
        if self._in_flight is None or self._in_flight.ends:
            return {}
        keys = {one.new.key for one in checked}
        return {
            new.key: KnownDocument(UNKNOWN_ROW, new.content_hash, new.written, new.source)
            for new in self._in_flight.ready
            if new.key in keys
        }

    def _commit(self, batch: _Prepared) -> None:
        """Store a batch, in one transaction; runs after the batch before it has finished."""
        started = time.perf_counter()
        rows = {
            key: self._last_rows[key] if before.row_id == UNKNOWN_ROW else before.row_id
            for key, before in batch.known.items()
        }
        removed = 0
        with self._store.writing() if batch.ready or batch.ends else nullcontext() as writer:
            if writer is not None and batch.ready:
                rows |= writer.add(batch.ready, self._is_finished)
            for document in batch.checked:
                if document.source is not None and document.key in rows:
                    self._kept_rows[document.source].append(rows[document.key])
            if writer is not None:
                for end in batch.ends:
                    removed += writer.finish_source(end.source, self._rows_to_keep(end))
        self._tally.counts["removed"] += removed
        self._last_rows = rows
        self._after_commit()
        self._tally.seconds["writing"] += time.perf_counter() - started

    def _check(self, batch: Sequence[Incoming]) -> Iterator[Admitted]:
        """The documents that may be stored; the others are refused with their reason."""
        settings = self._store.settings
        verdicts = admit(batch, settings.dimension, settings.metric)
        for incoming, verdict in zip(batch, verdicts, strict=True):
            if isinstance(verdict, Refusal):
                self._refuse(verdict, incoming.source)
            else:
                yield verdict

    def _refuse(self, refusal: Refusal, source: str | None) -> None:
        self._tally.refuse(refusal)
        if source is not None and refusal.reason is not SkipReason.BLANK:
            self._faulty.add(source)

    def _last_of_each_key(self, documents: Iterable[Admitted]) -> list[Admitted]:
        latest: dict[str, Admitted] = {}
        for one in documents:
            key = one.new.key
            if key in latest:
                earlier = latest.pop(key)
                detail = f"id {key!r} is given again at {one.where}, which counts"
                self._tally.refuse(Refusal(earlier.where, SkipReason.DUPLICATE, detail))
            latest[key] = one
        return list(latest.values())

    def _passages(
        self, documents: Sequence[Admitted]
    ) -> tuple[dict[str, tuple[NewPassage, ...]], dict[bytes, Embedded | str]]:
        """Cut and embed; a document any of whose vectors is unusable is refused and left out.

        Returns the passages by key, and what every text's hash was embedded to.
        """
        made = {d.key: d.passages for _, d in documents if d.passages is not None}
        places = {d.key: where for where, d in documents if d.passages is None}
        rest = [d for _, d in documents if d.passages is None]
        if not rest:
            return made, {}
        embedder = self._load()
        spans = {d.key: parts for d, parts in zip(rest, _cut(embedder, rest), strict=True)}
        texts = {
            d.key: [unicode.composed(d.text[start:end]) for start, end in spans[d.key]]
            for d in rest
        }
        flat = list(dict.fromkeys(text for parts in texts.values() for text in parts))
        hashes = {text: unicode.digest(text.encode()) for text in flat}
        counts = dict(zip(flat, embedder.count_tokens(flat), strict=True))
        limit = sys.maxsize if embedder.max_tokens is None else embedder.max_tokens
        found = self._vectors(embedder, hashes)
        for document in rest:
            parts = texts[document.key]
            faults = [fault for text in parts if isinstance(fault := found[hashes[text]], str)]
            if faults:
                refusal = Refusal(
                    places[document.key], SkipReason.VECTOR, f"its vector {faults[0]}"
                )
                self._refuse(refusal, document.source)
                continue
            self._tally.counts["tokens"] += sum(counts[text] for text in parts)
            self._tally.counts["chunked"] += len(parts) > 1
            self._tally.counts["truncated"] += sum(counts[text] > limit for text in parts)
            made[document.key] = tuple(
                NewPassage(
                    start=start,
                    end=end,
                    text=document.text[start:end],
                    token_count=counts[text],
                    content_hash=hashes[text],
                    blob=vectors.to_blob(embedded.vector),
                    truncated=counts[text] > limit,
                    words=embedded.words,
                )
                for (start, end), text in zip(spans[document.key], parts, strict=True)
                if not isinstance(embedded := found[hashes[text]], str)
            )
        return made, found

    def _vectors(self, embedder: Embedder, hashes: dict[str, bytes]) -> dict[bytes, Embedded | str]:
        """A vector for each text, or why it has none; texts the store knows are not embedded."""
        settings = self._store.settings
        with self._store.reading() as view:
            found: dict[bytes, Embedded | str] = {
                key: Embedded(*one) for key, one in view.embedded(hashes.values()).items()
            }
            directions = view.directions()
        if self._in_flight is not None:
            shared = self._in_flight.vectors.keys() & hashes.values()
            found |= {key: self._in_flight.vectors[key] for key in shared}
        missing = [text for text, key in hashes.items() if key not in found]
        if not missing:
            return found
        started = time.perf_counter()
        raw, words = embed(embedder, missing, directions, words=settings.tokens)
        self._tally.seconds["embedding"] += time.perf_counter() - started
        self._tally.counts["embedded"] += len(missing)
        matrix = vectors.from_model(raw, len(missing), settings.dimension, embedder.name)
        unusable = vectors.prepare_usable(matrix, settings.metric)
        for number, text in enumerate(missing):
            made = Embedded(matrix[number], words[number])
            found[hashes[text]] = unusable.get(number, made)
        return found

    def _rows_to_keep(self, end: EndOfSource) -> IdArray | None:
        """The rows a source still holds; None where not all of it could be read."""
        kept = self._kept_rows[end.source]
        if not end.complete or end.source in self._faulty:
            return None
        return np.frombuffer(kept, dtype=np.int64)


def _tell(on_progress: Callable[[Progress], None] | None, now: Progress) -> None:
    if on_progress is not None:
        on_progress(now)


def _is_to_embed(item: Item) -> bool:
    if not isinstance(item, Incoming) or item.passages is not None:
        return False
    return getattr(item.document, "vector", None) is None


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of cycles: a batch of ready rows makes a hundred thousand values and
    no cycle, and each collection would walk through all that the program holds."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _length(item: Incoming) -> int:
    text = getattr(item.document, "text", None)
    return len(text) if isinstance(text, str) else 0


def _content_changed(document: NewDocument, before: KnownDocument | None) -> bool:
    return before is None or before.content_hash != document.content_hash


def _label_changed(document: NewDocument, before: KnownDocument) -> bool:
    """Metadata or the owning source differ (1, 1.0 and true are three values)."""
    return before.written != document.written or before.source != document.source


def _verdict(document: NewDocument, before: KnownDocument | None, content: bool) -> str:
    if before is None:
        return "added"
    return "unchanged" if not content and before.written == document.written else "replaced"


def _cut(embedder: Embedder, documents: Sequence[NewDocument]) -> list[list[tuple[int, int]]]:
    """The passages of each document, as character spans."""
    size = embedder.max_tokens
    if size is None:
        return [[(0, len(d.text))] for d in documents]
    counts = embedder.count_tokens([d.text for d in documents])
    return [
        [(0, len(d.text))]
        if count <= size
        else chunking.windows(d.text, embedder.token_spans(d.text), size, size // _OVERLAP_SHARE)
        for d, count in zip(documents, counts, strict=True)
    ]
