"""A task as endless batches. Batch number s is a pure function of (seed, s), so a resume needs no place in the data."""

import functools
import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rmdm.config import ModelConfig
from rmdm.cost import forward_flops, training_flops
from rmdm.diffusion import mask_tokens
from rmdm.problems import read_problems
from rmdm.tasks import Task, get_task
from rmdm.tasks.countdown import LARGEST_NUMBER, Countdown, apply
from rmdm.tasks.sudoku import Sudoku
from rmdm.tasks.text8 import Text8
from train.recipes import Recipe

PUZZLE_BANK = 6000  # symmetries make each into a billion; digging one takes 20 ms
EQUATION_OPERATORS = "+-****/"  # products need most practice
PADDED = 0.25  # the share of a shorter task's batches in the model's own length: exported graphs know no other
HIDDEN = (0.6, 0.2, 0.05, 0.15)  # of an equation: the result, the first number, the second, none
LARGEST_RESULT = LARGEST_NUMBER**3  # what chains of three numbers lead to, and nearly all of the longer ones that fit
EQUATION_RATE = 0.2  # ... and up to so many of the other digits


@dataclass(frozen=True)
class Batch:
    noisy: Tensor  # (B, N), what the model sees
    targets: Tensor  # (B, N)
    masked: Tensor  # (B, N) bool, where the loss counts
    loops: int
    given: Tensor | None = None  # (B,), the share of the masks that the model fills in by itself before it learns

    def flops(self, config: ModelConfig, gradient_loops: int | None) -> int:
        """Of learning from it; a shorter task's rows are shorter than the model's."""
        shape = replace(config, length=self.noisy.shape[1])
        first = 0 if self.given is None else forward_flops(shape, self.loops)
        return len(self.noisy) * (first + training_flops(shape, self.loops, gradient_loops))


class Data:
    """Batches of a recipe, each made while the one before it is learned from."""

    def __init__(self, recipe: Recipe, total: int, seed: int, path: str | None = None) -> None:
        self.recipe, self.total, self.seed = recipe, total, seed
        self.tasks = [_with_corpus(get_task(name), path) for name in (recipe.task, *recipe.others)]
        if path is not None and not recipe.puzzles and not isinstance(self.tasks[0], Text8):
            raise ValueError(f"--data is for text8 and for recipes with puzzles; {recipe.name} makes its own data")
        for task in self.tasks[1:]:
            if task.symbols != self.tasks[0].symbols or task.length > self.tasks[0].length:
                raise ValueError(f"others: {task.name} does not fit into a model for {recipe.task}")
        self.puzzles = _own_puzzles(self.tasks[0], path) if recipe.puzzles and path is not None else None
        self.maker = ThreadPoolExecutor(1)
        self.ahead: tuple[int, Future[list[Batch]]] | None = None  # step and batches in the making

    def __call__(self, step: int) -> list[Batch]:
        """The micro-batches of one update."""
        batches = self.ahead[1].result() if self.ahead and self.ahead[0] == step else self.make(step)
        self.ahead = (step + 1, self.maker.submit(self.make, step + 1))
        return batches

    def mean_loops(self) -> float:
        """Over the run, which is what its length in time depends on."""
        rng = np.random.default_rng(0)
        return float(np.mean([self.recipe.loops(step, 1000, rng) for step in range(1000)]))

    def make(self, step: int) -> list[Batch]:
        return [self._micro(step, part) for part in range(self.recipe.accumulate)]

    def _micro(self, step: int, part: int) -> Batch:
        recipe = self.recipe
        rng = np.random.default_rng([self.seed, step, part])
        count = recipe.batch // recipe.accumulate
        task = self.tasks[rng.integers(len(self.tasks))]
        loops = recipe.loops(step, self.total, rng)
        phase = recipe.equations * self.total  # ever fewer until its end, then as many as are kept
        share = max(1 - step / phase if phase else 0.0, recipe.equations_kept)
        if rng.random() < share and isinstance(task, Countdown):
            tokens, region, forced = _equations(task, count, rng)
        else:
            tokens, region = _training_rows(task, count, rng, recipe.products)
            if recipe.smallest_chain and isinstance(task, Countdown):
                tokens = task.smallest_chains(tokens)
            if recipe.any_order and isinstance(task, Countdown):
                other = rng.random((count, 1)) < recipe.any_order
                tokens = np.where(other, task.in_any_order(tokens, rng), tokens)
            if isinstance(task, Countdown) and rng.random() < PADDED:
                tokens, region = _padded(tokens, region, self.tasks[0])
            forced = np.zeros_like(region)
        given = None
        if recipe.surest_given and not forced.any() and rng.random() < recipe.surest_given:
            given = torch.from_numpy(rng.random(count) ** 2).float()  # most of them early, where the choices are made
        shares = np.array([share for share, _, _ in recipe.mask_rates])
        row = rng.choice(len(shares), size=count, p=shares / shares.sum())
        low, high = np.array([rates[1:] for rates in recipe.mask_rates])[row].T
        if forced.any():
            low, high = 0 * low, 0 * high + EQUATION_RATE
        if given is not None and isinstance(task, Countdown):
            low = high = np.ones(count)  # a problem as it is posed; `given` says how far its sampler has come
        # Uniform for each row, and spread over all of them: less noise from batch to batch.
        even = (rng.permutation(count) + rng.random(count)) / count
        rate = torch.from_numpy(low + (high - low) * even).float()
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        targets = torch.from_numpy(tokens)
        noisy = mask_tokens(targets, torch.from_numpy(region), rate, task.mask, generator)
        if recipe.whole_numbers and isinstance(task, Countdown):
            rows = torch.from_numpy(rng.random(count) < recipe.whole_numbers)
            noisy = torch.where(rows[:, None], _whole_numbers(targets, noisy, task.mask), noisy)
        if recipe.open_bands and isinstance(task, Sudoku):
            opened = torch.from_numpy(_open_bands(task, count, rng) & (rng.random((count, 1)) < recipe.open_bands))
            noisy = torch.where(opened, targets, noisy)
        if recipe.puzzles and isinstance(task, Sudoku):
            targets, noisy = self._mix_puzzles(task, targets, noisy, step, rng, as_posed=given is not None)
        if recipe.first_solution and isinstance(task, Sudoku):
            # One step fills all cells at once: no coin is tossed that they all see, so the choice must be a rule.
            targets = torch.from_numpy(task.first_solutions(noisy.numpy()))
        if forced.any():
            noisy = torch.where(torch.from_numpy(forced), task.mask, noisy)
        return Batch(noisy, targets, noisy == task.mask, loops, given)

    def _mix_puzzles(
        self, task: Sudoku, targets: Tensor, noisy: Tensor, step: int, rng: np.random.Generator, *, as_posed: bool
    ) -> tuple[Tensor, Tensor]:
        """Replaces the last rows by the puzzles of a file, or by minimal ones, some of them (unless all are to stay as
        they are posed) already a part of the way.

        The bank of minimal puzzles grows by two puzzles a step, so that no run waits for it.
        """
        count = round(self.recipe.puzzles * len(targets))
        if not count:
            return targets, noisy
        if self.puzzles is not None:
            puzzles, boards = self.puzzles[:, rng.integers(self.puzzles.shape[1], size=count)]  # (P, N)
        else:
            numbers = rng.integers(min(64 + 2 * step, PUZZLE_BANK), size=count)
            pairs = [minimal_puzzle(task.name, int(number), self.recipe.hard_puzzles) for number in numbers]
            puzzles, boards = np.stack(pairs, axis=1)
        # A sampler writes down first what is easy. What is left to it then is a board as singles leave it, not one with
        # digits of the solution here and there.
        easy = np.zeros(count, dtype=bool)
        if self.recipe.singles and not as_posed:
            easy = rng.random(count) < self.recipe.singles
        for row in np.flatnonzero(easy):
            puzzles[row] = task.by_singles(puzzles[row].tolist())
        seed = rng.integers(2**62)  # twice the same stream: one symmetry for the boards and their blanks
        boards = task.shuffle(boards, np.random.default_rng(seed))
        blanks = task.shuffle((puzzles == 0).astype(np.int64), np.random.default_rng(seed)) > 0
        way = rng.uniform(0, 0.6, size=(count, 1)) * (rng.random((count, 1)) < 0.7)
        way[easy | as_posed] = 0
        hidden = blanks & (rng.random(blanks.shape) >= way)
        hidden[:, 0] |= ~hidden.any(axis=1)
        keep = torch.from_numpy(~task.held_out(boards))[:, None]
        rows = torch.from_numpy(boards)
        targets, noisy = targets.clone(), noisy.clone()
        targets[-count:] = torch.where(keep, rows, targets[-count:])
        puzzle_rows = torch.where(torch.from_numpy(hidden), task.mask, rows)
        noisy[-count:] = torch.where(keep, puzzle_rows, noisy[-count:])
        return targets, noisy


def content_of(path: str | None) -> str | None:
    """A hash of what a data file holds: runs and caches know by it what they learned from."""
    return None if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _with_corpus(task: Task, path: str | None) -> Task:
    if isinstance(task, Text8):
        task = task.with_corpus(path)
        task.split("train")  # a missing corpus is said before anything starts
    return task


def _own_puzzles(task: Task, path: str) -> np.ndarray:
    """Puzzles and solutions (2, P, N) from a file with one a line."""
    problems = read_problems(task, path)
    if problems.solutions is None:
        raise ValueError(f"{path} has puzzles with several solutions, or none: there is no answer to learn")
    return np.stack([problems.tokens.numpy(), problems.solutions])


def _training_rows(
    task: Task, count: int, rng: np.random.Generator, products: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Examples that are not held out for evaluation, and of Countdown's easy ones a share only."""

    def unwanted(tokens: np.ndarray) -> np.ndarray:
        held = task.held_out(tokens)
        if products:
            held |= ~(tokens == task.symbols.index("*")).any(axis=1) & (rng.random(len(tokens)) < products)
        return held

    tokens, region = task.batch(count, rng)
    again = unwanted(tokens)
    while again.any():
        tokens[again], region[again] = task.batch(int(again.sum()), rng)
        again[again] = unwanted(tokens[again])
    return tokens, region


def _open_bands(task: Sudoku, count: int, rng: np.random.Generator) -> np.ndarray:
    """Cells (count, N) of up to half of the bands, or of the stacks, of each board.

    The digits of the paper's boards fall into a few sets, and where a column (or a row) meets a block stands always one
    of them. Next to a band that is given whole this is learned within a thousand updates, from scattered clues never.
    """
    rows, columns = task.grid
    row, column, _ = task.unit_of
    line = np.where(rng.random((count, 1)) < 0.5, row // rows, column // columns)  # (count, N)
    groups = task.size // rows  # bands; stacks are not more
    rank = rng.permuted(np.tile(np.arange(groups), (count, 1)), axis=1)
    return np.take_along_axis(rank, line, axis=1) < rng.integers(1, groups // 2 + 1, size=(count, 1))


def _whole_numbers(targets: Tensor, noisy: Tensor, mask: int) -> Tensor:
    """What `noisy` hides, but with each number hidden where its first digit is: a chain's questions are numbers.

    With digits hidden one by one, a product is nearly always half given away.
    """
    digit, hidden = targets < 10, noisy == mask
    for place in range(1, targets.shape[1]):
        inside = digit[:, place - 1] & digit[:, place]
        hidden[:, place] = torch.where(inside, hidden[:, place - 1], hidden[:, place])
    return torch.where(hidden, mask, targets)


def _padded(tokens: np.ndarray, region: np.ndarray, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Rows as long as the task's, by empty lines that are part of the answer."""
    width = ((0, 0), (0, task.length - tokens.shape[1]))
    return np.pad(tokens, width, constant_values=task.symbols.index("\n")), np.pad(region, width, constant_values=True)


@functools.lru_cache(maxsize=PUZZLE_BANK)
def minimal_puzzle(name: str, number: int, hard: bool = False) -> np.ndarray:
    """Puzzle and solution (2, N) number so-and-so of an endless list. Singles alone do not solve a hard one."""
    task = get_task(name)
    assert isinstance(task, Sudoku)
    rng = np.random.default_rng([task.size, number])
    while True:
        board = task.solved(1, rng)[0]
        puzzle = task.dig(board.tolist(), rng)
        if not hard or not all(task.by_singles(puzzle)):
            return np.stack([np.array(puzzle), board])


def _equations(task: Countdown, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lines of single equations, as many as fit: arithmetic is learned on them several times faster than on chains.

    Returns tokens, region, and what is masked whatever the rate: in most lines one whole number.
    """
    newline = task.symbols.index("\n")
    tokens = np.full((count, task.length), newline, dtype=np.int64)
    forced = np.zeros((count, task.length), dtype=bool)
    for row in range(count):
        place = 0
        while True:
            operator = EQUATION_OPERATORS[rng.integers(len(EQUATION_OPERATORS))]
            a, b = _operand(rng), _operand(rng)
            if operator == "/":
                a *= b
            a, b = max(a, b), min(a, b)
            result = apply(a, operator, b)
            if result is None or result > LARGEST_RESULT:
                continue
            line = f"{a}{operator}{b}={result}\n"
            if place + len(line) > task.length:
                break
            tokens[row, place : place + len(line)] = [task.symbols.index(symbol) for symbol in line]
            equals, sign = line.index("="), line.index(operator)
            # The target of a chain is known, so its steps are inferred backwards as often as forwards.
            spans = ((equals + 1, len(line) - 1), (0, sign), (sign + 1, equals), (0, 0))
            first, last = spans[rng.choice(4, p=HIDDEN)]
            forced[row, place + first : place + last] = True
            place += len(line)
    return tokens, np.ones_like(forced), forced


def _operand(rng: np.random.Generator) -> int:
    """One of the game's own numbers, or what a step leads to from two of them."""
    a, b = (int(number) for number in rng.integers(1, LARGEST_NUMBER + 1, size=2))
    if rng.random() < 0.85:
        return a
    return apply(max(a, b), "+-*/"[rng.integers(4)], min(a, b)) or a
