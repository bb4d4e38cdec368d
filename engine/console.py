"""What a person, or a pipe, sees: tables on a terminal, JSON lines elsewhere.

Values go to standard output; progress and notes go to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from engine import notes
from engine.text.unicode import printable
from engine.types import (
    AddReport,
    Explanation,
    Hit,
    SearchResult,
    Stats,
    StoredDocument,
    TuneReport,
    Why,
)

if TYPE_CHECKING:
    from engine.evaluation import Evaluation


class Console:
    """Prints values as tables or JSON lines. `as_json` None decides by what stdout is."""

    def __init__(self, as_json: bool | None = None) -> None:
        self.as_json = not sys.stdout.isatty() if as_json is None else as_json

    def result(self, result: SearchResult, *, titled: bool = False) -> None:
        """The hits of one query; `titled` shows the query above its table."""
        if self.as_json:
            for line in json_lines(result):
                print(line)
            return
        from rich.table import Table
        from rich.text import Text

        if titled:
            _print(Text(f"\n{printable(result.query or '')}", style="bold"))
        if not result.hits:
            notes.note("no document matches")
            return
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("#", "score", "weight"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("id", overflow="fold")
        table.add_column("text", overflow="fold", ratio=1)
        for hit in result.hits:
            weight = "" if hit.weight is None else f"{hit.weight:.0%}"
            text = Text(_shortened(hit.text))
            table.add_row(str(hit.rank), f"{hit.score:.4f}", weight, Text(printable(hit.id)), text)
        _print(table)
        if result.effective is not None:
            ranked = (
                f"ranked by {', '.join(result.legs)}; effectively {result.effective:.1f} answers"
            )
            _print(Text(ranked, style="dim"))
        if any(hit.explanation for hit in result.hits):
            from engine import explained

            for hit in result.hits:
                _print(explained.hit(hit))

    def explanation(self, there: Explanation, back: Explanation) -> None:
        """Two texts, word by word, in both directions."""
        if self.as_json:
            self._line({**asdict(there), "back": asdict(back)})
            return
        from engine import explained

        _print(explained.words_table(there))
        print(
            f"attention score {there.attention_score:.4f}, similarity {there.similarity:.4f}\n\n"
            "and back:"
        )
        _print(explained.words_table(back))
        print(f"attention score {back.attention_score:.4f}")

    def why(self, found: Why) -> None:
        """The reasons, a line each."""
        if self.as_json:
            self._line(asdict(found))
        else:
            print(printable("\n".join(found.reasons)))

    def documents(self, documents: Sequence[StoredDocument]) -> None:
        for document in documents:
            if self.as_json:
                self._line(asdict(document))
            else:
                self._record(
                    {
                        "id": document.id,
                        "source": document.source or "-",
                        "metadata": _json(document.metadata),
                        "text": document.text,
                    }
                )

    def stats(self, stats: Stats) -> None:
        if self.as_json:
            self._line(asdict(stats))
            return
        index = f"{stats.indexed:,} passages in the file"
        kind = stats.kind if stats.factory is None else f"{stats.kind} {stats.factory}"
        answers = f"exact (kind {kind})"
        if stats.recall is not None:
            recall, low, high = stats.recall
            answers = (
                f"approximate: recall@10 {recall:.4f} ({low:.4f} to {high:.4f}, "
                f"{stats.recall_sample:,} queries; target {stats.recall_target:g}; kind {kind})"
            )
        self._record(
            {
                "store": stats.path,
                "documents": f"{stats.documents:,}",
                "passages": f"{stats.passages:,} ({_count(stats.chunked, 'document')} in several, "
                f"{stats.truncated:,} passages truncated)",
                "sources": f"{stats.sources:,}",
                "pending": "\n".join(stats.pending) or "nothing",
                "model": f"{stats.model} ({stats.dimension} dimensions, by {stats.runtime})",
                "precision": _precision_line(stats),
                "fingerprint": stats.fingerprint,
                "metric": stats.metric,
                "index": f"{index}, {stats.delta:,} newer, {stats.dead:,} deleted since",
                "answers": answers,
                "word vectors": _words_line(stats),
                "database": _bytes(stats.database_bytes),
                "index file": _bytes(stats.index_bytes),
                "schema": f"{stats.schema}, generation {stats.generation}",
            }
        )

    def tuning(self, report: TuneReport) -> None:
        """The ways measured, the chosen one marked."""
        if self.as_json:
            self._line({**asdict(report), "chosen": asdict(report.chosen)})
            return
        table = _table("index", "width", "candidates", "recall@10", "95 %", "one query", "size")
        for one in (*report.trials, report.chosen):
            measured = one.sample > 0
            table.add_row(
                f"-> {one.factory}" if one is report.chosen else one.factory,
                str(one.width or ""),
                str(one.candidates or ""),
                f"{one.recall:.4f}",
                f"{one.low:.4f} to {one.high:.4f}" if measured else "",
                f"{one.milliseconds:.2f} ms" if measured else "",
                _bytes(one.bytes) if measured else "",
            )
        _print(table)
        if not report.chosen.sample:
            print("nothing was measured: the store is too small, or exact answers were asked for")
        print(f"target {report.target:g}; in use from now on: {report.chosen.factory}")

    def evaluation(self, report: Evaluation) -> None:
        """The means of each stage, then how the stages differ."""
        if self.as_json:
            from engine.evaluation import summary

            self._line(summary(report))
            return
        names = list(report.stages[0].measures)
        scores = _table("stage", *names, "a query")
        for stage in report.stages:
            values = [f"{stage.measures[name]:.4f}" for name in names]
            scores.add_row(stage.name, *values, f"{1000 * stage.seconds / report.judged:.1f} ms")
        _print(scores)
        if report.comparisons:
            measure = report.comparisons[0].measure
            print(f"\n{report.judged:,} judged queries; the stages' {measure}, paired by query:")
            differences = _table("stage", "difference", "95 %", "p")
            for one in report.comparisons:
                differences.add_row(
                    f"{one.stage} less {one.against}",
                    f"{one.difference:+.4f}",
                    f"{one.low:+.4f} to {one.high:+.4f}",
                    f"{one.p:.4f}",
                )
            _print(differences)

    def judged_queries(self, report: Evaluation) -> None:
        """The measures of each judged query; in a table the first one, stage by stage."""
        found = {stage.name: stage.per_query for stage in report.stages}
        ids = list(report.stages[0].per_query)
        if self.as_json:
            for id_ in ids:
                stages = {name: values[id_] for name, values in found.items()}
                self._line({"query": id_, "stages": stages})
            return
        from rich.text import Text

        measure = next(iter(report.stages[0].measures))
        table = _table("query", *(f"{name}, {measure}" for name in found))
        for id_ in ids:
            values = [f"{of[id_][measure]:.4f}" for of in found.values()]
            table.add_row(Text(printable(id_)), *values)
        _print(table)

    def report(self, report: AddReport, store: str) -> None:
        rate = report.documents / report.seconds if report.seconds else 0.0
        if self.as_json:
            fields = asdict(report)
            fields["skipped"] = {r.name.lower(): n for r, n in report.skipped.items()}
            fields["refusals"] = [
                {"where": r.where, "reason": r.reason.name.lower(), "detail": r.detail}
                for r in report.refusals
            ]
            rates = {
                "documents_per_second": round(rate, 1),
                "texts_per_second": round(report.texts_per_second, 1),
            }
            self._line({"store": store, **fields, **rates})
            return
        counted = (
            ("added", report.added),
            ("replaced", report.replaced),
            ("unchanged", report.unchanged),
            ("removed", report.removed),
            ("split into passages", report.chunked),
            ("truncated", report.truncated),
        )
        parts = ", ".join(f"{n:,} {name}" for name, n in counted if n)
        line = f"{_count(report.documents, 'document')} in {report.seconds:.1f} s ({rate:,.0f}/s)"
        print(f"{line}: {parts or 'nothing to do'}")
        embedded = _count(report.embedded, "text")
        stages = ", ".join(f"{name} {n:.1f} s" for name, n in report.seconds_by_stage.items())
        print(f"{embedded} embedded ({_count(report.tokens, 'token')}); {stages} -> {store}")

    def finding(self, name: str, value: str, fault: str | None) -> None:
        """One fact about the installation, and what is wrong with it."""
        if self.as_json:
            self._line({"name": name, "value": value, "fault": fault})
        else:
            wrong = "" if fault is None else f"\n{'':26}! {fault}"
            print(printable(f"{name:<24}  {value}{wrong}"))

    def values(self, values: Mapping[str, Any]) -> None:
        """A few named facts."""
        if self.as_json:
            self._line(values)
        else:
            print(", ".join(f"{name} {value}" for name, value in values.items()))

    def _line(self, fields: Mapping[str, Any]) -> None:
        print(_json(fields))

    def _record(self, fields: Mapping[str, str]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in fields.items():
            table.add_row(name, Text(printable(value)))
        _print(table)


def json_lines(result: SearchResult) -> Iterator[str]:
    """The hits of one query, a line each."""
    for hit in result.hits:
        yield _json({"query": result.query, **_hit_fields(hit), "legs": result.legs})


def _hit_fields(hit: Hit) -> dict[str, Any]:
    return {
        "rank": hit.rank,
        "id": hit.id,
        "score": hit.score,
        "similarity": hit.similarity,
        "weight": hit.weight,
        "text": hit.text,
        "start": hit.start,
        "end": hit.end,
        "metadata": dict(hit.metadata),
        "lexical": hit.lexical,
    } | ({} if hit.explanation is None else {"explanation": asdict(hit.explanation)})


def timings(results: Sequence[SearchResult]) -> None:
    """Milliseconds by stage, on standard error; the queries of one call share them."""
    spent = next((one.seconds_by_stage for one in results if one.error is None), {})
    stages = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in spent.items())
    notes.note(f"{stages} ({_count(len(results), 'query').replace('querys', 'queries')})")


def _precision_line(stats: Stats) -> str:
    if stats.cosine is None:
        return stats.precision
    mean, least = stats.cosine
    return f"{stats.precision} (cosine to float32 {mean:.4f} on average, {least:.4f} at least)"


def _words_line(stats: Stats) -> str:
    if not stats.tokens:
        return "not kept"
    held = f"{stats.worded:,} passages ({_bytes(stats.word_bytes)})"
    return f"{held}, {stats.wordless:,} have none" if stats.wordless else held


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _table(first: str, *others: str) -> Any:
    """A table of a column of names and columns of numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right")
    return table


def _print(renderable: Any) -> None:
    from rich.console import Console as RichConsole

    RichConsole(highlight=False, soft_wrap=False).print(renderable)


def _shortened(text: str, limit: int = 300) -> str:
    flat = " ".join(printable(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
