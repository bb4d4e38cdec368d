"""Explanations on a terminal: tables of words, and texts shaded by their words' heat."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from engine.text.unicode import printable
from engine.types import Explanation, Hit

_SHOWN_WORDS = 3
_SHADES = ((0.66, "black on bright_yellow"), (0.33, "black on yellow"), (0.1, "bold yellow"))
"""From which share of the greatest heat a word is shown so."""


def words_table(explanation: Explanation) -> Table:
    """Word by word, with the three words most attended to, each summed over where it stands."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("word")
    for name in ("weight", "match", "share"):
        table.add_column(name, justify="right")
    table.add_column("attends to", overflow="fold")
    for n, word in enumerate(explanation.words_a):
        drawn: dict[str, float] = {}
        for weight, other in zip(explanation.attention[n], explanation.words_b, strict=True):
            drawn[other.text.lower()] = drawn.get(other.text.lower(), 0.0) + weight
        best = sorted(drawn.items(), key=lambda item: -item[1])[:_SHOWN_WORDS]
        seen = ", ".join(f"{text} {weight:.0%}" for text, weight in best)
        numbers = (explanation.weight[n], explanation.match[n], explanation.share[n])
        table.add_row(
            Text(printable(word.text)), *(f"{x:.3f}" for x in numbers), Text(printable(seen))
        )
    return table


def hit(found: Hit) -> RenderableType:
    """A hit's text, shaded, what its score is the sum of, and its words."""
    explanation = found.explanation
    if explanation is None:
        return Text(f"{found.rank}  {printable(found.id)}: no word vectors to explain it by", "dim")
    sums = " + ".join(f"{name} {part:.4f}" for name, part in explanation.parts.items())
    total = f"{found.score:.4f} = {sums}" if sums else f"{found.score:.4f}"
    title = Text(f"\n{found.rank}  {printable(found.id)}  ", style="bold")
    title.append(total, style="dim")
    score, part = explanation.attention_score, explanation.parts.get("attention")
    times = "" if part is None or not score else f", times {part / score:.2f} in the score"
    return Group(
        title,
        shaded(found.text, explanation, found.start),
        words_table(explanation),
        Text(f"the shares sum to the attention score, {score:.4f}{times}", style="dim"),
    )


def shaded(text: str, explanation: Explanation, offset: int = 0) -> Text:
    """A text that begins at character `offset` of the explained one, its words shaded by heat."""
    shown = Text(printable(text))
    places = explanation.heat_by_place
    hottest = max(places.values(), default=0.0)
    for (first, last), heat in places.items():
        start, end = first - offset, last - offset
        if start < 0 or end > len(text) or not hottest:
            continue
        style = next((style for share, style in _SHADES if heat >= share * hottest), None)
        if style is not None:
            shown.stylize(style, start, end)
    return shown
