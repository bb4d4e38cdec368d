"""Queries and relevance judgements, as BEIR and TREC write them.

Every fault is named by file and line, and nothing is taken from a file that has one: half of the
judgements would give wrong measures that look right.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from engine.errors import InvalidInputError
from engine.text.json_text import parsed

Queries = Mapping[str, str]
"""Query id -> text."""
Qrels = Mapping[str, Mapping[str, int]]
"""Query id -> document id -> judgement: above 0 is relevant, and the more the better."""

HIGHEST = 1000
"""The judgement of greatest size: trec_eval keeps a table as long as the highest."""

Path = str | os.PathLike[str]
_BEIR, _TREC = 3, 4


def read_queries(path: Path) -> dict[str, str]:
    """Queries by id, in the order of the file: BEIR's JSON lines, or lines of id, tab, text.

    A line of JSON is an object with `_id` (a text or a whole number) and `text`. Raises
    `InvalidInputError` for a file or line that cannot be read and for an id given twice.
    """
    found: dict[str, str] = {}
    as_json: bool | None = None
    for where, line in _lines(path):
        if as_json is None:
            as_json = line.lstrip().startswith("{")
        id_, text = _json_query(where, line) if as_json else _tab_query(where, line)
        if id_ in found:
            raise InvalidInputError(f"{where}: the query '{id_}' was given before")
        found[id_] = text
    if not found:
        raise InvalidInputError(f"{_name(path)} holds no query")
    return found


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Judgements: query id -> document id -> a whole number.

    BEIR's lines are query id, document id and judgement between tabs, with or without a header;
    TREC's are query id, an unused field, document id and judgement between blanks. Raises
    `InvalidInputError` for a file or line that cannot be read, and where a document is judged
    twice and not alike.
    """
    found: dict[str, dict[str, int]] = {}
    width = 0
    for where, line in _lines(path):
        if not width:
            width = _BEIR if len(line.split("\t")) == _BEIR else _TREC
            if width == _BEIR and _whole(line.split("\t")[-1]) is None:
                continue
        query, document, judgement = _judgement(where, line, width)
        judged = found.setdefault(query, {})
        if judged.setdefault(document, judgement) != judgement:
            raise InvalidInputError(
                f"{where}: document '{document}' of query '{query}' was judged "
                f"{judged[document]} before and is {judgement} here"
            )
    if not found:
        raise InvalidInputError(f"{_name(path)} holds no judgement")
    return found


def _json_query(where: str, line: str) -> tuple[str, str]:
    try:
        value = parsed(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{where}: is no JSON ({error})") from None
    if not isinstance(value, dict):
        raise InvalidInputError(f"{where}: is no JSON object with '_id' and 'text'")
    id_, text = value.get("_id"), value.get("text")
    if isinstance(id_, bool) or not isinstance(id_, str | int) or id_ == "":
        raise InvalidInputError(f"{where}: has no '_id' that is a text or a whole number")
    if not isinstance(text, str):
        raise InvalidInputError(f"{where}: has no 'text'")
    return str(id_), text


def _tab_query(where: str, line: str) -> tuple[str, str]:
    id_, tab, text = line.partition("\t")
    if not tab or not id_.strip():
        raise InvalidInputError(f"{where}: is neither JSON nor a query's id, a tab and its text")
    return id_.strip(), text.strip()


def _judgement(where: str, line: str, width: int) -> tuple[str, str, int]:
    parts = [part.strip() for part in line.split("\t")] if width == _BEIR else line.split()
    if len(parts) != width or not all(parts):
        expected = (
            "query id, document id and judgement between tabs"
            if width == _BEIR
            else "query id, 0, document id and judgement between blanks (TREC), nor the three "
            "columns between tabs of BEIR"
        )
        raise InvalidInputError(f"{where}: is not {expected}")
    judgement = _whole(parts[-1])
    if judgement is None or abs(judgement) > HIGHEST:
        raise InvalidInputError(
            f"{where}: the judgement '{parts[-1]}' is no whole number up to {HIGHEST}"
        )
    return parts[0], parts[-2], judgement


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """The place and the text of every line that is not blank."""
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                where = f"{_name(path)}:{number}"
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise InvalidInputError(f"{where}: is not UTF-8 ({error.reason})") from None
                if line.strip():
                    yield where, line.rstrip("\r\n")
    except OSError as error:
        raise InvalidInputError(
            f"{_name(path)} cannot be read ({error.strerror or error})"
        ) from None


def _name(path: Path) -> str:
    return os.fspath(path)
