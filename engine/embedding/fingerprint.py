"""A model's identity: a hash of all that shapes a vector, and of nothing else.

Tensors are hashed by name, type, shape and bytes, settings by meaning, so that a renamed, moved
or re-saved copy of a model is the same model. Computed from the files, without torch.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.files import sha256_file

_ARCHITECTURE = (
    "model_type",
    "hidden_act",
    "num_attention_heads",
    "num_hidden_layers",
    "layer_norm_eps",
    "layer_norm_epsilon",
)
_DEFAULT_MODULES = [{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "1_Pooling"}]


def fingerprint(directory: Path) -> str:
    """The identity of the sentence-transformers model in `directory`: 64 hex digits.

    Raises `ModelError` where its files cannot be read.
    """
    try:
        modules = _read_json(directory / "modules.json") or _DEFAULT_MODULES
        described = [
            _describe(str(module["type"]).rsplit(".", 1)[-1], directory / module.get("path", ""))
            for module in modules
        ]
        settings = _read_json(directory / "config_sentence_transformers.json") or {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"the model in {directory} cannot be read: {error}") from error
    prompts = {name: text for name, text in (settings.get("prompts") or {}).items() if text}
    identity = {
        "modules": described,
        "prompts": prompts,
        "default_prompt": settings.get("default_prompt_name") if prompts else None,
    }
    return hashlib.sha256(_canonical(identity)).hexdigest()


def _describe(kind: str, folder: Path) -> dict[str, Any]:
    if kind == "Normalize":
        return {"kind": kind}
    if kind == "Pooling":
        config = _read_json(folder / "config.json") or {}
        prompt = config.get("include_prompt", True)
        return {"kind": kind, "modes": _pooling_modes(config), "include_prompt": prompt}
    described = {"kind": kind, "weights": _weights(folder)}
    config = _read_json(folder / "config.json") or {}
    if kind != "Transformer":
        return described | {"config": {k: v for k, v in config.items() if k != "__version__"}}
    own = _read_json(folder / "sentence_bert_config.json") or {}
    tokenizer = _read_json(folder / "tokenizer_config.json") or {}
    limit = own.get("max_seq_length") or tokenizer.get("model_max_length")
    return described | {
        "architecture": {key: config[key] for key in _ARCHITECTURE if key in config},
        "max_seq_length": limit,
        "lower_case": bool(own.get("do_lower_case")),
        "tokenizer": _tokenizer(folder),
    }


def _pooling_modes(config: dict[str, Any]) -> list[str]:
    """The active modes, by the names of either way in which they have been written."""
    if "pooling_mode" in config:
        modes = config["pooling_mode"]
        return sorted([modes] if isinstance(modes, str) else modes)
    old = {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens": "weightedmean",
        "pooling_mode_lasttoken": "lasttoken",
    }
    return sorted(name for key, name in old.items() if config.get(key)) or ["mean"]


def _tokenizer(folder: Path) -> str:
    """A hash of the vocabulary and of how text is brought to it, or of the vocabulary files."""
    data = _read_json(folder / "tokenizer.json")
    model = data.get("model", {}) if data else {}
    if "vocab" in model:
        steps = [data.get(step) for step in ("normalizer", "pre_tokenizer")]
        parts = [model["vocab"], model.get("merges"), *steps]
        return hashlib.sha256(_canonical(parts)).hexdigest()
    names = ("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model")
    return _hash_files(folder / name for name in names)


def _weights(folder: Path) -> str:
    tensors = sorted(folder.glob("*.safetensors"))
    if tensors:
        return _hash_tensors(tensors)
    return _hash_files(sorted(folder.glob("pytorch_model*.bin")))


def _hash_files(paths: Iterable[Path]) -> str:
    state = hashlib.sha256()
    for path in paths:
        if path.is_file():
            state.update(sha256_file(path).encode())
    return state.hexdigest()


def _hash_tensors(paths: list[Path]) -> str:
    """Tensors of safetensors files (8-byte header length, JSON header, bytes), in name order.

    The library has no way to read raw bytes of every type without torch; the format is published
    at huggingface.co/docs/safetensors.
    """
    places: dict[str, tuple[Path, dict[str, Any], int]] = {}
    for path in paths:
        with path.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            if length > path.stat().st_size:
                raise ValueError(f"{path.name} is damaged")
            header = json.loads(handle.read(length))
        for name, entry in header.items():
            if name != "__metadata__" and not name.endswith("position_ids"):
                places[name] = (path, entry, 8 + length)
    state = hashlib.sha256()
    maps: dict[Path, memoryview] = {}
    for name, (path, entry, base) in sorted(places.items()):
        if path not in maps:
            with path.open("rb") as handle:
                maps[path] = memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
        start, end = (base + offset for offset in entry["data_offsets"])
        if end > len(maps[path]):
            raise ValueError(f"{path.name} is cut short")
        state.update(_canonical([name, entry["dtype"], entry["shape"]]))
        state.update(maps[path][start:end])
    return state.hexdigest()


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
