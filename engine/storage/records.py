"""The value types between the store and the routes above it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import PurePath
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from engine.settings import RECALL, IndexKind, Metric
from engine.types import Trial

if TYPE_CHECKING:
    from engine.arrays import Float32Array, IdArray
    from engine.words import Packed


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Fixed when the store is made (the model's name may follow a moved copy).

    `custom` says that the model is the program's own embedder, which no name finds. `kind`,
    `recall`, `memory` (bytes, for an approximate index) and `factory` (FAISS's string, for that
    kind) are what `tune` was last told.
    `tokens` says whether the vectors of a text's words are kept, `symmetric` that the model makes
    the same vector of a text whether it is a query or a document.
    """

    model: str
    custom: bool
    fingerprint: str
    dimension: int
    metric: Metric
    kind: IndexKind
    store_id: str
    recall: float = RECALL
    memory: int | None = None
    factory: str | None = None
    tokens: bool = True
    symmetric: bool = False

    def values(self) -> dict[str, Any]:
        """Names and values, as a store keeps them."""
        return asdict(self) | {"metric": self.metric.value, "kind": self.kind.value}

    @classmethod
    def from_json(cls, rows: Iterable[tuple[str, Any]]) -> StoreSettings:
        """Names and JSON values as the database gives them back, numbers as numbers.

        Raises as `of`.
        """
        values: dict[str, Any] = {
            name: json.loads(written) if isinstance(written, str) else written
            for name, written in rows
        }
        return cls.of(values)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The settings that the rows hold; `KeyError`, `TypeError` or `ValueError` where they
        are not such as this program, or an older one, has written."""
        made = cls(
            **{**values, "metric": Metric(values["metric"]), "kind": IndexKind(values["kind"])}
        )
        for field in fields(cls):
            kinds = _KINDS.get(field.name, ())
            if kinds and type(getattr(made, field.name)) not in kinds:
                raise TypeError(f"{field.name} is {getattr(made, field.name)!r}")
        if made.dimension < 1 or not 0 < made.recall <= 1:
            raise ValueError(f"dimension {made.dimension}, recall {made.recall}")
        return made


_KINDS: Mapping[str, tuple[type, ...]] = {
    "model": (str,),
    "custom": (bool,),
    "fingerprint": (str,),
    "dimension": (int,),
    "store_id": (str,),
    "recall": (int, float),
    "memory": (int, NoneType),
    "factory": (str, NoneType),
    "tokens": (bool,),
    "symmetric": (bool,),
}


@dataclass(frozen=True, slots=True)
class CacheFile:
    """A file beside the database. `stamp` is what the file system says of it (`files.stamp_of`)
    once it is whole: as long as it says the same, nobody has written to it since."""

    file: str
    sha256: str
    stamp: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Approximate:
    """An approximate index: its file, the ids of its rows, how it is searched and what was
    measured when it was made, for a target; and of how many rows it was made (None: of all)."""

    index: CacheFile
    ids: CacheFile
    trial: Trial
    target: float
    measured: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Settings of which no approximate index was good enough, and of how many rows."""

    kind: str
    target: float
    memory: int | None
    rows: int
    factory: str | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """The index that holds the passages of `generation`: its rows, `longest` being the greatest
    length of one, and their int8 copy with its bounds, where it has one."""

    rows: CacheFile
    generation: int
    passages: int
    longest: float
    copy: CacheFile | None = None
    bounds: tuple[float, float, float] | None = None
    approximate: Approximate | None = None
    refused: Refused | None = None

    @classmethod
    @lru_cache(maxsize=8)
    def from_json(cls, text: str) -> Published | None:
        """What `asdict` made; None for a record of any other form, as another version may have
        written it: the index is then published anew. Every search reads it: the last few are kept.
        """
        try:
            values = json.loads(text)
            copy, bounds = values["copy"], values["bounds"]
            if (copy is None) != (bounds is None):
                return None
            first, second, third = bounds or (0.0, 0.0, 0.0)
            return cls(
                rows=_cache_file(values["rows"]),
                generation=int(values["generation"]),
                passages=int(values["passages"]),
                longest=float(values["longest"]),
                copy=None if copy is None else _cache_file(copy),
                bounds=None if copy is None else (float(first), float(second), float(third)),
                approximate=_approximate(values.get("approximate")),
                refused=None if values.get("refused") is None else Refused(**values["refused"]),
            )
        except (KeyError, TypeError, ValueError, RecursionError):
            return None

    @property
    def files(self) -> list[CacheFile]:
        """All of them."""
        found = [self.rows] if self.copy is None else [self.rows, self.copy]
        more = self.approximate
        return found if more is None else [*found, more.index, more.ids]


def _approximate(values: Mapping[str, Any] | None) -> Approximate | None:
    if values is None:
        return None
    try:
        return Approximate(
            index=_cache_file(values["index"]),
            ids=_cache_file(values["ids"]),
            trial=Trial(**values["trial"]),
            target=float(values["target"]),
            measured=None if values.get("measured") is None else int(values["measured"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _cache_file(values: Mapping[str, Any]) -> CacheFile:
    name, checksum, stamp = (values[key] for key in ("file", "sha256", "stamp"))
    if not isinstance(name, str) or PurePath(name).name != name:
        raise ValueError(name)
    return CacheFile(name, checksum, tuple(stamp))


@dataclass(frozen=True, slots=True)
class State:
    """The counters of one committed generation; `worded` passages have word vectors."""

    number: int
    documents: int
    passages: int
    published: Published | None
    worded: int = 0
    word_bytes: int = 0


class NewPassage(NamedTuple):
    """Characters [start, end) of a document. `content_hash` is None for a caller's own vector;
    `blob` is the vector as `vectors.to_blob` writes it, `words` those of its words, if any."""

    start: int
    end: int
    text: str
    token_count: int
    content_hash: bytes | None
    blob: bytes
    truncated: bool = False
    words: Packed | None = None


class NewDocument(NamedTuple):
    """A document ready to be stored. `passages` is None where only the metadata changed;
    `written` is the metadata as JSON."""

    key: str
    content_hash: bytes
    text: str
    metadata: Mapping[str, Any]
    written: str
    source: str | None
    passages: tuple[NewPassage, ...] | None


class KnownDocument(NamedTuple):
    """What the write route asks about an id that exists: enough to tell what changed."""

    row_id: int
    content_hash: bytes
    written: str
    source: str | None


class PassageRow(NamedTuple):
    """A candidate passage with its document; `written` is the document's metadata as JSON."""

    id: int
    document_id: int
    key: str
    text: str
    start: int
    end: int
    written: str


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened to the passages after some generation: appended rows and deleted ids."""

    ids: IdArray
    vectors: Float32Array
    dead: IdArray
