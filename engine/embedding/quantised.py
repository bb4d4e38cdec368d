"""A model's export in int8: the products with its weights are made of 8-bit integers.

Every token has a scale of its own (its greatest component) and every column of the weights its own
("vector-wise" quantisation, Dettmers et al. 2022, arXiv:2208.07339), so what a text's vector is
does not depend on the texts beside it, as it does where onnxruntime's own dynamic quantisation
takes one scale for all of a batch. The sums of integers are the same on every machine.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from engine.arrays import Float32Array
from engine.embedding import exports
from engine.embedding import onnx as runtime
from engine.embedding.exports import MODEL, TABLE, TEXTS, TOKENIZER, Export
from engine.embedding.locate import LocatedModel
from engine.errors import ModelError
from engine.settings import Precision
from engine.vectors import unit_rows

LEAST_COSINE = 0.97
"""A copy whose vectors' mean cosine to the model's is below this is refused."""
_WEIGHT_LEVELS = 63
"""Of weights, to either side: two products of 255 and 63 fit into 16 bits, where processors
without instructions of their own for this would cut off (onnxruntime's "reduce_range")."""
_TOKEN_LEVELS = 127
_ZERO = 128
_SMALLEST = 1e-12

log = logging.getLogger("attendex")


def prepare(located: LocatedModel, fingerprint: str) -> Export:
    """The copy in int8 of a model of that (float32) fingerprint, made now and kept; it is made of
    the model's export, which is made first where there is none. Raises `ModelError`."""
    log.warning("preparing %s in int8, once", located.name)
    full = exports.find(fingerprint)
    made = _exported(located, fingerprint) if full is None else full
    if not isinstance(made, str):
        made = make(located.name, fingerprint, made)
    if isinstance(made, str):
        raise ModelError(f"the model {located.name} cannot be had in int8: {made}")
    if made.cosine is not None:
        log.warning(
            "vectors of %s in int8 have a cosine to those in float32 of %.4f on average, "
            "%.4f at least (%d texts)",
            located.name,
            *made.cosine,
            len(TEXTS),
        )
    return made


def _exported(located: LocatedModel, fingerprint: str) -> Export | str:
    from engine.embedding import export, sentence_transformer

    return export.make(sentence_transformer.load(located, fingerprint, on_cpu=True))


def make(name: str, fingerprint: str, full: Export) -> Export | str:
    """The copy in int8 of an export, measured and kept; or why there is none."""
    identity = Precision.INT8.marked(fingerprint)

    def write(directory: Path) -> Export | str:
        try:
            if not _write(full.directory / MODEL, directory / MODEL):
                return "it has no matrix products with weights"
            for file in (TOKENIZER, TABLE):
                if (full.directory / file).is_file():
                    shutil.copyfile(full.directory / file, directory / file)
            return _measured(
                runtime.OnnxEmbedder(name, fingerprint, full),
                runtime.OnnxEmbedder(name, identity, replace(full, directory=directory)),
                replace(full, directory=directory),
            )
        except OSError:
            raise
        except Exception as error:  # another architecture may fail in any way
            return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"

    try:
        return exports.publish(identity, write)
    except OSError as error:
        return f"it cannot be kept in {exports.home(identity)}: {error}"


def _measured(
    full: runtime.OnnxEmbedder, made: runtime.OnnxEmbedder, export: Export
) -> Export | str:
    """The export with what it lost, or that it lost too much."""
    rows, others = (
        np.concatenate([one.embed_documents(TEXTS), one.embed_queries(TEXTS)])
        for one in (full, made)
    )
    if not np.isfinite(others).all():
        return "its vectors hold NaN or infinity"
    cosines = np.einsum("ij,ij->i", unit_rows(rows), unit_rows(others))
    mean, least = float(cosines.mean()), float(cosines.min())
    if mean < LEAST_COSINE:
        return f"its vectors' cosine to those in float32 is {mean:.4f} on average, too little"
    return replace(export, difference=float(np.abs(rows - others).max()), cosine=(mean, least))


def _write(source: Path, target: Path) -> int:
    """The graph with its products of weights in integers; returns how many they are.

    x @ W becomes m * s * (round(127 x / m) @ round(W / s)) / 127, m being the greatest component
    of a token of x, s 1/63 of that of a column of W.
    """
    model = onnx.load(str(source))
    graph = model.graph
    weights = {one.name: one for one in graph.initializer}
    scaled: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    count = 0
    for node in graph.node:
        matrix = None
        if node.op_type == "MatMul" and node.input[1] in weights:
            matrix = numpy_helper.to_array(weights[node.input[1]])
        if matrix is None or matrix.ndim != 2 or matrix.dtype != np.float32:
            nodes.append(node)
            continue
        if not count:
            _constants(graph)
        count += 1
        given, weight = node.input
        if given not in scaled:
            scaled[given] = f"{given}:int8"
            nodes += _quantised_tokens(given, scaled[given])
        if f"{weight}:int8" not in weights:
            columns, steps = _quantised_weights(matrix)
            weights[f"{weight}:int8"] = _added(graph, f"{weight}:int8", columns)
            _added(graph, f"{weight}:step", steps)
        tokens, made = scaled[given], node.output[0]
        inputs = [tokens, f"{weight}:int8", "int8:step", f"{weight}:step", "int8:zero"]
        nodes += [
            helper.make_node(
                "MatMulIntegerToFloat", inputs, [f"{made}:unit"], domain="com.microsoft"
            ),
            helper.make_node("Mul", [f"{made}:unit", f"{tokens}:most"], [made]),
        ]
    del graph.node[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    kept = [one for one in graph.initializer if one.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, str(target))
    return count


def _constants(graph: onnx.GraphProto) -> None:
    _added(graph, "int8:zero", np.array(_ZERO, np.uint8))
    _added(graph, "int8:step", np.array(1 / _TOKEN_LEVELS, np.float32))
    _added(graph, "int8:smallest", np.array(_SMALLEST, np.float32))


def _added(graph: onnx.GraphProto, name: str, array: np.ndarray) -> onnx.TensorProto:
    tensor = numpy_helper.from_array(array, name)
    graph.initializer.append(tensor)
    return tensor


def _quantised_tokens(given: str, made: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Abs", [given], [f"{made}:abs"]),
        helper.make_node("ReduceMax", [f"{made}:abs"], [f"{made}:max"], axes=[-1], keepdims=1),
        helper.make_node("Max", [f"{made}:max", "int8:smallest"], [f"{made}:most"]),
        helper.make_node("Div", [given, f"{made}:most"], [f"{made}:share"]),
        helper.make_node("QuantizeLinear", [f"{made}:share", "int8:step", "int8:zero"], [made]),
    ]


def _quantised_weights(matrix: Float32Array) -> tuple[np.ndarray, Float32Array]:
    """The matrix (K, N) in int8, and the step (N,) of each column."""
    steps = np.maximum(np.abs(matrix).max(axis=0), _SMALLEST) / _WEIGHT_LEVELS
    return np.rint(matrix / steps).astype(np.int8), steps.astype(np.float32)
