"""A folder for any static web server: the model in the visitor's browser, by ONNX Runtime's WebAssembly build.

The page (export/web) and the player (assets/player) are copied; the runtime comes from its npm package, whose version
and files are pinned here by checksum and kept in the user's cache.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from export.artefacts import Outcome, earlier, jobs, write_manifest
from export.artefacts import write as write_graphs
from export.verify import Judge
from rmdm.checkpoint import write_atomically
from rmdm.gallery import examples, first_problem
from rmdm.model import Denoiser
from rmdm.tasks import get_task
from rmdm.trajectory import problem

PAGE = Path(__file__).resolve().parent / "web"
PLAYER = Path(__file__).resolve().parent.parent / "assets" / "player"
RUNTIME = "1.30.0"  # of onnxruntime-web
RUNTIME_FILES = {  # SHA-256
    "ort.wasm.min.mjs": "219e6a1fc8a9938268d18efca3c91d310bd2f4a59bbd13744df5b2b7fc6cee3b",
    "ort-wasm-simd-threaded.mjs": "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
# fp32 first, the page's own choice: it decodes as Python does. int8 is smaller and faster, and not quite the same.
PRECISIONS = ["fp32", "int8"]


def export(model: Denoiser, name: str, judge: Judge, out: Path, tell: Callable[[str], None]) -> Outcome:
    """Writes the folder `out`. The graphs take the number of loops as an input, and are verified at the model's own."""
    task = get_task(model.config.task)
    if task.grid is None:
        raise ValueError(f"--web makes a page for Sudoku; {name} is a model for {task.name}")
    files = runtime()  # before the graphs, which take longer
    earlier(model, out)
    planned = jobs(model, ["onnx"], PRECISIONS, [], False, "cpu")
    outcome = write_graphs(planned, judge, [model.config.loops], out, "cpu", tell)
    write_manifest(model, name, out, outcome)
    if not any(row["precision"] == "fp32" for row in outcome.written):
        return outcome
    shutil.copytree(PAGE, out, dirs_exist_ok=True)
    for script in ("player.js", "player.css"):
        shutil.copyfile(PLAYER / script, out / script)
    for file in files:
        shutil.copyfile(file, out / "runtime" / file.name)
    # Last: without it the page says that it is not complete.
    text = json.dumps(description(model, name, outcome), ensure_ascii=False, indent=1) + "\n"
    write_atomically(out / "page.json", lambda path: path.write_text(text, encoding="utf-8"))
    total = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    tell(f"{out}: {total / 1e6:.1f} MB. Try it: python -m http.server --directory {out}")
    return outcome


def description(model: Denoiser, name: str, outcome: Outcome) -> dict[str, Any]:
    """What the page has to know of the model."""
    task = get_task(model.config.task)
    known = examples(task.name) or {"A puzzle": first_problem(task)}
    start = problem(task, [])
    return {
        **{key: start[key] for key in ("task", "symbols", "mask", "grid")},
        "length": task.length,
        "checkpoint": name,
        "parameters": model.parameter_count(),
        "loops": model.config.loops,
        "steps": task.steps,
        "examples": [{"name": label, "problem": line} for label, line in known.items()],
        "runtime": RUNTIME,
        "models": [{key: row[key] for key in ("file", "precision", "bytes", "sha256")} for row in outcome.written],
    }


def runtime() -> list[Path]:
    """The runtime's files in the user's cache, fetched by npm first if need be. Nothing of the package is run."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rmdm" / f"onnxruntime-web-{RUNTIME}"
    files = [cache / name for name in RUNTIME_FILES]
    if not all(map(_intact, files)):
        _fetch(cache)
        for file in files:
            if not _intact(file):
                file.unlink()
                raise ValueError(
                    f"{file.name} of onnxruntime-web {RUNTIME} does not have the checksum that is pinned here"
                )
    return files


def _intact(file: Path) -> bool:
    return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == RUNTIME_FILES[file.name]


def _fetch(cache: Path) -> None:
    npm = shutil.which("npm")
    package = f"onnxruntime-web@{RUNTIME}"
    if npm is None:
        raise ValueError(
            f"npm was not found. It comes with Node.js and is needed once, to fetch {package}; or put"
            f" {', '.join(RUNTIME_FILES)} from that package's dist folder into {cache}"
        )
    cache.mkdir(parents=True, exist_ok=True)
    # `pack` fetches the one package and unpacks nothing; `install` would bring ten more that the page has no use for.
    command = [npm, "pack", package, "--ignore-scripts", "--silent"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode or not archives:
            words = (done.stderr.strip() or done.stdout.strip() or "no word on why").splitlines()[-1]
            raise ValueError(f"npm could not fetch {package}: {words}. Is the registry in reach?")
        with tarfile.open(archives[0]) as archive:
            for name in RUNTIME_FILES:
                member = archive.extractfile(f"package/dist/{name}")
                assert member is not None
                data = member.read()
                write_atomically(cache / name, lambda path, data=data: path.write_bytes(data))  # type: ignore[misc]
