"""Frozen values that cross the rooms and the public surface. No behaviour beyond derived facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.errors import EngineError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from engine.arrays import Float32Array, Float64Array, IdArray


@dataclass(frozen=True, slots=True)
class Document:
    """One thing to be found.

    `id` names it for good (the same id again replaces it); without one, the id is derived from
    the text. `metadata` is any JSON object. `vector` (shape (d,), any float dtype) is used in
    place of an embedding of `text` when given; it may then have no text.
    """

    text: str = ""
    id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    vector: NDArray[Any] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer.

    `similarity` is the inner product of query and passage vectors (cosine: in [-1, 1]), None where
    none were compared (a lexical search); `lexical` the BM25 score of the best of the document's
    passages, 0 where it holds no word of the query; `score` is what the ranking used. `weight` is
    the hit's softmax weight among the hits of its result (they sum to 1), None where the result
    was not reranked: a relative weight, not a probability of relevance. `text` is the passage that
    matched: characters [`start`, `end`) of the document.
    """

    rank: int
    id: str
    score: float
    similarity: float | None
    text: str
    metadata: Mapping[str, Any]
    weight: float | None = None
    start: int = 0
    end: int = 0
    explanation: Explanation | None = None
    lexical: float = 0.0


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The hits of one query, best first; ties by insertion order.

    `query` is the text (None for a vector query). `temperature` is that of the softmax behind
    the hits' weights. `notes` say what the caller should know (a truncated query). `error` is
    set, and `hits` empty, where one query of several could not be answered. `context` (d,) is
    the weighted sum of the hits' vectors: what they together say to the query; None where the
    result was not reranked. `legs` are what had a part in the ranking: "dense", "lexical",
    "attention", "word" (words compared without context). `effective` is the effective number of
    answers: exp of the entropy of the weights of the first k hits, of which `mass` keeps the
    first: theirs then sum to less than 1. `seconds_by_stage` is the time of the call, of all its
    queries together.
    """

    query: str | None
    hits: tuple[Hit, ...]
    temperature: float | None = None
    context: Float64Array | None = field(default=None, compare=False, repr=False)
    notes: tuple[str, ...] = ()
    error: EngineError | None = None
    legs: tuple[str, ...] = ()
    effective: float | None = None
    seconds_by_stage: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a text: characters [`start`, `end`) of it."""

    text: str
    start: int
    end: int


class Words(NamedTuple):
    """The words of a text in order: `spans` (n, 2), the characters [start, end) of each, and
    `vectors` (n, D), float32, unit rows: each word as its context makes it."""

    spans: IdArray
    vectors: Float32Array


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which words of `a` find an answer in which words of `b`.

    `attention[i][j]` is the softmax weight of word j of `b` for word i of `a` (each row sums
    to 1); `match[i]` is how well `b` answers word i: the sum over j of attention times the
    cosine of the two word vectors; `weight[i]` is how much the word counts (they sum to 1), and
    `share[i]`, weight times match, its part of `attention_score`, to which the shares sum. Words
    without content (the, of) are left out where there are others. `heat[j]` is how much of all
    attention word j of `b` draws (sums to 1). `similarity` is the cosine, or inner product, of the
    two texts as wholes.

    Of a hit, `parts` are what its score is the sum of: "cosine", "attention", "word", "lexical";
    `b` is the text of its passage, and `words_b` are those of its whole document, at their places
    there.
    """

    a: str
    b: str
    similarity: float
    attention_score: float
    temperature: float
    words_a: tuple[Word, ...]
    words_b: tuple[Word, ...]
    attention: tuple[tuple[float, ...], ...]
    match: tuple[float, ...]
    share: tuple[float, ...]
    heat: tuple[float, ...]
    weight: tuple[float, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def heat_by_place(self) -> dict[tuple[int, int], float]:
        """The heat of each place [start, end), in order: a word that two passages share is in
        `words_b` once for each, and draws what both do."""
        found: dict[tuple[int, int], float] = {}
        for word, heat in zip(self.words_b, self.heat, strict=True):
            place = word.start, word.end
            found[place] = found.get(place, 0.0) + heat
        return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Why:
    """Why a document is, or is not, among the first `k` answers of a query.

    `rank` and `score` are those it was answered with, None where it was no candidate; `last_score`
    is that of the last of the first `k`. `dense_rank` and `lexical_rank` count from 1 among all
    documents the filter leaves, by `similarity` and by BM25 (`lexical`); None where that leg has
    no part or does not find it. `missing` are the query's words that it does not hold, `truncated`
    counts its passages of which the model saw only the beginning. `reasons` say it in sentences.
    """

    id: str
    query: str
    k: int
    rank: int | None
    score: float | None
    last_score: float | None
    dense_rank: int | None
    similarity: float | None
    lexical_rank: int | None
    lexical: float | None
    filtered: bool
    missing: tuple[str, ...]
    truncated: int
    reasons: tuple[str, ...] = ()


class SkipReason(Enum):
    """Why a row was not indexed."""

    BLANK = "blank text"
    DUPLICATE = "id given again in the same batch (the last one counts)"
    UNREADABLE = "unreadable row"
    INVALID = "invalid document"
    VECTOR = "unusable vector"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One row or file that was not indexed: where it was, and why in one sentence."""

    where: str
    reason: SkipReason
    detail: str

    def __str__(self) -> str:
        return f"{self.where}: {self.detail}"


class Passage(NamedTuple):
    """Characters [start, end) of a document and their vector (d,), as a store keeps it.

    `own` says that the caller brought the vector; `tokens` counts those of an embedded text.
    """

    start: int
    end: int
    tokens: int
    truncated: bool
    own: bool
    vector: Float32Array


class Exported(NamedTuple):
    """A document as a store holds it, to be written to a file. `written` is its metadata as JSON;
    `passages` are None where vectors are left out."""

    id: str
    text: str
    written: str
    source: str | None
    passages: tuple[Passage, ...] | None


class Incoming(NamedTuple):
    """A document on its way in: where it was met, and the source that owns it (None: nobody).

    `passages` are those of a document that was in a store before; it is not embedded again.
    """

    where: str
    document: Document
    source: str | None = None
    passages: tuple[Passage, ...] | None = None


@dataclass(frozen=True, slots=True)
class EndOfSource:
    """A source was read to its end: what it held before and not now goes.

    `complete` is False where some rows could not be read: then nothing goes.
    """

    source: str
    complete: bool = True


Item = Incoming | Refusal | EndOfSource | str
"""What flows into the write route; a str is a note for the report."""


@dataclass(frozen=True, slots=True)
class AddReport:
    """What an `add` did. Counts are documents unless named otherwise.

    `skipped` counts rows by reason and `refusals` keeps the first examples of each. `removed`
    are documents that a source no longer holds. `embedded` counts texts the model was given,
    `tokens` their word pieces, `chunked` documents split into several passages, `truncated`
    passages of which the model saw only the beginning. `seconds_by_stage` are those spent
    reading, embedding and writing; the stages overlap, so their sum may exceed `seconds`.
    """

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: Mapping[SkipReason, int] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    embedded: int = 0
    tokens: int = 0
    chunked: int = 0
    truncated: int = 0
    seconds: float = 0.0
    seconds_by_stage: Mapping[str, float] = field(default_factory=dict)

    @property
    def documents(self) -> int:
        """Documents of the input that are in the store now."""
        return self.added + self.replaced + self.unchanged

    @property
    def texts_per_second(self) -> float:
        """Texts the model was given, over all the seconds of the `add`."""
        return self.embedded / self.seconds if self.seconds else 0.0

    @property
    def failed(self) -> int:
        """Rows and files refused for a fault of theirs (blank rows and duplicates are not)."""
        harmless = (SkipReason.BLANK, SkipReason.DUPLICATE)
        return sum(n for reason, n in self.skipped.items() if reason not in harmless)


@dataclass(frozen=True, slots=True)
class Trial:
    """One way to search a store, measured by a sample of its own rows, held out.

    `factory` is FAISS's name of the index ("exact": every row is compared), `width` how far it
    looks (`efSearch` of a graph, `nprobe` of cells), `candidates` how many rows at least it
    proposes to be compared by their vectors. `recall` is the mean share of the ten nearest rows
    found, with its 95 % interval [`low`, `high`] over `sample` queries; `milliseconds` the median
    of one query's; `bytes` those of its files, `seconds` those it took to build.
    """

    factory: str
    width: int
    candidates: int
    recall: float
    low: float
    high: float
    sample: int
    milliseconds: float
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TuneReport:
    """The ways that were measured and that no other beat in both recall and time, fastest first,
    and the one chosen: measured again, by queries that had no part in the choice."""

    trials: tuple[Trial, ...]
    chosen: Trial
    target: float


@dataclass(frozen=True, slots=True)
class PruneReport:
    """The sources whose files are gone, and how many documents they held."""

    sources: tuple[str, ...]
    documents: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an `add` has come. `fraction` in [0, 1] is None where the total is unknown."""

    documents: int
    embedded: int
    seconds: float
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document as the store holds it."""

    id: str
    text: str
    metadata: Mapping[str, Any]
    source: str | None
    passages: int


@dataclass(frozen=True, slots=True)
class Stats:
    """What a store holds, read without loading the model or the index. Sizes in bytes.

    `pending` are the sources that an interrupted `index` left half read: index them again.
    `kind` is the kind of index wanted; `recall` is what was measured of the approximate index in
    use, with its 95 % interval (recall, low, high) over `recall_sample` queries, None where all
    answers are exact. `tokens` says whether word vectors are kept: `worded` passages have them, of
    `word_bytes`, and `wordless` embedded ones have not (`attendex tokens build` makes them).
    `runtime` is what runs the model now, or would ("onnxruntime on cpu"; "custom" for your own).
    `precision` is what the model computes in; for int8 `cosine` is that of its vectors to float32,
    on average and at least, as measured here (None where it has not yet run on this machine).
    """

    path: str
    model: str
    fingerprint: str
    dimension: int
    metric: str
    schema: str
    generation: int
    documents: int
    passages: int
    chunked: int
    truncated: int
    sources: int
    pending: tuple[str, ...]
    indexed: int
    delta: int
    dead: int
    database_bytes: int
    index_bytes: int
    kind: str
    factory: str | None
    recall_target: float
    recall: tuple[float, float, float] | None
    recall_sample: int
    tokens: bool
    worded: int
    wordless: int
    word_bytes: int
    runtime: str = ""
    precision: str = "float32"
    cosine: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found; `problems` is empty for a sound store."""

    documents: int
    passages: int
    problems: tuple[str, ...]
