"""The training loop, top to bottom."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from rmdm import checkpoint
from rmdm.cost import peak_gflops
from rmdm.model import Denoiser
from train.data import Data, content_of
from train.devices import Place, enter, leave
from train.optim import lr_factor, make_optimizers
from train.quality import Judge
from train.recipes import Recipe
from train.state import STATE, Log, load_state, save_state
from train.trainee import Average, Trainee, own_rows, warm_start

SAVE_SECONDS = float(os.environ.get("RMDM_SAVE_SECONDS", "60"))
LOG_EVERY = 10


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the command line adds to a recipe."""

    out: Path
    steps: int | None = None
    minutes: float | None = None
    resume: bool = False
    init: str | None = None
    data: str | None = None
    seed: int = 0


def train(recipe: Recipe, run: Run, evaluate: Judge) -> dict[str, Any]:
    """Trains, and leaves a checkpoint in run.out. Returns the progress: `step` < `total` where it was stopped."""
    place = enter()
    if (recipe.batch // recipe.accumulate) % place.world:
        raise ValueError(f"{recipe.batch // recipe.accumulate} examples do not split over {place.world} processes")
    torch.manual_seed(run.seed)  # the only use of the global stream: initial weights
    model = Denoiser(recipe.config()).to(place.device)
    if run.init:
        warm_start(model, run.init)
    average, optimizers = Average(model, recipe.average), make_optimizers(model, recipe)
    if run.resume:
        progress = load_state(run.out, model, average.tensors, optimizers, recipe)
        if run.steps is not None and run.steps < progress["step"]:
            raise ValueError(f"{run.out} is at step {progress['step']} already; --steps {run.steps} is behind it")
        progress["total"] = run.steps or progress["total"]  # another length, if asked for: its schedule from here on
    elif (run.out / STATE).exists():
        raise ValueError(f"{run.out} holds a run already; go on with --resume, or choose another --out")
    else:
        progress = {"step": 0, "total": run.steps or recipe.steps, "seed": run.seed, "seconds": 0.0, "init": run.init}
    data = Data(recipe, progress["total"], progress["seed"], run.data)
    content = content_of(run.data)
    if progress.setdefault("data", content) != content:
        raise ValueError(f"{run.out} learned from another --data; give the same file, or choose another --out")
    run.out.mkdir(parents=True, exist_ok=True)

    if recipe.compile and place.compiles:  # one graph of the loop's body serves every number of loops
        model.loop = torch.compile(model.loop, dynamic=False)  # type: ignore[method-assign]
    trainee: nn.Module = Trainee(model, recipe)
    if place.world > 1:
        trainee = DistributedDataParallel(trainee, find_unused_parameters=recipe.gradient_loops is not None)
    if run.minutes and not run.resume:
        progress["total"] = data.total = int(place.agree(steps_within(run.minutes, trainee, data, place)))
    total = progress["total"]

    stop: list[int] = []
    handlers = {
        number: signal.signal(number, lambda received, frame: stop.append(received))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    log = Log(run.out, progress["step"]) if place.writes else None
    bar = tqdm(total=total, initial=progress["step"], desc=recipe.name, disable=None if place.writes else True)
    peak, saved = peak_gflops(device=place.device.type), time.monotonic()

    def keep() -> None:
        if place.writes:
            save_state(run.out, model, average.tensors, optimizers, progress, recipe)
            checkpoint.save(average.denoiser(), run.out)

    while progress["step"] < total and not place.agree(len(stop)):
        step, started = progress["step"], time.monotonic()
        factor = lr_factor(step, total, recipe.warmup, recipe.min_lr_ratio)
        for name, optimizer in optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = factor * (recipe.muon_lr if name == "muon" else recipe.lr)
        loss = torch.zeros((), device=place.device)
        for batch in data(step):
            part, losses = trainee(own_rows(batch, place))
            (part / recipe.accumulate).backward()
            loss += part.detach() / recipe.accumulate
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
        average.update(step)
        progress["step"] = step + 1
        seconds = time.monotonic() - started
        progress["seconds"] += seconds
        bar.update()

        due = (step + 1) % recipe.eval_every == 0 or step + 1 == total
        # The later loops of a schedule have learned nothing yet: judged is what trains now.
        loops = batch.loops if recipe.loops.kind == "schedule" else model.config.loops
        quality = evaluate(average.denoiser(), loops) if due and place.writes else {}
        if step % LOG_EVERY == 0 or due:
            gflops = recipe.accumulate * batch.flops(model.config, recipe.gradient_loops) / seconds / 1e9
            row = {
                "step": step, "loss": place.mean(loss).item(), "first": losses[0].item(), "last": losses[-1].item(),
                "L": batch.loops, "per_s": recipe.batch / seconds, "share": gflops / peak / place.world, "lr": factor,
            }  # fmt: skip
            bar.set_postfix({key: f"{row[key]:.3g}" for key in row if key not in ("step", "lr")} | quality)
            if log:
                log.write(row | quality)
        if time.monotonic() - saved > SAVE_SECONDS:
            keep()
            saved = time.monotonic()
    keep()
    bar.close()
    if log:
        log.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    leave(place)
    return progress


def steps_within(minutes: float, trainee: nn.Module, data: Data, place: Place) -> float:
    """How many steps fit, by the time of a few of them; fixed once, so that schedules never depend on the clock."""
    updates = [data.make(trial) for trial in range(5)]  # before the clock runs: training makes them beside itself
    timed = []
    for batches in updates:
        started = time.monotonic()
        for batch in batches:
            trainee(own_rows(batch, place))[0].backward()
        timed.append((time.monotonic() - started) / batches[-1].loops)
    for parameter in trainee.parameters():
        parameter.grad = None
    return max(1, minutes * 60 * 0.95 / (min(timed[1:]) * data.mean_loops()))  # the rest: evaluations and saves
