"""Where a run computes: one process or many under torchrun, on CPU or CUDA, compiled where a compiler is there."""

import os
import shutil
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rmdm.memory import keep_freed_memory


@dataclass(frozen=True)
class Place:
    rank: int
    world: int
    device: torch.device

    @property
    def writes(self) -> bool:
        """One process writes files, shows the bar and evaluates."""
        return self.rank == 0

    @property
    def compiles(self) -> bool:
        return self.device.type == "cuda" or shutil.which(os.environ.get("CXX", "g++")) is not None

    def agree(self, value: float) -> float:
        """The first process's value, for all."""
        if self.world == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(tensor, 0)
        return tensor.item()

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        if self.world > 1:
            dist.all_reduce(value)
        return value / self.world


def fast_bfloat16(device: torch.device) -> bool:
    """Whether it is built for products in bfloat16. A CPU without such units is a hundred times slower at them."""
    if device.type == "cuda":
        return True
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def enter() -> Place:
    keep_freed_memory()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    if world > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Place(rank, world, device)


def leave(place: Place) -> None:
    if place.world > 1:
        dist.barrier()
        dist.destroy_process_group()
