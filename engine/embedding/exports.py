"""Where a model's export for onnxruntime lies, and whether it can be trusted.

One directory a fingerprint: the graph, the tokenizer, the table of input embeddings, and
`export.json`, which names their checksums and what else the runtime must know. The directory
appears whole or not at all. Where an export was tried and refused, it holds the reason instead.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine import __version__, files

NAME = "onnxruntime on cpu"
"""What runs an export, for a person."""
MODEL = "model.onnx"
TOKENIZER = "tokenizer.json"
TABLE = "table.npy"
"""The input embedding of each piece (pieces, w) in float16, of models that have such a table."""
_RECORD = "export.json"
_FORMAT = 3
_GPU = Path("/dev/nvidiactl")
_ABANDONED_SECONDS = 3600.0
_SENTENCE = "The bank of the river was muddy, and nobody had been there since 1999. "
TEXTS = (
    "a",
    "bank",
    "!",
    "She paid the money into the bank.",
    "crème brûlée, naïve café — façade",
    "水曜日に銀行でお金を預けました。",
    "Привет, как дела? שלום עולם مرحبا بالعالم",
    "👩‍👩‍👧 emoji 🎉 and\ttabs\nand lines",
    "unbelievably-hyphenated, e.g. POL-358 (don't)",
    _SENTENCE,
    _SENTENCE * 6,
    _SENTENCE * 60,
)
"""What an export is checked with: all lengths, several scripts."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model does not depend on its runtime.

    `window` counts all tokens of a pass (None: no limit), `max_tokens` a text's own. `closing` is
    how many special tokens end every text; `word_dimension` None for a model without token states.
    """

    dimension: int
    word_dimension: int | None
    window: int | None
    max_tokens: int | None
    query_prompt: str
    document_prompt: str
    closing: int
    pads_left: bool
    pad_id: int = 0
    pad_token: str = "[PAD]"


@dataclass(frozen=True, slots=True)
class Export:
    """An export that can be run: its directory, and how far a component of its vectors was from
    the model's. `cosine` is that of its vectors and the model's, on average and at least, where
    it is a copy in int8."""

    directory: Path
    shape: Shape
    difference: float
    cosine: tuple[float, float] | None = None


def is_installed() -> bool:
    """onnxruntime is there."""
    return find_spec("onnxruntime") is not None


def is_runnable() -> bool:
    """onnxruntime is installed, and there is no GPU that would be quicker."""
    return is_installed() and not _GPU.exists()


def is_makeable() -> bool:
    """An export can be made here."""
    return is_runnable() and find_spec("onnx") is not None


def can_quantise() -> bool:
    """A copy in int8 can be made here, and run: on the CPU, GPU or not."""
    return is_installed() and find_spec("onnx") is not None


def cache() -> Path:
    """What can be made again: ATTENDEX_CACHE, or under XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("ATTENDEX_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(own) if own else Path(base, "attendex")


def home(fingerprint: str) -> Path:
    """The directory of a model's export."""
    return cache() / "onnx" / fingerprint


def can_keep() -> bool:
    """An export would have a place to lie in."""
    parent = home("any").parent
    with suppress(OSError):
        parent.mkdir(parents=True, exist_ok=True)
    return os.access(parent, os.W_OK)


def find(fingerprint: str) -> Export | None:
    """The export of a model, its files checked; None where there is none that can be trusted.

    A file that is as it was written (`files.stamp_of`) is not read; any other is summed up.
    """
    directory = home(fingerprint)
    try:
        record = json.loads((directory / _RECORD).read_text(encoding="utf-8"))
        if record["format"] != _FORMAT or not set(record["files"]) >= {MODEL, TOKENIZER}:
            return None
        for name, (stamp, checksum) in record["files"].items():
            path = directory / name
            if files.stamp_of(path) != tuple(stamp) and files.sha256_file(path) != checksum:
                return None
        cosine = record.get("cosine")
        return Export(
            directory,
            Shape(**record["shape"]),
            float(record["difference"]),
            None if cosine is None else (float(cosine[0]), float(cosine[1])),
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None


def refusal(fingerprint: str) -> str | None:
    """Why this version could make no export of a model; None where it was not tried."""
    try:
        record = json.loads((home(fingerprint) / _RECORD).read_text(encoding="utf-8"))
        return str(record["refused"]) if record.get("version") == __version__ else None
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def publish(fingerprint: str, write: Callable[[Path], Export | str]) -> Export | str:
    """Let `write` fill a directory, and keep it: as an export, or as the reason it gives.

    Where another process has made one meanwhile, that is the export. Raises `OSError` where it
    cannot be kept.
    """
    target = home(fingerprint)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target.parent)
    work = Path(tempfile.mkdtemp(prefix=f".{fingerprint[:12]}.", dir=target.parent))
    try:
        made = write(work)
        record: dict[str, Any]
        if isinstance(made, str):
            for path in work.iterdir():
                path.unlink()
            record = {"refused": made, "version": __version__}
        else:
            sums = {
                path.name: (files.stamp_of(path), files.sha256_file(path))
                for path in work.iterdir()
            }
            record = {
                "format": _FORMAT,
                "shape": asdict(made.shape),
                "difference": made.difference,
                "cosine": made.cosine,
                "files": sums,
            }
        if (other := find(fingerprint)) is not None:
            return other
        (work / _RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
        _replace(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return made if isinstance(made, str) else replace(made, directory=target)


def _replace(source: Path, target: Path) -> None:
    """Give a directory its name; what was there, and is no export, goes."""
    with suppress(OSError):
        source.rename(target)
        return
    shutil.rmtree(target, ignore_errors=True)
    source.rename(target)


def _remove_abandoned(parent: Path) -> None:
    """What killed processes left half made."""
    for path in parent.glob(".*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
