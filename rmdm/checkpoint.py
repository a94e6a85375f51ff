"""Checkpoints: safetensors that carry their own config, and `load` for everything that can denoise.

A checkpoint may come from a stranger. Nothing in it is executed, its config is checked like user input, and its
tensors are checked against that config before any of them is read.
"""

import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import httpx2
import torch
from huggingface_hub import ModelHubMixin, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rmdm.config import ModelConfig
from rmdm.model import Denoiser
from rmdm.positions import VALUE_FEATURES
from rmdm.tasks import Task, get_task

SHIPPED = Path(__file__).resolve().parent.parent / "assets" / "checkpoints"
WEIGHTS, CONFIG, CARD, MANIFEST = "model.safetensors", "config.json", "README.md", "manifest.json"
BACKENDS = ("eager", "compiled", "onnx")
EXPORTS = (".onnx", ".pt2", ".ts", ".pt")
SHARED = {"countdown-3": "countdown-4", "countdown-5": "countdown-4"}  # one shipped model for three counts of numbers
LARGEST_FILE = 4 * 2**30
LARGEST_HEADER = 2**20  # names, shapes and config of 128 layers take a tenth of it
KEY = "rmdm_config"


class Loaded(Protocol):
    """What `load` returns, whatever runs behind it."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def task(self) -> Task: ...
    @property
    def backend(self) -> str: ...
    @property
    def name(self) -> str: ...
    def __call__(self, tokens: Tensor, loops: int, /) -> Iterator[Tensor]: ...


class PretrainedDenoiser(Denoiser, ModelHubMixin, library_name="rmdm", license="apache-2.0", tags=["masked-diffusion"]):
    """A denoiser with a name, and with the hub's from_pretrained, save_pretrained and push_to_hub."""

    name = "unnamed"
    path: Path | None = None  # of its weights
    backend = "PyTorch"
    metadata: Mapping[str, str] = {}  # what the trainer wrote beside the config

    def __init__(self, config: ModelConfig) -> None:  # spelled out, since the mixin reads the signature
        super().__init__(config)

    @property
    def task(self) -> Task:
        return get_task(self.config.task)

    def _save_pretrained(self, save_directory: Path) -> None:
        save(self, save_directory, extra_metadata=self.metadata)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> "PretrainedDenoiser":
        # Not the PyTorch mixin's own, which falls back to pickles. config.json is for people: the file's own counts.
        options.pop("config", None)
        if os.path.isdir(model_id):
            return read(Path(model_id) / WEIGHTS, Path(model_id).resolve().name)
        return read(_download(model_id, **options), model_id)


def load(source: str | Path, checkpoints: str | Path | None = None, backend: str = "eager") -> Loaded:
    """A denoiser for a shipped name, a checkpoint's folder or file, an exported file, or a hub id (owner/name).

    `checkpoints`: where shipped names are looked up, instead of assets/checkpoints. `backend` for checkpoints:
    "eager"; "compiled" by torch.compile; "onnx" by ONNX Runtime, whose graph is built on first use if none is shipped.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is unknown; choose from {', '.join(BACKENDS)}")
    found = _find(source, checkpoints)
    if backend == "eager":
        return found
    if not isinstance(found, PretrainedDenoiser):
        raise ValueError(f"{source} is an export already, which runs on {found.backend}; leave backend out")
    from rmdm import backends  # only who asks for one needs its runtime

    if backend == "compiled":
        return backends.compiled(found)
    assert found.path is not None
    graph = backends.open_file(backends.shipped_graph(found.path, found.name))
    graph.name = found.name  # whose graph it is; the backend says that it is one
    return graph


def _find(source: str | Path, checkpoints: str | Path | None) -> Loaded:
    text, path, names = str(source), Path(source), shipped(checkpoints)
    for name in (text, SHARED.get(text)):
        if name in names:
            return read(Path(checkpoints or SHIPPED) / name / WEIGHTS, name)
    if path.is_dir():
        if (path / WEIGHTS).exists():
            return read(path / WEIGHTS, path.resolve().name)
        if (path / MANIFEST).exists():
            return _artefact(path)
        raise ValueError(f"the folder {text!r} has neither {WEIGHTS} (a checkpoint) nor {MANIFEST} (an export)")
    if path.exists():
        if path.suffix in EXPORTS:
            return _artefact(path)
        return read(path, path.resolve().parent.name if path.name == WEIGHTS else path.stem)
    known = f"shipped are {', '.join(names) or 'none'}"
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", text, re.ASCII) and path.suffix not in EXPORTS:
        try:
            return read(_download(text), text)
        except ConnectionError as error:
            raise ValueError(f"there is no file or folder {text!r} here, and {error}; {known}") from None
    raise ValueError(f"there is no checkpoint {text!r}: {known}; or give a folder, an exported file, or owner/name")


def shipped(checkpoints: str | Path | None = None) -> list[str]:
    """The names of the checkpoints that come with the project, or that lie in the folder `checkpoints`."""
    return sorted(path.parent.name for path in Path(checkpoints or SHIPPED).glob(f"*/{WEIGHTS}"))


def save(
    model: Denoiser,
    folder: str | Path,
    card_text: str | None = None,
    extra_metadata: Mapping[str, str] | None = None,
) -> Path:
    """Writes model.safetensors and config.json, and with `card_text` the model card, each of them atomically."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = {key: tensor.detach().cpu().contiguous() for key, tensor in model.state_dict().items()}
    _check_shapes({key: list(tensor.shape) for key, tensor in state.items()}, model.config, "this model")
    metadata = {**(extra_metadata or {}), "format": "pt", KEY: json.dumps(model.config.to_dict())}
    write_atomically(folder / WEIGHTS, lambda path: save_file(state, path, metadata))
    config = json.dumps(model.config.to_dict(), indent=2) + "\n"
    write_atomically(folder / CONFIG, lambda path: path.write_text(config, encoding="utf-8"))
    if card_text is not None:
        write_atomically(folder / CARD, lambda path: path.write_text(card_text, encoding="utf-8"))
    return folder


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Calls `write` with a temporary path beside `path`, and moves the whole file into place."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        write(Path(name))
        with open(name, "rb") as written:
            os.fsync(written.fileno())
        os.chmod(name, 0o644)  # mkstemp's files are for their owner only
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def read(path: Path, name: str) -> PretrainedDenoiser:
    """Reads a checkpoint file. ValueError says what is wrong with it."""
    _check_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            config = _config(metadata.pop(KEY, None), path)
            parts = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
            _check_shapes({key: part.get_shape() for key, part in parts.items()}, config, str(path))
            for key, part in parts.items():
                if part.get_dtype() not in ("F32", "F16", "BF16"):
                    raise ValueError(f"{path}: {key} has numbers of type {part.get_dtype()}, not float")
            state = {key: file.get_tensor(key).float() for key in parts}
    except (SafetensorError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from None
    if bad := [key for key, tensor in state.items() if not tensor.isfinite().all()]:
        raise ValueError(f"{path}: {bad[0]} has numbers that are not finite")
    with torch.random.fork_rng(devices=[]):  # the weights that are drawn here are overwritten at once
        model = PretrainedDenoiser(config)
    model.load_state_dict(state)
    model.name, model.metadata, model.path = name, metadata, path
    return model.eval().requires_grad_(False)


def _check_header(path: Path) -> None:
    """Refuses what is no safetensors file before any library reads it, pickles with a word on why."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            start = file.read(9)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    header = int.from_bytes(start[:8], "little")
    if len(start) < 9 or start[8:] != b"{" or header > LARGEST_HEADER or header + 8 > size:
        # Only now: the length of a good header may begin with a pickle's bytes too.
        if start[:2] == b"PK" or (start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05"):
            raise ValueError(f"{path} is a pickled PyTorch file, which could run code; only safetensors are read")
        raise ValueError(f"{path} is damaged or no safetensors file")
    if size > LARGEST_FILE:
        raise ValueError(f"{path} has {size} bytes; at most {LARGEST_FILE} are read")


def _config(text: str | None, path: Path) -> ModelConfig:
    """The config within a file, checked for itself and against the task that it names."""
    if text is None:
        raise ValueError(f"{path} is a safetensors file, but not one of ours: it has no {KEY} in its metadata")
    try:
        config = ModelConfig.from_dict(json.loads(text))
        task = get_task(config.task)
    except (ValueError, RecursionError, TypeError) as error:
        raise ValueError(f"{path} has no usable config: {error}") from None
    for key, wanted in (("vocab", len(task.symbols)), ("length", task.length), ("grid", task.grid)):
        if getattr(config, key) != wanted:
            raise ValueError(f"{path}: {key} {getattr(config, key)} does not fit {task.name}, which has {wanted}")
    return config


def wanted_shapes(config: ModelConfig) -> dict[str, list[int]]:
    """The shapes of a model's weights without making it: no memory is taken on the word of a file."""
    vocab, width = config.vocab, config.width
    shapes = {"embed.weight": [vocab, width], "head.weight": [vocab, width]}
    shapes |= {f"norm_{place}.weight": [width] for place in ("in", "loop", "out")}
    if config.grid:
        shapes["block_embed.weight"] = [config.grid[0] * config.grid[1], width]
    if config.places:
        shapes["place_embed.weight"] = [config.places + 1, width]
    if config.values:
        shapes["value_project.weight"] = [width, VALUE_FEATURES]
    if config.step_embedding == "learned":
        shapes |= {"step_embed.first.weight": [width, 1], "step_embed.first.bias": [width]}
        shapes["step_embed.second.weight"] = [width, width]
    for layer in range(config.layers):
        name = f"layers.{layer}"
        shapes |= {f"{name}.norm_attention.weight": [width], f"{name}.norm_mlp.weight": [width]}
        shapes |= {f"{name}.attention.qkv.weight": [3 * width, width], f"{name}.attention.out.weight": [width, width]}
        shapes |= {f"{name}.up.weight": [4 * width, width], f"{name}.down.weight": [width, 4 * width]}
        if config.neighbours:
            reach = 2 * config.neighbours + 1
            shapes |= {f"{name}.near_{part}.weight": [reach, width] for part in ("attention", "mlp")}
    return shapes


def _check_shapes(shapes: Mapping[str, list[int]], config: ModelConfig, what: str) -> None:
    wanted = wanted_shapes(config)
    if missing := sorted(wanted.keys() - shapes.keys()):
        raise ValueError(f"{what} lacks {len(missing)} of {len(wanted)} tensors, {missing[0]} first")
    if extra := sorted(shapes.keys() - wanted.keys()):
        raise ValueError(f"{what} has {len(extra)} tensors that its config does not explain, {extra[0]!r} first")
    for key, shape in wanted.items():
        if list(shapes[key]) != shape:
            raise ValueError(f"{what}: {key} has the shape {list(shapes[key])}; the config wants {shape}")
    assert sum(math.prod(shape) for shape in shapes.values()) * 4 <= LARGEST_FILE, "the model is too large to save"


def _download(model_id: str, **options: Any) -> Path:
    """The weights of a hub id: asked for once, without the library's minute of retries, else from its cache."""
    options = {key: value for key, value in options.items() if value is not None}
    try:
        try:
            asked = {key: options[key] for key in ("token",) if key in options}
            url = hf_hub_url(model_id, WEIGHTS, revision=options.get("revision"))
            size = get_hf_file_metadata(url, timeout=10, **asked).size or 0
        except (httpx2.TransportError, OfflineModeIsEnabled):
            return Path(hf_hub_download(model_id, WEIGHTS, **{**options, "local_files_only": True}))
        if size > LARGEST_FILE:
            raise ValueError(f"{model_id}: {WEIGHTS} has {size} bytes; at most {LARGEST_FILE} are read")
        return Path(hf_hub_download(model_id, WEIGHTS, **options))
    except LocalEntryNotFoundError:
        raise ConnectionError(f"the hub cannot be reached for {model_id!r} (offline?)") from None
    except EntryNotFoundError:
        raise ConnectionError(f"{model_id!r} on the hub has no {WEIGHTS}") from None
    except (HfHubHTTPError, HFValidationError, httpx2.TransportError) as error:
        raise ConnectionError(f"the hub does not give {model_id!r}: {str(error).splitlines()[0]}") from None


def _artefact(path: Path) -> Loaded:
    from rmdm.backends import load_artefact  # only who has an export needs its runtime

    return load_artefact(path)
