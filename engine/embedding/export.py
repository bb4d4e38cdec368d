"""A model made into a graph that onnxruntime runs, and checked against the model itself.

The whole of a sentence-transformers model is traced, pooling and normalisation included, so the
graph gives the pooled vector and the last hidden states. It is trusted only where both are those
of the model on texts of all lengths and of several scripts, as queries and as documents.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.embedding import exports
from engine.embedding.exports import MODEL, TABLE, TEXTS, TOKENIZER, Export, Shape
from engine.embedding.onnx import OUTPUTS, OnnxEmbedder
from engine.embedding.sentence_transformer import SentenceTransformerEmbedder

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_OPSET = 17
_FUNCTION = "sdpa"
TOLERANCE = 1e-5
"""How far a component of a unit vector may be from the model's own."""

log = logging.getLogger("attendex")


class _Traced(torch.nn.Module):
    """A model as a function of its input tensors, in order."""

    def __init__(self, model: torch.nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.model(dict(zip(self.names, tensors, strict=True)))
        return tuple(found[name] for name in OUTPUTS)


def make(embedder: SentenceTransformerEmbedder) -> Export | str:
    """The export of a model on the CPU, checked and kept; or why there is none."""

    def write(directory: Path) -> Export | str:
        try:
            shape = _write(embedder, directory)
            return _checked(embedder, Export(directory, shape, 0.0))
        except OSError:
            raise
        except Exception as error:  # tracing may fail in any way; the model itself still serves
            return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"

    try:
        return exports.publish(embedder.fingerprint, write)
    except OSError as error:
        return f"it cannot be kept in {exports.home(embedder.fingerprint)}: {error}"


def _write(embedder: SentenceTransformerEmbedder, directory: Path) -> Shape:
    model = embedder.model
    features: Any = model.preprocess(["a text", "and another, which is longer"])
    names = [name for name in _INPUTS if name in features]
    axes = {name: {0: "texts", 1: "tokens"} for name in (*names, OUTPUTS[1])} | {
        OUTPUTS[0]: {0: "texts"}
    }
    was_training = model.training
    with warnings.catch_warnings(), _attention_written_out(model):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Traced(model, names).eval(),
            tuple(features[name] for name in names),
            str(directory / MODEL),
            input_names=names,
            output_names=list(OUTPUTS),
            dynamic_axes=axes,
            opset_version=_OPSET,
            dynamo=False,
        )
    model.train(was_training)
    if (table := embedder.table) is not None:
        np.save(directory / TABLE, table)
    embedder.tokenizer.save(str(directory / TOKENIZER))
    return embedder.shape


@contextmanager
def _attention_written_out(model: torch.nn.Module) -> Iterator[None]:
    """The model with attention as products and a softmax, where transformers can say it so:
    torch's own function for it is traced to twice the steps, and long texts take a tenth longer."""
    changed: list[Any] = []
    modules: Iterator[Any] = model.modules()
    for module in modules:
        kind = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if kind == _FUNCTION and hasattr(module, "set_attn_implementation"):
            changed.append(module)
            module.set_attn_implementation("eager")
    try:
        yield
    finally:
        for module in changed:
            module.set_attn_implementation(_FUNCTION)


def _checked(embedder: SentenceTransformerEmbedder, export: Export) -> Export | str:
    """The export with the greatest difference of a component, or what is not the same."""
    made = OnnxEmbedder(embedder.name, embedder.fingerprint, export)
    largest = 0.0
    for query in (False, True):
        rows, words = embedder.embed_with_words(TEXTS, query=query)
        others, found = made.embed_with_words(TEXTS, query=query)
        scale = max(1.0, float(np.abs(rows).max()))
        largest = max(largest, float(np.abs(rows - others).max()) / scale)
        for one, other in zip(words, found, strict=True):
            if not np.array_equal(one.spans, other.spans):
                return "its words are not those of the model"
            if len(one.spans):
                largest = max(largest, float(np.abs(one.vectors - other.vectors).max()))
    if not largest <= TOLERANCE:
        return f"its vectors differ from the model's by {largest:.1e}"
    own, kept = (one.table_rows(TEXTS) for one in (embedder, made))
    if own is not None and (kept is None or not np.array_equal(own, kept)):
        return "its table of input embeddings is not the model's"
    return replace(export, difference=largest)
