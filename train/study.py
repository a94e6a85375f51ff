"""python -m train.study NAME: trains what a claim needs, once, decodes with it, and writes what came out.

Everything is kept by content in a cache: a model by its recipe, number of updates and seed, a result by its model,
problems and decoding. So a study that was stopped goes on where it was, and studies share what they have in common.
"""

import argparse
import dataclasses
import functools
import hashlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from rmdm import checkpoint
from rmdm.checkpoint import WEIGHTS, Loaded, write_atomically
from rmdm.cost import training_flops
from rmdm.diffusion import Denoise
from rmdm.evaluate import CHUNK, evaluate
from rmdm.metrics import get_scorer, wilson
from rmdm.model import Denoiser
from rmdm.problems import Problems, generate
from rmdm.sampler import Decoding, solve
from rmdm.tasks import get_task
from rmdm.tasks.sudoku import Sudoku
from rmdm.tasks.text8 import Text8
from train.data import Data, content_of
from train.devices import enter
from train.loop import Run, Trainee, steps_within, train
from train.recipes import Recipe
from train.state import FREE, STATE
from train.study_claims import SCALES, Family, ProblemSet, Scale, Study, studies
from train.study_figures import draw, markdown
from train.study_trajectory import explain
from train.study_verdict import judge, summarise

DONE = "done.json"
VERSION = 1  # raise it when training or decoding themselves change, and cached results are void
PROBLEM_SEED = 7  # of evaluation; each training seed gets problems of its own, the same for all models


class Stopped(Exception):
    """The user stopped a training run, whose state is kept."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    cache: Path
    seeds: int
    problems: int
    updates: int | None = None
    minutes: float | None = None
    data: str | None = None
    device: torch.device


# --- models ---------------------------------------------------------------------------------------------------------


def fingerprint(*parts: Any) -> str:
    return hashlib.sha256(json.dumps([VERSION, *parts], sort_keys=True, default=str).encode()).hexdigest()[:16]


@functools.cache
def corpus_of(data: str | None) -> str | None:
    content = content_of(data)
    return content and content[:16]


def model_folder(cache: Path, recipe: Recipe, updates: int, seed: int, data: str | None) -> Path:
    content = {key: value for key, value in recipe.to_dict().items() if key not in FREE}
    return cache / "models" / f"{recipe.name}-{fingerprint(content, updates, seed, corpus_of(data))}"


def trained(recipe: Recipe, updates: int, seed: int, settings: Settings) -> Path:
    """The folder of a trained model; nothing is done where it is there already."""
    folder = model_folder(settings.cache, recipe, updates, seed, settings.data)
    if (folder / DONE).exists():
        return folder
    run = Run(out=folder, steps=updates, resume=(folder / STATE).exists(), data=settings.data, seed=seed)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        progress = train(recipe, run, lambda model, loops: {})  # judged afterwards, on the study's own problems
    finally:
        for number, handler in before.items():  # the trainer catches both, to stop between updates
            signal.signal(number, handler)
    if progress["step"] < progress["total"]:
        raise Stopped
    _write(folder / DONE, {"recipe": recipe.to_dict(), "seed": seed} | progress)
    return folder


def updates_of(recipe: Recipe, scale: Scale, settings: Settings) -> int:
    """The same for every model of a task: given, the recipe's own, or what one measurement found, for good."""
    if settings.updates:
        return settings.updates
    if settings.minutes is None:
        return recipe.steps
    reference = scale.reference(recipe.task)
    path = settings.cache / f"updates-{fingerprint(reference.to_dict(), settings.minutes)}.json"
    if not path.exists():
        settings.cache.mkdir(parents=True, exist_ok=True)
        data = Data(reference, 1000, 0, settings.data)
        trainee = Trainee(Denoiser(reference.config()).to(settings.device), reference)
        found = int(steps_within(settings.minutes, trainee, data, enter()))
        _write(path, {"updates": found, "reference": reference.name, "minutes": settings.minutes})
    return int(json.loads(path.read_text())["updates"])


def training_cost(recipe: Recipe) -> float:
    """FLOPs of one example, with the mean number of loops of the recipe."""
    rng = np.random.default_rng(0)
    mean = np.mean([recipe.loops(step, 1000, rng) for step in range(1000)])
    return float(mean) * training_flops(recipe.config(), 1)


# --- results --------------------------------------------------------------------------------------------------------


def measure(
    model: Loaded, denoise: Denoise, problems: Problems, decoding: Decoding, data: str | None
) -> dict[str, Any]:
    """What one decoding makes of the problems: the share solved with its 95% interval, or a scorer's view of texts."""
    if isinstance(model.task, Text8):
        scorer, corpus = get_scorer("wordsegment"), Text8(data)
        [row] = evaluate(model, [problems], [decoding.steps], [decoding.loops], decoding, scorer, corpus)
        value = row["metrics"]["nll"]
        return {
            "metric": "nll", "value": value, "interval": row["intervals"]["nll"] or [value, value], "n": row["n"],
            "forward_passes": row["forward_passes"], "scorer": scorer.name,
        } | {key: row["metrics"][key] for key in ("bits_per_char", "entropy", "gen_ppl")}  # fmt: skip
    solved, passes = 0, 0
    for start in range(0, len(problems), CHUNK):
        given = problems.tokens[start : start + CHUNK]
        answers, used = solve(denoise, given, model.task.mask, decoding, indices=range(start, start + len(given)))
        pairs = zip(given.tolist(), answers.tolist(), strict=True)
        solved += sum(model.task.check(problem, answer).valid for problem, answer in pairs)
        passes += int(used.sum())
    n = len(problems)
    return {"metric": "solved", "value": solved / n, "interval": list(wilson(solved, n)), "n": n,
            "forward_passes": passes / n}  # fmt: skip


def remembered(folder: Path, key: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of `work`, from the folder where an earlier study left it."""
    path = folder / "results.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    if key not in known:
        known[key] = work()
        _write(path, known)
    return known[key]


def examine(
    study: Study, label: str, recipe: Recipe, folder: Path, seed: int, updates: int | None, settings: Settings
) -> list[dict[str, Any]]:
    """The rows of one trained model: every set of problems of its task with every decoding."""
    model = checkpoint.read(folder / WEIGHTS, label)
    model.to(settings.device)

    def denoise(tokens: torch.Tensor, loops: int) -> Iterator[torch.Tensor]:
        return model(tokens.to(settings.device), loops)

    rows = []
    for problem_set in study.problems:
        if problem_set.task != model.task.name:
            continue
        decodings = list(study.decodings(recipe))
        for decoding in tqdm(decodings, desc=f"  {problem_set.label}", unit="decoding", leave=False, disable=None):
            key = fingerprint(
                study.figure == "trajectory", dataclasses.asdict(problem_set), settings.problems, seed, PROBLEM_SEED,
                dataclasses.asdict(decoding), corpus_of(settings.data),
            )  # fmt: skip

            def work(problem_set: ProblemSet = problem_set, decoding: Decoding = decoding) -> dict[str, Any]:
                problems = problems_of(problem_set, settings.problems, seed, settings.data)
                if study.figure == "trajectory":
                    return explain(denoise, problems, decoding.most_loops)
                return measure(model, denoise, problems, decoding, settings.data)

            rows.append({
                "study": study.name, "model": label, "recipe": recipe.name, "task": model.task.name,
                "problems": problem_set.label, "clues": problem_set.clues, "rate": problem_set.rate,
                "steps": decoding.steps, "loops": decoding.loops, "order": decoding.order, "seed": seed,
                "parameters": model.parameter_count(), "layers": model.config.layers,
                "trained_loops": model.config.loops, "attention": model.config.attention, "batch": recipe.batch,
                "updates": updates,
            } | remembered(folder, key, work))  # fmt: skip
    return rows


@functools.cache
def problems_of(problem_set: ProblemSet, n: int, seed: int, data: str | None) -> Problems:
    task = get_task(problem_set.task)
    task = task.with_corpus(data) if isinstance(task, Text8) else task
    return generate(task, n, PROBLEM_SEED, seed, problem_set.clues, problem_set.rate)


def _write(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=1, default=str) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


# --- a study --------------------------------------------------------------------------------------------------------


def run_study(study: Study, scale: Scale, settings: Settings, source: Path | None = None) -> dict[str, Any]:
    """All rows of a study, their summary over seeds, and the verdict. `source`: a checkpoint instead of training."""
    rows, seconds = [], 0.0
    jobs = [(seed, label, recipe) for seed in range(settings.seeds) for label, recipe in study.arms.items()]
    for seed, label, recipe in (bar := tqdm(jobs, desc=study.name, unit="model", disable=None)):
        bar.set_postfix_str(f"{label}, seed {seed}")
        if source is None:
            updates = updates_of(recipe, scale, settings)
            folder = trained(recipe, updates, seed, settings)
            seconds += json.loads((folder / DONE).read_text())["seconds"]
            rows += examine(study, label, recipe, folder, seed, updates, settings)
        else:
            rows += examine(study, label, recipe, source, seed, None, settings)
    summary = summarise(rows)
    return {
        "study": study.name, "claim": study.claim, "source": study.source, "scale": scale.name,
        "seeds": settings.seeds, "version": VERSION, "training_minutes": round(seconds / 60, 1),
        **judge(study, scale, summary), "summary": summary, "rows": rows,
    }  # fmt: skip


def kept(model: Denoiser, cache: Path) -> Path:
    """A folder of the cache with a copy of a checkpoint, by its content: results beside it stay true if it changes."""
    digest = hashlib.sha256(json.dumps(model.config.to_dict(), sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    folder = cache / "checkpoints" / digest.hexdigest()[:16]
    return folder if (folder / WEIGHTS).exists() else checkpoint.save(model, folder)


def scale_for(model: Loaded, scale: Scale, clues: tuple[int, int] | None) -> Scale:
    """The scale at which a study looks at a checkpoint: its task and L."""
    if not isinstance(model.task, Sudoku):
        raise ValueError(f"{model.name} is for {model.task.name}; these studies look at Sudoku")
    keys = ("task", "layers", "heads", "width", "attention", "step_embedding")
    base = replace(scale.families[0].base, name=model.name, **{key: getattr(model.config, key) for key in keys})
    loops, length = model.config.loops, model.config.length
    puzzles = ProblemSet(task=base.task, clues=clues or (round(0.3 * length), round(0.37 * length)))
    sampled = sorted({1, 2, max(loops // 2, 1), loops, 2 * loops})
    family = Family(base=base, problems=puzzles, loops=(loops,), unrolled=())
    return replace(scale, families=(family,), longest=loops, sampled=tuple(sampled))


def show(scale: Scale, seeds: int, minutes: float | None) -> None:
    """All studies, what they need alone, and what is shared: models are trained once for all studies."""
    minutes = minutes or scale.minutes
    unit = "minutes" if minutes else "EFLOP"
    print(f"{'study':16} {'models':>6} {unit:>8}  claim ({scale.name} scale, {seeds} seeds)")
    all_models: dict[str, float] = {}
    for study in studies(scale).values():
        costs = {}
        for recipe in study.arms.values():
            cost = training_cost(recipe)
            if minutes:
                costs[recipe.name] = minutes * cost / training_cost(scale.reference(recipe.task))
            else:
                costs[recipe.name] = recipe.steps * recipe.batch * cost / 1e18
        all_models |= costs
        print(f"{study.name:16} {seeds * len(costs):>6} {seeds * sum(costs.values()):>8.1f}  {study.claim}")
    print(f"{'all, shared':16} {seeds * len(all_models):>6} {seeds * sum(all_models.values()):>8.1f}")
    print("Training only: decoding adds about as much at cpu scale. order, halting and trajectory take --checkpoint.")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m train.study", description="Test one of the claims by experiment.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a study that --list shows")
    parser.add_argument("--list", action="store_true", help="show the studies with the number of models and the cost")
    parser.add_argument("--scale", default="cpu", choices=list(SCALES), help="small models, or the paper's own recipes")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes-per-model", type=float, metavar="M",
                        help="of the costliest recursive model; all models then get its number of updates")  # fmt: skip
    length.add_argument("--updates", type=int, help="of every model, instead of a time")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--problems", type=int, help="held-out problems a seed (default: the scale's)")
    parser.add_argument("--checkpoint", help="order, halting, trajectory: look at this model instead of training one")
    parser.add_argument("--clues", help="with --checkpoint: of its puzzles, as 24-30")
    parser.add_argument("--data", help="a text file, for text")
    parser.add_argument("--cache", type=Path, default=Path("runs/study"), help="default: runs/study")
    parser.add_argument("--out", type=Path, default=Path("assets/results"))
    parser.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's)")
    return parser


def run(name: str, options: argparse.Namespace, command: str, scale: Scale) -> str:
    """One study from start to files; returns its verdict."""
    source = None
    if options.checkpoint:
        model = checkpoint.load(options.checkpoint)
        if not isinstance(model, Denoiser):
            raise ValueError(f"--checkpoint {options.checkpoint}: a checkpoint is wanted, not an export")
        scale = scale_for(model, scale, _range(options.clues) if options.clues else None)
        source = kept(model, options.cache)
    study = studies(scale)[name]
    minutes = options.minutes_per_model or (None if options.updates else scale.minutes)
    settings = Settings(
        cache=options.cache, seeds=options.seeds, problems=options.problems or scale.problems, updates=options.updates,
        minutes=minutes, data=options.data, device=enter().device,
    )  # fmt: skip
    report = {"command": command} | run_study(study, scale, settings, source)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / (f"study-{study.name}" + ("" if scale.name == "cpu" else f"-{scale.name}"))
    _write(stem.with_suffix(".json"), report)
    draw(study, scale, report, stem.with_suffix(".png"))
    text = markdown(report, stem.name)
    write_atomically(stem.with_suffix(".md"), lambda path: path.write_text(text, encoding="utf-8"))
    return f"{study.name}: {report['verdict']}\n{stem}.md, .json and .png are written"


def check(options: argparse.Namespace) -> None:
    """What is wrong with the options is said before anything is trained."""
    for name in ("minutes_per_model", "updates", "seeds", "problems", "threads"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise ValueError(f"--{name.replace('_', '-')} {value} is not positive")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError("a study runs in one process; under torchrun, train single recipes with python -m train")
    known = studies(SCALES[options.scale])
    if not options.names:
        raise ValueError("name a study; python -m train.study --list shows them")
    for name in options.names:
        if name not in known:
            raise ValueError(f"study {name!r} is unknown; known are {', '.join(known)}")
        if options.data and not any(problem_set.task == "text8" for problem_set in known[name].problems):
            raise ValueError(f"--data is for text; {name} makes its own data")
        if options.checkpoint and not known[name].checkpoint:
            looks = ", ".join(name for name, study in known.items() if study.checkpoint)
            raise ValueError(f"--checkpoint is for {looks}; {name} trains the models that it compares")
    if options.clues and not options.checkpoint:
        raise ValueError("--clues belongs to --checkpoint; the scale chooses the puzzles of models it trains")


def _range(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    try:
        return int(low), int(high if dash else low)
    except ValueError:
        raise ValueError(f"--clues {text!r} is not a range like 24-30") from None


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    rest = [word for word in given if word not in options.names]
    try:
        if options.list:
            show(SCALES[options.scale], options.seeds, options.minutes_per_model)
            return 0
        check(options)
        if options.threads:
            torch.set_num_threads(options.threads)
        for name in options.names:
            command = shlex.join(["python", "-m", "train.study", name, *rest])
            print(run(name, options, command, SCALES[options.scale]), flush=True)
    except Stopped:
        print("study: stopped; the same command goes on where it was", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"study: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
