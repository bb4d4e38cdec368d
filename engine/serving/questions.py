"""What can be asked of an open store, as values: the same question is answered by the same code,
here or in the helper, and crosses between them without losing a bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from engine.errors import DocumentNotFoundError, EngineError, FilterError, InvalidInputError
from engine.types import Explanation, Hit, SearchResult, Why, Word

if TYPE_CHECKING:
    from engine.core import Engine

Answer = TypeVar("Answer")
_PLAIN = {kind.__name__: kind for kind in (InvalidInputError, FilterError)}


@dataclass(frozen=True)
class Question(Generic[Answer]):
    """Something to be asked: `of` an engine, or, by its fields, of the helper."""

    name = ""

    def of(self, engine: Engine) -> Answer:
        """The answer. Raises `EngineError`s."""
        raise NotImplementedError

    @staticmethod
    def packed(answer: Any) -> Any:
        """The answer as JSON has it."""
        raise NotImplementedError

    @staticmethod
    def unpacked(value: Any) -> Answer:
        """The answer that was packed."""
        raise NotImplementedError


@dataclass(frozen=True)
class Search(Question[list[SearchResult]]):
    """`Engine.search_many`, or with `combined` `Engine.combine`, where `arithmetic` says that the
    text is a sum."""

    texts: tuple[str, ...]
    k: int
    where: str | None = None
    exact: bool = False
    mode: str | None = None
    rerank: bool | None = None
    passages: bool = False
    explain: bool = False
    mass: float | None = None
    context: str | None = None
    combined: bool = False
    like: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    arithmetic: bool = False
    name = "search"

    def of(self, engine: Engine) -> list[SearchResult]:
        if not self.combined:
            return engine.search_many(
                self.texts,
                k=self.k,
                where=self.where,
                mode=self.mode,
                rerank=self.rerank,
                passages=self.passages,
                exact=self.exact,
                explain=self.explain,
                mass=self.mass,
                context=self.context,
            )
        from engine.combining import Combination, parse

        if self.arithmetic:
            sought = parse(self.texts[0] if self.texts else "")
        else:
            sought = Combination(plus=tuple(text for text in self.texts if text))
        return [
            engine.combine(
                plus=sought.plus,
                minus=sought.minus,
                like=self.like,
                unlike=self.unlike,
                k=self.k,
                where=self.where,
                exact=self.exact,
            )
        ]

    @staticmethod
    def packed(answer: list[SearchResult]) -> Any:
        return [_result_out(result) for result in answer]

    @staticmethod
    def unpacked(value: Any) -> list[SearchResult]:
        return [_result_in(fields) for fields in value]


@dataclass(frozen=True)
class Explain(Question[tuple[Explanation, Explanation]]):
    """`Engine.explain` of two texts, there and back."""

    a: str
    b: str
    name = "explain"

    def of(self, engine: Engine) -> tuple[Explanation, Explanation]:
        return engine.explain(self.a, self.b), engine.explain(self.b, self.a)

    @staticmethod
    def packed(answer: tuple[Explanation, Explanation]) -> Any:
        return [asdict(one) for one in answer]

    @staticmethod
    def unpacked(value: Any) -> tuple[Explanation, Explanation]:
        there, back = (_explanation_in(fields) for fields in value)
        return there, back


@dataclass(frozen=True)
class Reasons(Question[Why]):
    """`Engine.why`."""

    id: str
    text: str
    k: int
    where: str | None = None
    mode: str | None = None
    name = "why"

    def of(self, engine: Engine) -> Why:
        return engine.why(self.id, self.text, k=self.k, where=self.where, mode=self.mode)

    @staticmethod
    def packed(answer: Why) -> Any:
        return asdict(answer)

    @staticmethod
    def unpacked(value: Any) -> Why:
        return Why(
            **{**value, "missing": tuple(value["missing"]), "reasons": tuple(value["reasons"])}
        )


QUESTIONS: Mapping[str, type[Question[Any]]] = {
    kind.name: kind for kind in (Search, Explain, Reasons)
}


def error_out(error: EngineError) -> dict[str, Any] | None:
    """An error about what was asked, which is the same wherever it is asked; None for others."""
    if isinstance(error, DocumentNotFoundError):
        return {"kind": "ids", "ids": list(error.ids)}
    kind = type(error).__name__
    return {"kind": kind, "message": str(error)} if _PLAIN.get(kind) is type(error) else None


def error_in(fields: Mapping[str, Any]) -> EngineError:
    """The error that `error_out` packed."""
    if fields["kind"] == "ids":
        return DocumentNotFoundError(fields["ids"])
    return _PLAIN[fields["kind"]](fields["message"])


def _result_out(result: SearchResult) -> dict[str, Any]:
    fields = {name: getattr(result, name) for name in SearchResult.__slots__ if name != "context"}
    fields["hits"] = [_hit_out(hit) for hit in result.hits]
    if result.error is not None:
        fields["error"] = error_out(result.error)
    return fields


def _result_in(fields: Mapping[str, Any]) -> SearchResult:
    error = fields["error"]
    tuples = {name: tuple(fields[name]) for name in ("notes", "legs")}
    hits = tuple(_hit_in(hit) for hit in fields["hits"])
    failed = None if error is None else error_in(error)
    return SearchResult(**{**fields, **tuples, "hits": hits, "error": failed})


def _hit_out(hit: Hit) -> dict[str, Any]:
    fields = {name: getattr(hit, name) for name in Hit.__slots__}
    if hit.explanation is not None:
        fields["explanation"] = asdict(hit.explanation)
    return fields


def _hit_in(fields: Mapping[str, Any]) -> Hit:
    explained = fields["explanation"]
    explanation = None if explained is None else _explanation_in(explained)
    return Hit(**{**fields, "explanation": explanation})


def _explanation_in(fields: Mapping[str, Any]) -> Explanation:
    words = {name: tuple(Word(**word) for word in fields[name]) for name in ("words_a", "words_b")}
    numbers = {name: tuple(fields[name]) for name in ("match", "share", "heat", "weight")}
    attention = tuple(tuple(row) for row in fields["attention"])
    return Explanation(**{**fields, **words, **numbers, "attention": attention})
