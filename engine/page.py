"""Explanations as one HTML page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from engine.types import Explanation, SearchResult

_STYLE = """
body { font: 16px/1.6 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff }
h2 { font-size: 1.05rem; margin: 2rem 0 .3rem } small, th { color: #777; font-weight: normal }
p.text { white-space: pre-wrap; overflow-wrap: anywhere } p.text span { border-radius: .2rem }
table { border-collapse: collapse; font-size: .85rem } td, th { padding: .1rem .5rem;
  text-align: right } td:first-child, th:first-child { text-align: left }
"""


def of_results(results: Sequence[SearchResult]) -> str:
    """A page of answers, each hit's text shaded by how much of the attention its words draw."""
    parts = []
    for result in results:
        parts.append(f"<h1>{escape(result.query or '')}</h1>")
        for hit in result.hits:
            weight = "" if hit.weight is None else f", weight {hit.weight:.0%}"
            head = f"{hit.rank}. {escape(hit.id)} <small>score {hit.score:.4f}{weight}</small>"
            parts.append(f"<h2>{head}</h2>")
            if hit.explanation is None:
                parts.append(f'<p class="text">{escape(hit.text)}</p>')
            else:
                parts += [_text(hit.text, hit.explanation, hit.start), _table(hit.explanation)]
    title = next((result.query for result in results if result.query), "attendex")
    return _page(title, parts)


def of_texts(there: Explanation, back: Explanation) -> str:
    """A page of two texts, each shaded by the attention of the other."""
    parts = []
    for one in (there, back):
        parts += [f"<h2>{escape(one.a)} &rarr;</h2>", _text(one.b, one, 0), _table(one)]
    return _page(there.a, parts)


def _page(title: str, parts: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _text(text: str, explanation: Explanation, offset: int) -> str:
    """The text with a span for each word that lies in it; spans never overlap."""
    places = explanation.heat_by_place
    hottest = max(places.values(), default=0.0) or 1.0
    shown, at = [], 0
    for (first, last), heat in places.items():
        start, end = first - offset, last - offset
        if start < at or end > len(text):
            continue
        shade = f"background:rgba(255,170,0,{heat / hottest:.2f})"
        shown.append(escape(text[at:start]))
        shown.append(
            f'<span style="{shade}" title="heat {heat:.3f}">{escape(text[start:end])}</span>'
        )
        at = end
    return f'<p class="text">{"".join(shown)}{escape(text[at:])}</p>'


def _table(one: Explanation) -> str:
    rows = "".join(
        f"<tr><td>{escape(word.text)}</td><td>{weight:.3f}</td><td>{match:.3f}</td>"
        f"<td>{share:.3f}</td></tr>"
        for word, weight, match, share in zip(
            one.words_a, one.weight, one.match, one.share, strict=True
        )
    )
    sums = " + ".join(f"{escape(name)} {part:.4f}" for name, part in one.parts.items())
    foot = sums or f"similarity {one.similarity:.4f}"
    return (
        "<table><tr><th>word</th><th>weight</th><th>match</th><th>share</th></tr>"
        f"{rows}</table><p><small>attention {one.attention_score:.4f}; {foot}</small></p>"
    )
