"""Everything a resume needs, in one safetensors file that is replaced atomically. No pickles."""

import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rmdm.checkpoint import write_atomically
from train.recipes import Recipe

STATE = "state.safetensors"
# Of the recipe, what a resumed run may change: how it is watched, not what it computes.
FREE = ("about", "assumptions", "eval_every", "eval_problems", "eval_steps", "eval_mask")


def save_state(
    folder: Path, model: nn.Module, average: dict[str, Tensor], optimizers: dict[str, torch.optim.Optimizer],
    progress: dict[str, Any], recipe: Recipe,
) -> None:  # fmt: skip
    """`progress`: step, total, seed and the like, as JSON. Random states are not needed: all draws are by step."""
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"average/{name}": tensor for name, tensor in average.items()}
    for name, optimizer in optimizers.items():
        for index, values in optimizer.state_dict()["state"].items():
            tensors |= {f"{name}/{index}/{key}": torch.as_tensor(value) for key, value in values.items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"progress": json.dumps(progress), "recipe": json.dumps(recipe.to_dict())}
    try:
        write_atomically(folder / STATE, lambda path: save_file(tensors, path, metadata))
    except (OSError, SafetensorError) as error:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) / 1e6
        raise ValueError(
            f"the state ({size:.0f} MB) cannot be written to {folder}: {error}; the last one is kept"
        ) from None


def load_state(
    folder: Path, model: nn.Module, average: dict[str, Tensor], optimizers: dict[str, torch.optim.Optimizer],
    recipe: Recipe,
) -> dict[str, Any]:  # fmt: skip
    """Fills model, average and optimizers in place, and returns the progress."""
    path = folder / STATE
    if not path.exists():
        raise ValueError(f"there is nothing to resume in {folder}; start without --resume")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        progress, saved = json.loads(metadata["progress"]), json.loads(metadata["recipe"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a whole training state ({error}); delete it to start again") from None
    wanted = json.loads(json.dumps(recipe.to_dict()))
    differing = sorted(
        key for key in wanted.keys() | saved.keys() if key not in FREE and wanted.get(key) != saved.get(key)
    )
    if differing:
        pairs = ", ".join(f"{key} {saved.get(key)} there, {wanted.get(key)} here" for key in differing)
        raise ValueError(f"{path} is of another recipe ({pairs}); choose another --out, or use --init")
    model.load_state_dict({name: tensors[f"model/{name}"] for name in model.state_dict()})
    for name in average:
        average[name].copy_(tensors[f"average/{name}"])
    for name, optimizer in optimizers.items():
        state = optimizer.state_dict()
        state["state"] = {}
        for key, tensor in tensors.items():
            owner, *rest = key.split("/")
            if owner == name:
                state["state"].setdefault(int(rest[0]), {})[rest[1]] = tensor
        optimizer.load_state_dict(state)
    return progress


class Log:
    """metrics.jsonl and TensorBoard events. A resumed run drops the lines that its state has not reached."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and only the writer needs it

        self.path = folder / "metrics.jsonl"
        kept = [row for row in read_log(folder) if row["step"] < step]
        write_atomically(self.path, lambda path: path.write_text("".join(json.dumps(row) + "\n" for row in kept)))
        self.file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step)

    def write(self, row: dict[str, Any]) -> None:
        clean = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
        }
        self.file.write(json.dumps(clean) + "\n")
        self.file.flush()
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float):
                self.writer.add_scalar(key, value, row["step"])

    def close(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.writer.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:  # a kill in the middle of a line
            break
    return rows
