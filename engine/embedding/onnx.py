"""onnxruntime as the runtime of a model: ready in a fraction of a second, and quick on a CPU.

It runs what `engine.embedding.export` made of the model, and checked. onnxruntime would report
what it runs to its makers; the variable that forbids that is read when it is loaded.
"""

from __future__ import annotations

import os
from weakref import WeakValueDictionary

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from engine import threads
from engine.arrays import Float32Array, IdArray
from engine.embedding.exports import MODEL, NAME, TABLE, TOKENIZER, Export
from engine.embedding.tokenized import TokenizedEmbedder
from engine.errors import ModelError
from engine.files import Mutex

TOKENS_A_BATCH = 1024
"""Tokens, padding included, that go through the model at once."""
OUTPUTS = ("sentence_embedding", "token_embeddings")


class OnnxEmbedder(TokenizedEmbedder):
    """A model's export, run by onnxruntime on the CPU. Raises `ModelError` where it cannot be."""

    def __init__(self, name: str, fingerprint: str, export: Export) -> None:
        shape = export.shape
        try:
            tokenizer, self._padded = (
                Tokenizer.from_file(str(export.directory / TOKENIZER)) for _ in range(2)
            )
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads.wanted()
            options.log_severity_level = 3
            # its threads would spin after a run, while FAISS wants the cores
            options.add_session_config_entry("session.force_spinning_stop", "1")
            self._session = onnxruntime.InferenceSession(
                str(export.directory / MODEL), options, providers=["CPUExecutionProvider"]
            )
            table = export.directory / TABLE
            self._rows = (
                np.load(table, mmap_mode="r", allow_pickle=False) if table.is_file() else None
            )
        except Exception as error:  # either library may fail in its own ways
            raise ModelError(
                f"the export of {name} in {export.directory} cannot be loaded ({error}); "
                "remove that directory, or use --runtime sentence-transformers"
            ) from error
        super().__init__(name, fingerprint, tokenizer, shape, TOKENS_A_BATCH)
        self._inputs = [one.name for one in self._session.get_inputs()]
        self._padded.enable_padding(
            direction="left" if shape.pads_left else "right",
            pad_id=shape.pad_id,
            pad_token=shape.pad_token,
        )
        if shape.window is not None:
            self._padded.enable_truncation(shape.window)

    @property
    def runtime(self) -> str:
        """See `TokenizedEmbedder`."""
        return NAME

    def _pooled(self, texts: list[str], *, query: bool) -> list[Float32Array]:
        (pooled,) = self._run(texts, query, OUTPUTS[:1])
        return list(pooled)

    def _table(self, ids: IdArray) -> Float32Array | None:
        return None if self._rows is None else self._rows[ids].astype(np.float32)

    def _states(self, texts: list[str], *, query: bool) -> list[tuple[Float32Array, Float32Array]]:
        pooled, states = self._run(texts, query, OUTPUTS)
        return list(zip(pooled, states, strict=True))

    def _run(self, texts: list[str], query: bool, outputs: tuple[str, ...]) -> list[Float32Array]:
        prompt = self.shape.query_prompt if query else self.shape.document_prompt
        encoded = self._padded.encode_batch([prompt + text for text in texts])
        given = {
            "input_ids": [one.ids for one in encoded],
            "attention_mask": [one.attention_mask for one in encoded],
            "token_type_ids": [one.type_ids for one in encoded],
        }
        arrays = {name: np.array(given[name], dtype=np.int64) for name in self._inputs}
        found = self._session.run(list(outputs), arrays)
        return [np.asarray(one, dtype=np.float32) for one in found]


_loaded: WeakValueDictionary[tuple[str, str], OnnxEmbedder] = WeakValueDictionary()
_loading = Mutex()


def load(name: str, fingerprint: str, export: Export) -> OnnxEmbedder:
    """The embedder of an export; stores of one process that use the same model share it."""
    with _loading:
        found = _loaded.get((name, fingerprint))
        if found is None:
            found = _loaded[name, fingerprint] = OnnxEmbedder(name, fingerprint, export)
        return found
