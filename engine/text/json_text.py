"""JSON values of a text, fast, and as Python's own parser reads them."""

from __future__ import annotations

import json

import orjson

_PAST_64_BITS = float(1 << 63)


def parsed(text: str | bytes, rounded: str | None = None) -> object:
    """The value a text holds. Raises `ValueError`, `RecursionError`.

    In an object, the value of the key `rounded` may have whole numbers past 64 bits made floats.

    orjson is four times as fast and stricter (NaN, half a surrogate pair, nesting): what it
    refuses is left to the other; whole numbers past 64 bits, which it makes floats, too.
    """
    try:
        value = orjson.loads(text)
        checked: object = value
        if rounded is not None and isinstance(value, dict):
            checked = {key: part for key, part in value.items() if key != rounded}
        return json.loads(text) if _may_be_rounded(checked) else value
    except (ValueError, RecursionError):
        return json.loads(text)


def _may_be_rounded(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_may_be_rounded, value.values()))
    if isinstance(value, list):
        if value and isinstance(value[0], int | float):
            try:
                if min(value) > -_PAST_64_BITS and max(value) < _PAST_64_BITS:
                    return False
            except TypeError:  # no list of numbers alone
                pass
        return any(map(_may_be_rounded, value))
    return isinstance(value, float) and abs(value) >= _PAST_64_BITS
