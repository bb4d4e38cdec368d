"""The sentence-transformers adapter.

The model runs under a lock: its tokenizer is not safe to share between threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Encoding, Tokenizer
from transformers.utils import logging as transformers_logging

from engine.embedding.locate import LocatedModel
from engine.errors import ModelError
from engine.types import Float32Array, Words
from engine.vectors import unit_rows

TOKENS_A_BATCH = 1024
"""Tokens, padding included, that go through the model at once: more is no faster on a CPU."""
TOKENS_A_BATCH_GPU = 1 << 16
GPU = "cuda"
_STATES = "token_embeddings"
Row = TypeVar("Row")

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
_NO_WORDS = Words(np.empty((0, 2), np.int64), np.empty((0, 0), np.float32))


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
        self._pads_left = getattr(self.model.tokenizer, "padding_side", "right") == "left"
        self._word_dimension = self._width_of_states()

    def embed_documents(self, texts: Sequence[str]) -> Float32Array:
        return self._encode(self.model.encode_document, texts)

    def embed_queries(self, texts: Sequence[str]) -> Float32Array:
        return self._encode(self.model.encode_query, texts)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(one) for one in encoded]

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).offsets)

    @property
    def word_dimension(self) -> int | None:
        """See `WordEmbedder`; None for models without states of their tokens, as static ones."""
        return self._word_dimension

    def embed_with_words(
        self, texts: Sequence[str], *, query: bool
    ) -> tuple[Float32Array, list[Words]]:
        """See `WordEmbedder`."""
        encode = self.model.encode_query if query else self.model.encode_document
        prompt = self.model.prompts.get("query" if query else "document") or ""
        encodings = self._tokenizer.encode_batch([prompt + text for text in texts])
        counts = [len(one) for one in encodings]
        matrix = np.empty((len(texts), self.dimension), np.float32)
        words: list[Words] = [_NO_WORDS] * len(texts)
        for batch in length_batches(counts, self._budget):
            found = self._guarded(partial(self._states, encode), [texts[n] for n in batch])
            for number, (vector, states) in zip(batch, found, strict=True):
                matrix[number] = vector
                own = states[-counts[number] :] if self._pads_left else states[: counts[number]]
                words[number] = self._words(texts[number], len(prompt), encodings[number], own)
        return matrix, words

    def _words(self, text: str, skipped: int, encoding: Encoding, states: Float32Array) -> Words:
        """The words of a text behind a prompt of `skipped` characters, from its tokens' states."""
        spans: list[tuple[int, int]] = []
        pieces: list[int] = []
        offsets, numbers = encoding.offsets, encoding.word_ids
        last = len(states) - self._closing
        at = 0
        while at < last:
            word, first = numbers[at], at
            at += 1
            while at < last and numbers[at] == word:
                at += 1
            start, end = offsets[first][0] - skipped, offsets[at - 1][1] - skipped
            shown = text[max(0, start) : end]
            if word is None or start < 0 or not any(map(str.isalnum, shown)):
                continue
            start += len(shown) - len(shown.lstrip())
            spans.append((start, start + len(shown.strip())))
            pieces += (first, at)
        if not spans:
            return Words(np.empty((0, 2), np.int64), states[:0])
        padded = np.concatenate([states, states[:1]])
        summed = np.add.reduceat(padded, pieces)[::2]
        return Words(np.array(spans, dtype=np.int64), unit_rows(summed))

    def _states(
        self, encode: Callable[..., Any], texts: list[str]
    ) -> list[tuple[Float32Array, Float32Array]]:
        """The vector of each text and the states of its tokens, padding included."""
        found = encode(
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

    def _encode(self, encode: Callable[..., Any], texts: Sequence[str]) -> Float32Array:
        """Texts of like length together, so that little is spent on padding."""

        def run(some: list[str]) -> list[Float32Array]:
            found = encode(
                some, batch_size=len(some), show_progress_bar=False, convert_to_numpy=True
            )
            return list(np.asarray(found, dtype=np.float32))

        if not texts:
            return np.empty((0, self.dimension), np.float32)
        counts = self.count_tokens(texts)
        vectors: list[Float32Array | None] = [None] * len(texts)
        for batch in length_batches(counts, self._budget):
            rows = self._guarded(run, [texts[n] for n in batch])
            for number, row in zip(batch, rows, strict=True):
                vectors[number] = row
        return np.array(vectors, dtype=np.float32)

    def _guarded(self, run: Callable[[list[str]], list[Row]], texts: list[str]) -> list[Row]:
        """One pass of the model; a batch that does not fit into memory is halved."""
        try:
            with self._lock:
                return run(texts)
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise ModelError(f"the model {self.name} failed: {error}") from error
            if len(texts) == 1:
                raise ModelError(f"not enough memory to embed one text: {error}") from error
        half = len(texts) // 2
        return self._guarded(run, texts[:half]) + self._guarded(run, texts[half:])

    def _width_of_states(self) -> int | None:
        found: Any = self.model.encode_document(["a"], output_value=None, convert_to_numpy=False)
        states = found[0].get(_STATES)
        return None if states is None else int(states.shape[-1])

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
