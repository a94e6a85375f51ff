"""python -m rmdm solve | problems | evaluate"""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from rmdm import evaluate, terminal
from rmdm.checkpoint import BACKENDS, SHARED, load, shipped
from rmdm.memory import keep_freed_memory
from rmdm.metrics import WordScorer, get_scorer
from rmdm.problems import RULE, Problems, generate, read_problems
from rmdm.sampler import ORDERS, Decoding, sample, solve
from rmdm.tasks import NAMES, Task, get_task, task_for, task_within
from rmdm.tasks.countdown import Countdown
from rmdm.tasks.sudoku import Sudoku
from rmdm.tasks.text8 import Text8
from rmdm.tries import check_tries, solve_with_tries


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:  # one line, and the same exit code as for every other bad input
        self.exit(1, f"{self.prog}: {message}; see --help\n")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m rmdm", description="Recursive masked diffusion models: solve, make and evaluate.")
    commands = parser.add_subparsers(dest="command", required=True)
    names = ", ".join(shipped()) or "none yet"
    checkpoint = f"a shipped name ({names}), a folder, an exported file, or a hub id owner/name"

    command = commands.add_parser("solve", help="fill in one problem")
    command.add_argument("checkpoint", help=checkpoint)
    command.add_argument("problem", help="81 digits, 15,44,79=50, or a text with _ for gaps; - reads standard input")
    _schedule_options(command, int, "denoising steps T")
    command.add_argument("--loops", type=_loop, help="loops L in each step, or auto (default: as it was trained)")
    _decoding_options(command)
    command.add_argument("--watch", action="store_true", help="draw every loop in the terminal")
    command.add_argument("--json", action="store_true", help="print solution, valid, forward_passes and seconds")

    command = commands.add_parser("problems", help="write a problem file to standard output")
    command.add_argument("task", help=NAMES)
    _problem_options(command)
    command.add_argument("--seed", type=int, default=0, help="default 0")

    command = commands.add_parser("evaluate", help="measure a checkpoint or an export")
    command.add_argument("checkpoint", help=checkpoint)
    says = "another task that fits, such as countdown-3 for countdown-4 (default: its own, or what a file has)"
    command.add_argument("--task", help=says)
    command.add_argument("--problems", metavar="FILE", help="one problem a line, instead of generated ones")
    _problem_options(command)
    _schedule_options(command, _integers, "numbers of steps, such as 1,5,20")
    command.add_argument("--loops", type=_loops, help="numbers of loops, such as 1,4,16,auto (default: as trained)")
    _decoding_options(command)
    command.add_argument("--runs", type=int, default=1, help="sets of n problems, each with its own seed (default 1)")
    command.add_argument("--threads", type=int, help="threads for the computation")
    says = "of a checkpoint; onnx is the fastest on a CPU (default: eager)"
    command.add_argument("--backend", choices=BACKENDS, default=BACKENDS[0], help=says)
    command.add_argument("--scorer", default=WordScorer.name, help="text: wordsegment, or EleutherAI/gpt-j-6b")
    command.add_argument("--json", metavar="OUT", help="write the rows as JSON; - for standard output")
    command.add_argument("--plot", metavar="OUT.png", help="write a heat map over steps and loops")
    return parser.parse_args(arguments)


def _problem_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--n", type=int, default=1000, help="how many problems (default 1000)")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--clues", type=_range, help=f"Sudoku, such as 30-36: {RULE}")
    which.add_argument("--mask", type=float, help="Sudoku, such as 0.7: each cell is blank with this probability")
    command.add_argument("--data", metavar="PATH", help="text8: the corpus (default: the cache, or its address)")


def _schedule_options(command: argparse.ArgumentParser, kind: Callable[[str], Any], says: str) -> None:
    usual = f"{Sudoku.steps} for Sudoku, {Countdown.steps} for Countdown, {Text8.steps} for text"
    usual += "; with --threshold, as many as it takes"
    command.add_argument("--steps", type=kind, help=f"{says} (default: {usual})")
    says = "commit in each step not just an even share but all above this probability: fewer steps where it is easy"
    says += f" (default: {Countdown.threshold} for Countdown, unless --steps is given)"
    command.add_argument("--threshold", type=float, metavar="P", help=says)


def _decoding_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--order", choices=ORDERS, default="confidence", help="what is committed first")
    command.add_argument("--temperature", type=float, help="0 is greedy (default 0; for text 1)")
    command.add_argument("--top-k", type=int, default=0, help="draw among the k likeliest symbols (default: all)")
    command.add_argument("--seed", type=int, default=0, help="of problems and draws (default 0)")
    says = "pose a problem in another way, up to so many times in all, while the rules say its answer is wrong"
    command.add_argument("--tries", type=int, default=1, metavar="N", help=f"{says} (default 1)")


def _integers(text: str) -> list[int]:
    if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 1,5,20")
    return [int(number) for number in text.split(",")]


def _loop(text: str) -> int | str:
    if text != "auto" and not re.fullmatch(r"\d{1,4}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto")
    return text if text == "auto" else int(text)


def _loops(text: str) -> list[int | str]:
    return [_loop(part) for part in text.split(",")]


def _range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text, re.ASCII)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range such as 30-36")
    return int(match[1]), int(match[2] or match[1])


def _decoding(arguments: argparse.Namespace, task: Task) -> Decoding:
    """The settings but for steps and loops. Greedy text repeats itself, so text is drawn unless asked otherwise."""
    temperature = arguments.temperature
    threshold = task.threshold if arguments.steps is None and arguments.threshold is None else arguments.threshold
    return Decoding(
        order=arguments.order,
        schedule="steps" if threshold is None else "threshold",
        threshold=0.9 if threshold is None else threshold,
        temperature=float(isinstance(task, Text8)) if temperature is None else temperature,
        top_k=arguments.top_k,
        seed=arguments.seed,
    )


def _usual_steps(arguments: argparse.Namespace, task: Task) -> int:
    """With a threshold, one for each position: so it alone decides."""
    return task.steps if arguments.threshold is None else task.length


def run_solve(arguments: argparse.Namespace) -> None:
    model = load(arguments.checkpoint)
    text = sys.stdin.read(100_000) if arguments.problem == "-" else arguments.problem
    task = task_for(model.task, text)
    problem = task.encode(text)
    loops = model.config.loops if arguments.loops is None else arguments.loops
    steps = _usual_steps(arguments, task) if arguments.steps is None else arguments.steps
    decoding = replace(_decoding(arguments, task), steps=steps, loops=loops)
    check_tries(task, arguments.tries)
    watch = arguments.watch and sys.stdout.isatty() and not arguments.json

    def once(tokens: torch.Tensor, _: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        if not watch:
            return solve(model, tokens, task.mask, decoding)
        frames = sample(model, tokens, task.mask, decoding, every_loop=True)
        last = terminal.animate(task, tokens[0].tolist(), frames)
        return (tokens, torch.tensor([0])) if last is None else (last.tokens, last.passes)

    start = time.perf_counter()
    answers, *counts = solve_with_tries(once, task, torch.tensor([problem]), arguments.tries, decoding.seed, [0])
    seconds = time.perf_counter() - start
    answer, (passes, tried) = answers[0].tolist(), (int(count) for count in counts)
    verdict = task.check(problem, answer)
    if arguments.json:
        result = {"solution": task.decode(answer), "valid": verdict.valid, "forward_passes": passes}
        print(json.dumps({**result, "tries": tried, "seconds": round(seconds, 4)}))
        return
    if not watch or tried > 1:  # a later try was drawn in other words
        print(terminal.draw(task, terminal.symbols(task, answer)))
    print(f"\n{'valid' if verdict.valid else 'not valid'}: {verdict.reason}")
    tries = f" of {tried} tries" if tried > 1 else ""
    print(f"{passes} forward passes{tries} in {seconds:.2f} s on {model.backend}")


def run_problems(arguments: argparse.Namespace) -> None:
    task = _with_corpus(get_task(arguments.task), arguments.data)
    problems = generate(task, arguments.n, arguments.seed, clues=arguments.clues, rate=arguments.mask)
    print(f"# {task.name}, {len(problems)} problems, {problems.description}")
    for line in problems.lines:
        print(line)


def run_evaluate(arguments: argparse.Namespace) -> None:
    if arguments.threads is not None:
        if not 1 <= arguments.threads <= 1024:
            raise ValueError(f"threads {arguments.threads} is not a number from 1 to 1024")
        torch.set_num_threads(arguments.threads)
    for out in (arguments.json, arguments.plot):  # found out now, and not after an hour of work
        if out not in (None, "-") and not Path(out).absolute().parent.is_dir():
            raise ValueError(f"there is no folder for {out}")
    if arguments.plot and not arguments.plot.endswith(".png"):
        raise ValueError(f"the plot {arguments.plot} must end in .png")
    model = load(arguments.checkpoint, backend=arguments.backend)
    named = arguments.task or (arguments.checkpoint if arguments.checkpoint in SHARED else None)
    task = task_within(model.task, named) if named else model.task
    decoding = _decoding(arguments, task)
    steps = [_usual_steps(arguments, task)] if arguments.steps is None else arguments.steps
    loops = arguments.loops or [model.config.loops]
    for number in steps:
        for loop in loops:
            replace(decoding, steps=number, loops=loop)  # checks them before any work
    check_tries(task, arguments.tries)
    runs = _runs(arguments, _with_corpus(task, arguments.data), decoding)
    scorer = corpus = None
    if isinstance(task, Text8):
        scorer = get_scorer(arguments.scorer)
        corpus = task.with_corpus(arguments.data) if arguments.data or not arguments.problems else None
    rows = list(evaluate.evaluate(model, runs, steps, loops, decoding, scorer, corpus, arguments.tries))
    if arguments.json == "-":
        print(json.dumps(rows, indent=1, allow_nan=False))
    else:
        print(evaluate.table(rows))
        if len(rows) > 1:
            print("\n" + evaluate.heat_map(rows))
    if arguments.json not in (None, "-"):
        Path(arguments.json).write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if arguments.plot:
        evaluate.plot(rows, arguments.plot)


def _runs(arguments: argparse.Namespace, task: Task, decoding: Decoding) -> list[Problems]:
    """The problems of each run: new ones, or the file's, which without randomness in decoding make one run."""
    if arguments.runs < 1:
        raise ValueError(f"runs {arguments.runs} is not a positive number")
    if arguments.problems is None:
        numbers = range(arguments.runs)
        return [generate(task, arguments.n, arguments.seed, run, arguments.clues, arguments.mask) for run in numbers]
    if arguments.clues is not None or arguments.mask is not None:
        raise ValueError("--clues and --mask are for generated problems, not for --problems FILE")
    problems = read_problems(task, arguments.problems)
    if arguments.task not in (None, problems.task.name):
        raise ValueError(f"{arguments.problems} has problems of {problems.task.name}, not of {arguments.task}")
    return [problems] * (arguments.runs if decoding.temperature or decoding.order == "random" else 1)


def _with_corpus(task: Task, data: str | None) -> Task:
    if isinstance(task, Text8):
        return task.with_corpus(data)
    if data:
        raise ValueError(f"--data is for text8, not for {task.name}")
    return task


COMMANDS = {"solve": run_solve, "problems": run_problems, "evaluate": run_evaluate}


def main(arguments: list[str] | None = None) -> int:
    parsed = parse_arguments(arguments)
    keep_freed_memory()
    try:
        COMMANDS[parsed.command](parsed)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        print(f"python -m rmdm {parsed.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
