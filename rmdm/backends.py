"""Exported files (ONNX, AOTInductor's .pt2, TorchScript) and compiled models as denoisers.

.pt2 and .ts files hold code that runs when they are loaded: load only those that you trust. ONNX files do not.
"""

import hashlib
import json
import os
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rmdm.config import ModelConfig
from rmdm.model import Denoiser
from rmdm.tasks import Task, get_task

MANIFEST = "manifest.json"
SHIPPED_GRAPH = "model.loop.onnx"
PRECISIONS = ("fp32", "fp16", "bf16", "int8")
FORMATS = {".onnx": "onnx", ".pt2": "aoti", ".ts": "torchscript", ".pt": "torchscript"}
Model = TypeVar("Model", bound=Denoiser)
PROJECT = Path(__file__).resolve().parent.parent


class Artefact:
    """An exported file: called like a model, it yields the logits after each loop, or only those of the last one."""

    def __init__(self, path: Path, about: Mapping[str, str], backend: str, device: str) -> None:
        try:
            self.config = ModelConfig.from_dict(json.loads(about["config"]))
            self.task: Task = get_task(self.config.task)
            self.loops = None if about["loops"] == "any" else int(about["loops"])  # None: any number
            self.every, self.precision, self.checkpoint = (
                about["outputs"] == "every",
                about["precision"],
                about["checkpoint"],
            )
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path} is not an export of ours: it does not say its {error}") from None
        if (self.config.vocab, self.config.length) != (len(self.task.symbols), self.task.length):
            raise ValueError(
                f"{path}: {self.config.vocab} symbols and length {self.config.length} are not {self.task.name}'s"
            )
        self.path, self.device = path, device
        self.name = path.name
        self.backend = f"{backend}, {'CUDA' if device.startswith('cuda') else 'CPU'}, {self.precision}"

    def __call__(self, tokens: Tensor, loops: int) -> Iterator[Tensor]:
        check_input(tokens, loops, self.config)
        if self.loops not in (None, loops):
            raise ValueError(no_graph(loops, [self.loops], "CHECKPOINT"))
        missing = self.config.length - tokens.shape[1]
        if not missing:
            return self.run(tokens.to(self.device).contiguous(), loops)
        # A graph has one length. Countdown pads its chains with newlines, so a shorter row is one that ends in them.
        padded = F.pad(tokens, (0, missing), value=self.task.symbols.index("\n"))
        return (logits[:, :-missing] for logits in self.run(padded.to(self.device), loops))

    def run(self, tokens: Tensor, loops: int) -> Iterator[Tensor]:
        raise NotImplementedError


class OnnxArtefact(Artefact):
    """Tensors are bound by address, so that on a GPU they stay there, and on the CPU nothing is copied."""

    def __init__(self, path: Path, device: str | None = None, threads: int | None = None) -> None:
        import onnxruntime as ort  # here, so that whoever stays in PyTorch does not need it

        ort.set_default_logger_severity(3)  # the CUDA build warns of missing devices at every start
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads or torch.get_num_threads()  # it does not read OMP_NUM_THREADS
        options.log_severity_level = 3
        # The CUDA build lists CUDA on every machine, and falls back without a word: ask, then look at what one got.
        wanted = device or ("cuda" if torch.cuda.is_available() else "cpu")
        providers = ["CUDAExecutionProvider"] if wanted.startswith("cuda") else []
        try:
            session = ort.InferenceSession(str(path), options, providers=[*providers, "CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no common class but this one
            raise ValueError(f"{path} is damaged or no ONNX file: {_first_line(error)}") from None
        self.provider = session.get_providers()[0]
        if device is not None and device.startswith("cuda") and self.provider != "CUDAExecutionProvider":
            raise ValueError(f"ONNX Runtime cannot use CUDA here, only {self.provider}; load it with device='cpu'")
        got = "cuda" if self.provider == "CUDAExecutionProvider" else "cpu"
        about = session.get_modelmeta().custom_metadata_map
        super().__init__(path, about, "ONNX Runtime", got)
        self.session = session

    def run(self, tokens: Tensor, loops: int) -> Iterator[Tensor]:
        shape = (loops,) * self.every + (*tokens.shape, self.config.vocab)
        logits = torch.empty(shape, device=self.device)
        binding = self.session.io_binding()
        binding.bind_input("tokens", self.device, 0, np.int64, tuple(tokens.shape), tokens.data_ptr())
        if self.loops is None:
            binding.bind_cpu_input("loops", np.array(loops))
        binding.bind_output("logits", self.device, 0, np.float32, shape, logits.data_ptr())
        if self.device == "cuda":
            torch.cuda.current_stream().synchronize()  # the runtime has a stream of its own
        self.session.run_with_iobinding(binding)
        yield from logits if self.every else [logits]


class ScriptArtefact(Artefact):
    def __init__(self, path: Path, device: str | None = None, threads: int | None = None) -> None:
        del threads  # torch has one setting for all
        files = {"rmdm.json": ""}
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", category=DeprecationWarning)
                module = torch.jit.load(path, map_location="cpu", _extra_files=files)
            about = json.loads(files["rmdm.json"] or "{}")
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"{path} is damaged or no TorchScript file: {_first_line(error)}") from None
        place = device or about.get("device", "cpu")
        _need(place, path)
        super().__init__(path, about, "TorchScript", place)
        self.module = module.to(self.device)

    def run(self, tokens: Tensor, loops: int) -> Iterator[Tensor]:
        with torch.no_grad():
            yield from self.module(tokens, loops)


class PackageArtefact(Artefact):
    """AOTInductor: native code for the device that it was compiled for. Loops run one by one, as they are asked for."""

    def __init__(self, path: Path, device: str | None = None, threads: int | None = None) -> None:
        del threads
        from torch._inductor.package import load_package

        if not zipfile.is_zipfile(path):
            raise ValueError(f"{path} is damaged or no .pt2 package")
        try:
            self.begin, self.loop = (load_package(str(path), part) for part in ("begin", "loop"))
            about = self.loop.get_metadata()
        except (RuntimeError, ValueError, OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is damaged or not for this machine: {_first_line(error)}") from None
        built_for = about.get("device", "cpu")
        if device not in (None, built_for):
            raise ValueError(f"{path} was compiled for {built_for}, not for {device}; export it with --device {device}")
        _need(built_for, path)
        super().__init__(path, about, "AOTInductor", built_for)

    def run(self, tokens: Tensor, loops: int) -> Iterator[Tensor]:
        h = self.begin(tokens)
        for index in range(loops):
            h, logits = self.loop(h, torch.full((1,), index / max(loops - 1, 1), device=self.device))
            yield logits


READERS: dict[str, Callable[..., Artefact]] = {
    "onnx": OnnxArtefact,
    "aoti": PackageArtefact,
    "torchscript": ScriptArtefact,
}


class Folder:
    """A whole export: takes, for each number of loops, a file that can do it."""

    def __init__(
        self, path: Path, device: str | None, format: str | None, precision: str | None, **options: Any
    ) -> None:
        manifest = _manifest(path)
        rows = [row for row in manifest["artefacts"] if format in (None, row["format"])]
        if format is not None and not rows:
            raise ValueError(f"{path} has no {format}; it has {_listed(r['format'] for r in manifest['artefacts'])}")
        there = [name for name in PRECISIONS if any(row["precision"] == name for row in rows)]
        if not there or precision not in (None, *there):
            raise ValueError(
                f"{path} has no {precision or 'artefacts'}; its precisions are {', '.join(there) or 'none'}"
            )
        precision = precision or there[0]
        rows = [row for row in rows if row["precision"] == precision]
        # ONNX first, since it runs everywhere; and first what shows every loop, so that `auto` can look at them.
        rows.sort(key=lambda row: (list(READERS).index(row["format"]), row["outputs"] != "every"))
        self._path, self._rows, self._options = path, rows, {"device": device, **options}
        self._opened: dict[str, Artefact] = {}
        first = self._open(rows[0]["file"])
        self.config, self.task, self.backend, self.name = (
            first.config,
            first.task,
            first.backend,
            str(manifest["checkpoint"]),
        )

    def __call__(self, tokens: Tensor, loops: int) -> Iterator[Tensor]:
        check_input(tokens, loops, self.config)
        for row in self._rows:
            if row["any_loops"] or row["loops"] == loops:
                return self._open(row["file"])(tokens, loops)
        raise ValueError(no_graph(loops, [row["loops"] for row in self._rows], self.name))

    def _open(self, file: str) -> Artefact:
        if file not in self._opened:
            self._opened[file] = open_file(self._path / file, **self._options)
        return self._opened[file]


def load_artefact(
    path: str | Path,
    *,
    device: str | None = None,
    format: str | None = None,
    precision: str | None = None,
    threads: int | None = None,
) -> Artefact | Folder:
    """A denoiser for an exported file, or for a folder with a manifest.

    device: None takes CUDA where there is one. `format` and `precision` choose within a folder.
    """
    path = Path(path)
    if path.is_dir():
        return Folder(path, device, format, precision, threads=threads)
    return open_file(path, device=device, threads=threads)


def open_file(path: Path, device: str | None = None, threads: int | None = None) -> Artefact:
    """Opens one file, after a look at its checksum where a manifest lies beside it."""
    if path.suffix not in FORMATS:
        raise ValueError(f"{path.name!r} is no export; known are {', '.join(FORMATS)}")
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if (path.parent / MANIFEST).is_file():
        rows = [row for row in _manifest(path.parent)["artefacts"] if row["file"] == path.name]
        if rows and rows[0]["sha256"] != hashlib.sha256(path.read_bytes()).hexdigest():
            raise ValueError(f"{path} is damaged: it is not the file that {MANIFEST} describes. Export it again")
    return READERS[FORMATS[path.suffix]](path, device, threads)


def compiled(model: Model) -> Model:
    """The model with its loop compiled: one graph for every number of loops and, after the second, every batch size.

    Where nothing can be compiled (no C++ compiler), it says so once and stays as it is.
    """
    plain = model.loop
    fast = torch.compile(plain, dynamic=True)

    def loop(h: Tensor, progress: Tensor) -> tuple[Tensor, Tensor]:
        try:
            return fast(h, progress)
        except RuntimeError as error:  # inductor's errors are RuntimeErrors, and so are the compiler's
            warnings.warn(
                f"torch.compile is not possible here, so the model runs as it is: {_first_line(error)}", stacklevel=2
            )
            model.loop, model.backend = plain, "PyTorch"  # type: ignore[method-assign, assignment]
            return plain(h, progress)

    model.loop, model.backend = loop, "torch.compile"  # type: ignore[method-assign, assignment]
    return model


def shipped_graph(weights: Path, name: str) -> Path:
    """The ONNX graph for any number of loops of a checkpoint: beside its weights, or in the cache, or built now.

    Built by `python -m export` in a process of its own: this package knows nothing of exporters.
    """
    beside = weights.parent / SHIPPED_GRAPH
    if beside.is_file():
        return beside
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rmdm" / "graphs" / digest
    if not (cache / SHIPPED_GRAPH).is_file():
        command = [sys.executable, "-m", "export", str(weights.resolve()), "--ship", str(cache)]
        print(f"building the ONNX graph of {name}, once", file=sys.stderr)
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(
                f"the ONNX graph of {name} could not be built: {(done.stderr or done.stdout).strip()[-400:]}"
            )
    return cache / SHIPPED_GRAPH


def check_input(tokens: Tensor, loops: int, config: ModelConfig) -> None:
    if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64:
        kind = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        raise ValueError(f"tokens are {kind}; a torch.int64 tensor is wanted")
    shortest = 1 if config.task.startswith("countdown") else config.length  # Artefact pads its rows
    if tokens.ndim != 2 or not shortest <= tokens.shape[1] <= config.length or not len(tokens):
        raise ValueError(f"tokens have the shape {tuple(tokens.shape)}; (batch, {config.length}) is wanted")
    if tokens.min() < 0 or tokens.max() >= config.vocab:
        raise ValueError(f"tokens go from {tokens.min()} to {tokens.max()}; 0 to {config.vocab - 1} are known")
    if not isinstance(loops, int) or loops < 1:
        raise ValueError(f"loops {loops!r} is not a positive whole number")


def no_graph(loops: int, there: list[int], name: str) -> str:
    listed = ", ".join(map(str, sorted(set(there))))
    return f"no graph for {loops} loops; this export has {listed}. Run: python -m export {name} --loops {loops}"


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for row in manifest["artefacts"]:
            if row["format"] not in READERS or Path(row["file"]).name != row["file"]:
                raise ValueError(f"an artefact {row['file']!r} of format {row['format']!r}")
            for key in ("precision", "loops", "any_loops", "outputs", "sha256"):
                row[key]
        manifest["checkpoint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / MANIFEST} is not an export's manifest: {error}") from None
    return manifest


def _need(device: str, path: Path) -> None:
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"{path} is for CUDA, and there is no CUDA device here")


def _listed(values: Any) -> str:
    return ", ".join(sorted(set(values))) or "nothing"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
