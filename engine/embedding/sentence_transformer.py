"""The sentence-transformers adapter: any model it can load, on a GPU where there is one."""

from __future__ import annotations

import logging
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers.utils import logging as transformers_logging

from engine.arrays import Float32Array, IdArray
from engine.embedding.exports import Shape
from engine.embedding.locate import LocatedModel
from engine.embedding.tokenized import TokenizedEmbedder, closing_tokens
from engine.errors import ModelError
from engine.files import Mutex

TOKENS_A_BATCH = 1024
"""Tokens, padding included, that go through the model at once: more is no faster on a CPU."""
TOKENS_A_BATCH_GPU = 1 << 16
GPU = "cuda"
_ROUTING = ("Asym", "Router")
"""Modules that treat queries and documents each in their own way."""
_STATES = "token_embeddings"

log = logging.getLogger("attendex")


class SentenceTransformerEmbedder(TokenizedEmbedder):
    """Any sentence-transformers model, loaded from a local directory.

    With `half`, a model on a GPU runs in 16 bit: about twice as fast, and vectors differ from
    those in 32 bit by some 1e-3 of their length. On a CPU it stays in 32 bit, and says so.
    With `on_cpu` it stays off the GPU.
    """

    def __init__(
        self,
        located: LocatedModel,
        fingerprint: str,
        *,
        half: bool = False,
        on_cpu: bool = False,
    ) -> None:
        self.model = _load(located.path, "cpu" if on_cpu else None)
        on_gpu = self.model.device.type == GPU
        if half and on_gpu:
            self.model.half()
        elif half:
            log.warning("half precision is for a GPU, and there is none: embedding in 32 bit")
        tokenizer = _counting_tokenizer(self.model, located.name)
        budget = TOKENS_A_BATCH_GPU if on_gpu else TOKENS_A_BATCH
        shape = _shape(self.model, tokenizer)
        super().__init__(located.name, fingerprint, tokenizer, shape, budget)
        self.symmetric &= not any(type(module).__name__ in _ROUTING for module in self.model)

    @property
    def runtime(self) -> str:
        """See `TokenizedEmbedder`."""
        return f"sentence-transformers on {self.model.device.type}"

    def _pooled(self, texts: list[str], *, query: bool) -> list[Float32Array]:
        encode = self.model.encode_query if query else self.model.encode_document
        found = encode(texts, batch_size=len(texts), show_progress_bar=False, convert_to_numpy=True)
        return list(np.asarray(found, dtype=np.float32))

    @cached_property
    def table(self) -> NDArray[np.float16] | None:
        """The input embedding of each piece (pieces, w); None where the model has no table."""
        first: Any = self.model[0]
        try:
            table = first.auto_model.get_input_embeddings()
        except (AttributeError, NotImplementedError):
            return None
        if not isinstance(table, torch.nn.Embedding):
            return None
        return table.weight.detach().half().cpu().numpy()

    def _table(self, ids: IdArray) -> Float32Array | None:
        return None if self.table is None else self.table[ids].astype(np.float32)

    def _states(self, texts: list[str], *, query: bool) -> list[tuple[Float32Array, Float32Array]]:
        encode = self.model.encode_query if query else self.model.encode_document
        found: Any = encode(
            texts,
            batch_size=len(texts),
            show_progress_bar=False,
            output_value=None,
            convert_to_numpy=False,
        )
        pooled, states = (
            torch.stack([one[name] for one in found]).float().cpu().numpy()
            for name in ("sentence_embedding", _STATES)
        )
        return list(zip(pooled, states, strict=True))


def _shape(model: SentenceTransformer, tokenizer: Tokenizer) -> Shape:
    found: Any = model.encode_document(["a"], output_value=None, convert_to_numpy=False)
    states = found[0].get(_STATES)
    prompts = [text for text in model.prompts.values() if text]
    window = model.max_seq_length
    limit = None
    if window is not None:
        special = len(tokenizer.encode("", add_special_tokens=True))
        counts = [len(tokenizer.encode(text, add_special_tokens=False)) for text in prompts]
        limit = max(1, window - special - max(counts, default=0))
    return Shape(
        dimension=int(found[0]["sentence_embedding"].shape[-1]),
        word_dimension=None if states is None else int(states.shape[-1]),
        window=window,
        max_tokens=limit,
        query_prompt=model.prompts.get("query") or "",
        document_prompt=model.prompts.get("document") or "",
        closing=closing_tokens(tokenizer),
        pads_left=getattr(model.tokenizer, "padding_side", "right") == "left",
        pad_id=int(getattr(model.tokenizer, "pad_token_id", None) or 0),
        pad_token=str(getattr(model.tokenizer, "pad_token", None) or "[PAD]"),
    )


_loaded: WeakValueDictionary[tuple[str, str, bool, bool], SentenceTransformerEmbedder] = (
    WeakValueDictionary()
)
_loading = Mutex()


def load(
    located: LocatedModel, fingerprint: str, *, half: bool = False, on_cpu: bool = False
) -> SentenceTransformerEmbedder:
    """The embedder of a model; stores of one process that use the same model share it."""
    key = (located.name, fingerprint, half, on_cpu)
    with _loading:
        found = _loaded.get(key)
        if found is None:
            found = _loaded[key] = SentenceTransformerEmbedder(
                located, fingerprint, half=half, on_cpu=on_cpu
            )
        return found


def _load(path: Path, device: str | None) -> SentenceTransformer:
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return SentenceTransformer(str(path), local_files_only=True, device=device)
    except Exception as error:  # any of three libraries may fail here, each in its own way
        raise ModelError(f"the model in {path} cannot be loaded: {error}") from error


def _counting_tokenizer(model: SentenceTransformer, name: str) -> Tokenizer:
    """A copy of the model's tokenizer that neither cuts nor pads."""
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"the model {name} has no fast tokenizer, which measuring texts needs")
    copy = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy
