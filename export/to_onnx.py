"""ONNX: the two parts are traced once and then put together, as often as there are loops or inside a Loop node.

Weights are stored once because they are there once; tracing takes seconds at any L. Opset 18, since on this model
newer ones are no faster (RMS norms are written so that the runtime fuses them) and older runtimes read it.
"""

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from export.unrolled import Begin, Loop, describe, example, prepare
from rmdm.config import ModelConfig
from rmdm.model import Denoiser

OPSET, IR = 18, 10
SMALL = 64  # bytes that are not worth a look elsewhere
BATCH = torch.export.Dim("batch", min=1, max=4096)


@dataclass(frozen=True)
class Parts:
    """The traced parts of a model, and what is needed to put them together."""

    model: Denoiser
    precision: str
    begin: onnx.GraphProto
    loop: onnx.GraphProto
    seconds: float  # that tracing took

    @property
    def weights(self) -> list[TensorProto]:
        return [*self.begin.initializer, *self.loop.initializer]


def trace(model: Denoiser, precision: str = "fp32") -> Parts:
    start = time.perf_counter()
    ready = prepare(model, precision, fuse=True)
    tokens, h, progress = example(ready)
    begin = _trace(Begin(ready), (tokens,), {"tokens": {0: BATCH}}, ["h"])
    loop = _trace(Loop(ready), (h, progress), {"h": {0: BATCH}, "progress": None}, ["next", "logits"])
    begin, loop = _tidy(begin, "b", "begin."), _tidy(loop, "l", "loop.")
    return Parts(model, precision, begin, loop, time.perf_counter() - start)


def int8(parts: Parts) -> Parts:
    """Weights of most matrix products as 8-bit numbers, their inputs quantized at run time."""
    assert parts.precision == "fp32"
    start = time.perf_counter()
    loop = _quantize(parts.loop, parts.model.config)
    return Parts(parts.model, "int8", parts.begin, loop, parts.seconds + time.perf_counter() - start)


def unrolled(parts: Parts, loops: int, every: bool = False) -> onnx.ModelProto:
    """`tokens` -> `logits` (B, N, V) after the last of `loops` loops, or with `every` (L, B, N, V)."""
    nodes = _copy(parts.begin, {"begin.tokens": "tokens"})
    weights = parts.weights
    h, outputs = "begin.h", []
    for index in range(loops):
        progress = f"progress.{index}"
        weights.append(numpy_helper.from_array(np.array([index / max(loops - 1, 1)], dtype=np.float32), progress))
        end = f"@{index + 1}"
        nodes += _copy(parts.loop, {"loop.h": h, "loop.progress": progress}, end)
        h = f"loop.next{end}"
        outputs.append(f"loop.logits{end}")
    if every:
        weights.append(numpy_helper.from_array(np.array([0]), "axis"))
        nodes += [helper.make_node("Unsqueeze", [name, "axis"], [f"{name}.row"]) for name in outputs]
        nodes.append(helper.make_node("Concat", [f"{name}.row" for name in outputs], ["logits"], axis=0))
    else:
        nodes.append(helper.make_node("Identity", [outputs[-1]], ["logits"]))
    return _model(parts, nodes, weights, loops, every)


def looped(parts: Parts) -> onnx.ModelProto:
    """`tokens` and `loops` (a number) -> the `logits` (L, B, N, V) of every loop, by one Loop node."""
    h, logits = parts.loop.output
    inputs = [
        helper.make_tensor_value_info("index", TensorProto.INT64, []),
        helper.make_tensor_value_info("going", TensorProto.BOOL, []),
        helper.make_tensor_value_info("loop.h", h.type.tensor_type.elem_type, None),
    ]
    outputs = [
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        helper.make_tensor_value_info(h.name, h.type.tensor_type.elem_type, None),
        helper.make_tensor_value_info(logits.name, TensorProto.FLOAT, None),
    ]
    one, shape = np.array(1), np.array([1])
    weights = [
        *parts.weights,
        numpy_helper.from_array(one, "one"),
        numpy_helper.from_array(shape, "shape"),
        numpy_helper.from_array(np.array(True), "yes"),
    ]
    before = [  # progress = index / max(loops - 1, 1)
        helper.make_node("Sub", ["loops", "one"], ["less"]),
        helper.make_node("Max", ["less", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["last.float"], to=TensorProto.FLOAT),
    ]
    count = [
        helper.make_node("Cast", ["index"], ["index.float"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["index.float", "last.float"], ["ratio"]),
        helper.make_node("Reshape", ["ratio", "shape"], ["loop.progress"]),
        helper.make_node("Identity", ["going"], ["on"]),
    ]
    body = helper.make_graph([*count, *parts.loop.node], "loop", inputs, outputs)
    node = helper.make_node("Loop", ["loops", "yes", "begin.h"], ["h.last", "logits"], body=body)
    return _model(parts, [*_copy(parts.begin, {"begin.tokens": "tokens"}), *before, node], weights, None, True)


def share(model: onnx.ModelProto, weights: Path) -> None:
    """Lets a graph read what it has in common with a safetensors file from that file, which then lies beside it.

    Products have their weights turned over: the runtime turns them once, when it loads them.
    """
    stored, turns = weights.read_bytes(), []
    for weight in model.graph.initializer:
        array = numpy_helper.to_array(weight)
        if array.nbytes < SMALL:
            continue
        found = stored.find(array.tobytes())
        if found < 0 and array.ndim == 2:
            found = stored.find(array.T.tobytes())
            if found >= 0:
                turns.append(helper.make_node("Transpose", [f"{weight.name}.stored"], [weight.name]))
                weight.name += ".stored"
                weight.dims[:] = array.T.shape
        if found >= 0:
            weight.ClearField("raw_data")
            weight.data_location = TensorProto.EXTERNAL
            for key, value in (("location", weights.name), ("offset", found), ("length", array.nbytes)):
                weight.external_data.add(key=key, value=str(value))
    nodes = [*turns, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _trace(part: nn.Module, inputs: tuple, shapes: dict, outputs: list[str]) -> onnx.GraphProto:
    with _quiet():
        program = torch.onnx.export(
            part, inputs, dynamo=True, opset_version=OPSET, dynamic_shapes=shapes, verbose=False,
            input_names=list(shapes), output_names=outputs,
        )  # fmt: skip
    assert program is not None
    proto = program.model_proto
    assert not proto.functions, "a function would carry its own nodes past _tidy"
    return proto.graph


def _quantize(graph: onnx.GraphProto, config: ModelConfig) -> onnx.GraphProto:
    """A scale for each column of a weight, and for each row of an input: one for a whole batch, as the runtime's own
    quantizer has it, is set by the largest number anywhere, and answers would depend on what else is in the batch.

    In float stay the head, whose logits are compared, and queries, keys and values, whose rounding moves them most.
    Bytes are unsigned with 128 for zero: without VNNI, sums of unsigned by signed products saturate at 16 bits.
    """
    width = config.width
    shapes = {(width, width), (width, 4 * width), (4 * width, width)}
    weights = {weight.name: numpy_helper.to_array(weight) for weight in graph.initializer}
    small = {"int8.tiny": np.float32(1e-9), "int8.most": np.float32(127), "int8.middle": np.float32(128)}
    stored = {**small, "int8.zero": np.uint8(128), "int8.axis": np.array([-1])}
    nodes = []
    for node in graph.node:
        name = node.input[1] if node.op_type == "MatMul" else ""
        if name not in weights or weights[name].shape not in shapes:
            nodes.append(node)
            continue
        scale = np.maximum(np.abs(weights[name]).max(axis=0), 1e-9) / 127
        stored[f"{name}.bytes"] = (np.round(weights[name] / scale) + 128).astype(np.uint8)
        stored[f"{name}.scale"] = scale
        (x,), (out,) = node.input[:1], node.output
        steps = [
            ("Abs", [x], "size"),
            ("ReduceMax", [f"{out}.size", "int8.axis"], "peak"),
            ("Max", [f"{out}.peak", "int8.tiny"], "some"),
            ("Div", [f"{out}.some", "int8.most"], "scale"),
            ("Div", [x, f"{out}.scale"], "scaled"),
            ("Round", [f"{out}.scaled"], "whole"),
            ("Add", [f"{out}.whole", "int8.middle"], "shifted"),
            ("Cast", [f"{out}.shifted"], "bytes"),
            ("MatMulInteger", [f"{out}.bytes", f"{name}.bytes", "int8.zero", "int8.zero"], "sums"),
            ("Cast", [f"{out}.sums"], "float"),
            ("Mul", [f"{out}.float", f"{out}.scale"], "by_row"),
        ]
        types: dict[str, dict[str, Any]] = {"bytes": {"to": TensorProto.UINT8}, "float": {"to": TensorProto.FLOAT}}
        nodes += [helper.make_node(kind, inputs, [f"{out}.{to}"], **types.get(to, {})) for kind, inputs, to in steps]
        nodes.append(helper.make_node("Mul", [f"{out}.by_row", f"{name}.scale"], [out]))
    left = [weight for weight in graph.initializer if f"{weight.name}.bytes" not in stored]
    left += [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()]
    return helper.make_graph(nodes, "loop", graph.input, graph.output, left)


@contextmanager
def _quiet() -> Iterator[None]:
    """torch and onnxruntime warn of their own deprecations, and of steps that a tidied graph does not need."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _tidy(graph: onnx.GraphProto, letter: str, prefix: str = "") -> onnx.GraphProto:
    """Drops traces, which hold the paths of source files, and gives inner values short names that do not clash."""
    del graph.value_info[:]
    names = {value.name: prefix + value.name for value in [*graph.input, *graph.output, *graph.initializer]}
    for value in [*graph.input, *graph.output, *graph.initializer]:
        value.name = names[value.name]
        value.doc_string = ""
        del value.metadata_props[:]
    for node in graph.node:
        node.name = node.doc_string = ""
        del node.metadata_props[:]
        for name in filter(None, node.output):
            names.setdefault(name, f"{letter}{len(names)}")  # a loop repeats them, so each letter counts
        node.input[:] = [names[name] if name else "" for name in node.input]
        node.output[:] = [names[name] if name else "" for name in node.output]
        assert not any(attribute.HasField("g") for attribute in node.attribute), "no part has subgraphs of its own"
    return graph


def _copy(graph: onnx.GraphProto, inputs: dict[str, str], end: str = "") -> list[onnx.NodeProto]:
    """The nodes of a part with other inputs, and with `end` added to the names that they make."""
    made = {name: name + end for node in graph.node for name in node.output if name}
    names = {**made, **inputs}
    copies = []
    for node in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [names.get(name, name) for name in node.input]
        copy.output[:] = [names.get(name, name) for name in node.output]
        copies.append(copy)
    return copies


def _model(
    parts: Parts, nodes: list[onnx.NodeProto], weights: list[TensorProto], loops: int | None, every: bool
) -> onnx.ModelProto:
    config = parts.model.config
    needed, kept = {"logits"}, []
    for node in reversed(nodes):  # the head of loops whose logits nobody asked for is left out
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
            for attribute in node.attribute:
                needed.update(name for inner in attribute.g.node for name in inner.input)
    inputs = [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", config.length])]
    if loops is None:
        inputs.append(helper.make_tensor_value_info("loops", TensorProto.INT64, []))
    shape = ["loops" if loops is None else loops] * every + ["batch", config.length, config.vocab]
    graph = helper.make_graph(
        kept[::-1], "rmdm", inputs, [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)],
        [weight for weight in weights if weight.name in needed],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    model.producer_name = "rmdm"
    helper.set_model_props(model, describe(parts.model, loops, every, parts.precision))
    onnx.checker.check_model(model)
    return model
