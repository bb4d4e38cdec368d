"""The sentence-transformers adapter.

The model runs under a lock: its tokenizer is not safe to share between threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers.utils import logging as transformers_logging

from engine.embedding.locate import LocatedModel
from engine.errors import ModelError
from engine.types import Float32Array, Word
from engine.vectors import unit_rows

TOKENS_A_BATCH = 1024
"""Tokens, padding included, that go through the model at once: more is no faster on a CPU."""
TOKENS_A_BATCH_GPU = 1 << 16
GPU = "cuda"

log = logging.getLogger("attendex")


def length_batches(counts: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Positions in batches of like count, longest first: size x longest count <= budget."""
    order = sorted(range(len(counts)), key=counts.__getitem__, reverse=True)
    start = 0
    while start < len(order):
        size = max(1, budget // (counts[order[start]] + _SPECIAL))
        yield order[start : start + size]
        start += size


def _is_out_of_memory(error: BaseException) -> bool:
    said = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in said or "can't allocate" in said


_SPECIAL = 2


class SentenceTransformerEmbedder:
    """Any sentence-transformers model, loaded from a local directory.

    With `half`, a model on a GPU runs in 16 bit: about twice as fast, and vectors differ from
    those in 32 bit by some 1e-3 of their length. On a CPU it stays in 32 bit, and says so.
    """

    def __init__(self, located: LocatedModel, fingerprint: str, *, half: bool = False) -> None:
        self.name = located.name
        self.fingerprint = fingerprint
        self._lock = threading.Lock()
        self.model = _load(located.path)
        on_gpu = self.model.device.type == GPU
        self._budget = TOKENS_A_BATCH_GPU if on_gpu else TOKENS_A_BATCH
        if half and on_gpu:
            self.model.half()
        elif half:
            log.warning("half precision is for a GPU, and there is none: embedding in 32 bit")
        self._tokenizer = _counting_tokenizer(self.model, located.name)
        dimension = self.model.get_embedding_dimension()
        self.dimension = int(dimension) if dimension else self.embed_documents(["a"]).shape[1]
        self.max_tokens = self._limit()
        ends = self._tokenizer.encode("a").special_tokens_mask
        self._closing = len(ends) - len("".join(map(str, ends)).rstrip("1"))

    def embed_documents(self, texts: Sequence[str]) -> Float32Array:
        return self._encode(self.model.encode_document, texts)

    def embed_queries(self, texts: Sequence[str]) -> Float32Array:
        return self._encode(self.model.encode_query, texts)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(one) for one in encoded]

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).offsets)

    def word_vectors(self, text: str, *, query: bool) -> tuple[list[Word], Float32Array]:
        prompt = self.model.prompts.get("query" if query else "document") or ""
        encoding = self._tokenizer.encode(prompt + text)
        with self._lock:
            (found,) = self.model.encode(
                [text], prompt=prompt, output_value="token_embeddings", show_progress_bar=False
            )
        states = found.float().cpu().numpy()
        pieces: dict[int, list[int]] = {}
        for at, (word, (start, _)) in enumerate(
            zip(encoding.word_ids, encoding.offsets, strict=True)
        ):
            if word is not None and start >= len(prompt) and at < len(states) - self._closing:
                pieces.setdefault(word, []).append(at)
        words: list[Word] = []
        rows: list[Float32Array] = []
        for ats in pieces.values():
            start = encoding.offsets[ats[0]][0] - len(prompt)
            end = encoding.offsets[ats[-1]][1] - len(prompt)
            shown = text[start:end]
            start += len(shown) - len(shown.lstrip())
            if any(c.isalnum() for c in shown):
                words.append(Word(shown.strip(), start, start + len(shown.strip())))
                rows.append(states[ats].mean(axis=0))
        return words, unit_rows(np.array(rows)) if rows else states[:0]

    def _encode(self, encode: Callable[..., Any], texts: Sequence[str]) -> Float32Array:
        """Texts of like length together, so that little is spent on padding."""
        if not texts:
            return np.empty((0, self.dimension), np.float32)
        counts = self.count_tokens(texts)
        vectors: list[Float32Array | None] = [None] * len(texts)
        for batch in length_batches(counts, self._budget):
            rows = self._encode_batch(encode, [texts[n] for n in batch])
            for number, row in zip(batch, rows, strict=True):
                vectors[number] = row
        return np.array(vectors, dtype=np.float32)

    def _encode_batch(self, encode: Callable[..., Any], texts: list[str]) -> Float32Array:
        """One pass of the model; a batch that does not fit into memory is halved."""
        try:
            with self._lock:
                found = encode(
                    texts, batch_size=len(texts), show_progress_bar=False, convert_to_numpy=True
                )
            return np.asarray(found, dtype=np.float32)
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise ModelError(f"the model {self.name} failed: {error}") from error
            if len(texts) == 1:
                raise ModelError(f"not enough memory to embed one text: {error}") from error
        half = len(texts) // 2
        parts = [self._encode_batch(encode, part) for part in (texts[:half], texts[half:])]
        return np.concatenate(parts)

    def _limit(self) -> int | None:
        """The window less the special tokens and the longest prompt."""
        window = self.model.max_seq_length
        if window is None:
            return None
        special = len(self._tokenizer.encode("", add_special_tokens=True))
        prompts = [text for text in self.model.prompts.values() if text]
        return max(1, window - special - max(self.count_tokens(prompts), default=0))


_loaded: WeakValueDictionary[tuple[str, str, bool], SentenceTransformerEmbedder] = (
    WeakValueDictionary()
)
_loading = threading.Lock()


def load(
    located: LocatedModel, fingerprint: str, *, half: bool = False
) -> SentenceTransformerEmbedder:
    """The embedder of a model; stores of one process that use the same model share it."""
    key = (located.name, fingerprint, half)
    with _loading:
        found = _loaded.get(key)
        if found is None:
            found = _loaded[key] = SentenceTransformerEmbedder(located, fingerprint, half=half)
        return found


def _load(path: Path) -> SentenceTransformer:
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return SentenceTransformer(str(path), local_files_only=True)
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
