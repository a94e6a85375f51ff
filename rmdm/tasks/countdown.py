"""Countdown: reach a target from a few numbers, using each once, one step a line. Maker, reader, oracle and judge."""

import itertools
import re
from dataclasses import dataclass

import numpy as np

from rmdm.tasks import Reading, Verdict, set_aside

SYMBOLS = tuple("0123456789+-*/=,\n_")
LENGTHS = {2: 32, 3: 48, 4: 64, 5: 64}
JOINT = (3, 4, 5)  # counts of numbers that one model can learn together
SEARCHED = 4  # of longer chains, the smallest is sought among the ends that these last numbers allow
LARGEST_NUMBER = 100  # the paper draws from 1..100
LARGEST_TARGET = 10**9  # longer ones leave no room for a chain
STEP = re.compile(r"(0|[1-9]\d*)([+\-*/])(0|[1-9]\d*)=(0|[1-9]\d*)", re.ASCII)


def apply(a: int, operator: str, b: int) -> int | None:
    """a operator b where the game allows it: a positive whole number, else None."""
    if operator == "+":
        return a + b
    if operator == "-":
        return a - b if a > b else None
    if operator == "*":
        return a * b or None
    if operator == "/":
        return a // b if b and a and a % b == 0 else None
    return None


@dataclass(frozen=True)
class Step:
    """One line of a chain, and how it fared: `pool` is what is left after it (or before it, where it failed)."""

    text: str
    pool: tuple[int, ...]
    failure: str | None  # None: the step is right and its numbers were there
    parsed: bool
    arithmetic: bool


def follow(numbers: list[int], lines: list[str]) -> list[Step]:
    """Plays a chain on the pool of numbers. After the first failure the pool stands still."""
    pool, steps, stopped = list(numbers), [], False
    for line in lines:
        match = STEP.fullmatch(line)
        if not match:
            steps.append(Step(line, tuple(pool), "not of the form a+b=c" if line else "an empty line", False, False))
            stopped = True
            continue
        a, b, claimed = int(match[1]), int(match[3]), int(match[4])
        result = apply(a, match[2], b)
        failure = None
        rest = list(pool)
        if result != claimed:
            failure = f"{a}{match[2]}{b} is {result}" if result else f"{a}{match[2]}{b} is no positive whole number"
        elif stopped:
            failure = "an earlier step failed"
        else:
            for number in (a, b):
                if number not in rest:
                    failure = f"there is no {number} left"
                    break
                rest.remove(number)
        if failure is None:
            pool = [*rest, claimed]
        else:
            stopped = True
        steps.append(Step(line, tuple(pool), failure, True, result == claimed))
    return steps


class Countdown:
    grid = None
    steps = 20
    threshold = 0.9
    symbols = SYMBOLS
    mask = SYMBOLS.index("_")

    def __init__(self, count: int) -> None:
        self.count = count
        self.name = f"countdown-{count}"
        self.length = LENGTHS[count]
        # What a model for this task can be asked for: it learned these, or at least they fit into its length.
        self.counts = tuple(k for k in LENGTHS if k == count or (k in JOINT and LENGTHS[k] <= self.length))
        self._id = {symbol: index for index, symbol in enumerate(SYMBOLS)}

    # --- making problems ----------------------------------------------------------------------------------------

    def chain(self, rng: np.random.Generator) -> tuple[str, str]:
        """A prompt line and its chain, built as in the paper; chains that do not fit are drawn again."""
        while True:
            prompt, chain = self._draw(rng)
            if len(prompt) + len(chain) <= self.length:
                return prompt, chain

    def fit_rate(self, rng: np.random.Generator, draws: int = 1000) -> float:
        """The share of chains that fit into the length: the others are missing from what the paper describes."""
        return sum(len("".join(self._draw(rng))) <= self.length for _ in range(draws)) / draws

    def _draw(self, rng: np.random.Generator) -> tuple[str, str]:
        numbers = rng.integers(1, LARGEST_NUMBER + 1, size=self.count).tolist()
        pool, lines = list(numbers), []
        while len(pool) > 1:
            i, j = rng.choice(len(pool), 2, replace=False).tolist()
            operator = "+-*/"[rng.integers(4)]
            result = apply(pool[i], operator, pool[j])
            if result is not None:
                lines.append(f"{pool[i]}{operator}{pool[j]}={result}\n")
                pool = [n for index, n in enumerate(pool) if index not in (i, j)] + [result]
        return f"{','.join(map(str, numbers))}={pool[0]}\n", "".join(lines)

    def random_problem(self, rng: np.random.Generator) -> str:
        return self.chain(rng)[0].strip()

    def batch(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.full((count, self.length), self._id["\n"], dtype=np.int64)  # padding is part of the answer
        region = np.ones((count, self.length), dtype=bool)
        for row in range(count):
            prompt, chain = self.chain(rng)
            asked = len(prompt)
            tokens[row, :asked] = self.encode(prompt)[:asked]
            tokens[row, asked : asked + len(chain)] = [self._id[symbol] for symbol in chain]
            region[row, :asked] = False
        return tokens, region

    def smallest_chains(self, tokens: np.ndarray) -> np.ndarray:
        """Whole rows (B, N) with each chain replaced by the smallest that there is, as `smallest_chain` has it."""
        rows = tokens.copy()
        for row, text in zip(rows, map(self.decode, tokens.tolist()), strict=True):
            prompt, *lines = text.split("\n")
            numbers, target = self.read(prompt)
            early = [_larger_first(line) for line in lines[: max(self.count - SEARCHED, 0)]]
            pool = follow(numbers, early)[-1].pool if early else numbers
            # Of equally small ones the first that is found: the same, in whatever order the numbers are named.
            chain = smallest_chain(tuple(sorted(pool, reverse=True)), target)
            assert chain is not None  # the row's own chain reaches it
            text = "\n".join([prompt, *early, *chain[1], ""])
            if len(text) <= self.length:
                row[:] = self._id["\n"]
                row[: len(text)] = [self._id[symbol] for symbol in text]
        return rows

    def in_any_order(self, tokens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Whole rows (B, N) with the numbers of each prompt shuffled."""
        rows = tokens.copy()
        for row, text in zip(rows, map(self.decode, tokens.tolist()), strict=True):
            prompt, _, _ = text.partition("\n")
            numbers, target = self.read(prompt)
            row[: len(prompt)] = self._ask(rng.permutation(numbers).tolist(), target)[: len(prompt)]
        return rows

    def held_out(self, tokens: np.ndarray) -> np.ndarray:
        """By the prompt line with its numbers sorted, so that another order of the same numbers is the same problem."""
        prompts = (self.decode(row).partition("\n")[0] for row in tokens.tolist())
        return np.array([set_aside(self._content(prompt)) for prompt in prompts], dtype=bool)

    def _content(self, prompt: str) -> bytes:
        numbers, _, target = prompt.partition("=")
        return f"{','.join(sorted(numbers.split(','), key=int))}={target}".encode()

    # --- text ---------------------------------------------------------------------------------------------------

    def read(self, problem: str) -> tuple[list[int], int]:
        """The numbers and the target of a line like 15,44,79=50."""
        numbers, target = _split(problem)
        if len(numbers) != self.count:
            raise ValueError(f"{_counted(numbers, problem)}; {self.name} takes {self.count}")
        for number in numbers:
            if not 1 <= number <= LARGEST_NUMBER:
                raise ValueError(f"the number {number} is not within 1 to {LARGEST_NUMBER}")
        if not 1 <= target <= LARGEST_TARGET:
            raise ValueError(f"the target {target} is not within 1 to {LARGEST_TARGET}")
        return numbers, target

    @property
    def takes(self) -> str:
        """How many numbers a model for this task can be given, for people."""
        few, many = self.counts[0], self.counts[-1]
        return f"{few}" if few == many else f"{few} to {many}"

    def sized(self, problem: str) -> "Countdown":
        """The task of as many numbers as the problem has, if a model for this one can be asked for it."""
        numbers, _ = _split(problem)
        if len(numbers) not in self.counts:
            raise ValueError(f"{_counted(numbers, problem)}; a model for {self.name} takes {self.takes}")
        return Countdown(len(numbers))

    def encode(self, problem: str) -> list[int]:
        """The numbers from the largest to the smallest: in which order they are named says nothing, and a model that
        always sees the same one has less to learn."""
        numbers, target = self.read(problem)
        return self._ask(sorted(numbers, reverse=True), target)

    def _ask(self, numbers: list[int], target: int) -> list[int]:
        prompt = [self._id[symbol] for symbol in f"{','.join(map(str, numbers))}={target}\n"]
        return prompt + [self.mask] * (self.length - len(prompt))

    def posed_anew(self, problem: list[int], rng: np.random.Generator) -> tuple[list[int], Reading]:
        """With its numbers in another order, which is as long and wants the same chain."""
        numbers, target = self._given(problem)
        prompt = sum(t != self.mask for t in problem)
        anew = self._ask(rng.permutation(numbers).tolist(), target)
        return anew, lambda answer: problem[:prompt] + answer[prompt:]

    def _given(self, problem: list[int]) -> tuple[list[int], int]:
        return self.read("".join(SYMBOLS[t] for t in problem if t != self.mask))

    def decode(self, tokens: list[int]) -> str:
        """The whole sequence as text, without the newlines that pad it."""
        return "".join(SYMBOLS[int(token)] for token in tokens).rstrip("\n")

    # --- the judge ----------------------------------------------------------------------------------------------

    def check(self, problem: list[int], answer: list[int]) -> Verdict:
        _, _, chain = self.decode(answer).partition("\n")
        numbers, target = self._given(problem)
        steps = follow(numbers, chain.split("\n") if chain else [])
        right = next((i for i, step in enumerate(steps) if step.failure), len(steps))
        pool = steps[right - 1].pool if right else tuple(numbers)
        matching = [step for step in steps if step.parsed]
        reached = right == len(steps) == self.count - 1 and pool == (target,)
        details = {
            "steps": steps,
            "ppf": min(right / (self.count - 1), 1.0),
            "laf": sum(step.arithmetic for step in matching) / len(matching) if matching else 0.0,
            "trn": min(abs(number - target) for number in pool) / max(1, target) if right else 1.0,
            "parsed": len(matching) / len(steps) if steps else 0.0,
        }
        if any(given not in (self.mask, int(new)) for given, new in zip(problem, answer, strict=True)):
            return Verdict(False, "the prompt was changed", details)
        if reached:
            return Verdict(True, f"reaches {target} and uses every number once", details)
        if right < len(steps):
            return Verdict(False, f"step {right + 1}: {steps[right].failure}", details)
        left = ", ".join(map(str, pool))
        return Verdict(False, f"ends with {left} instead of {target}", details)

    # --- the oracle ---------------------------------------------------------------------------------------------

    def oracle(self, problem: str) -> list[str] | None:
        """A chain that reaches the target with all numbers, or None where there is none."""
        numbers, target = self.read(problem)
        chain = smallest_chain(tuple(numbers), target)
        return chain and chain[1]


def _larger_first(line: str) -> str:
    match = STEP.fullmatch(line)
    assert match
    a, b = sorted((int(match[1]), int(match[3])), reverse=True)
    return f"{a}{match[2]}{b}={match[4]}"


def smallest_chain(pool: tuple[int, ...], target: int) -> tuple[int, list[str]] | None:
    """The sum of its results and the lines of the chain, of all that reach the target, for which that sum is least.

    Every line has the larger number first.
    """
    best = None
    for i, j in itertools.combinations(range(len(pool)), 2):
        a, b = max(pool[i], pool[j]), min(pool[i], pool[j])
        rest = tuple(n for index, n in enumerate(pool) if index not in (i, j))
        for operator in "+-*/":
            result = apply(a, operator, b)
            if result is None or (best and result >= best[0]):
                continue
            if not rest:
                found: tuple[int, list[str]] | None = (0, []) if result == target else None
            else:
                found = smallest_chain((*rest, result), target)
            if found and (best is None or result + found[0] < best[0]):
                best = result + found[0], [f"{a}{operator}{b}={result}", *found[1]]
    return best


def _split(problem: str) -> tuple[list[int], int]:
    text = re.sub(r"\s+", "", problem)
    match = re.fullmatch(r"(\d+(?:,\d+)*)=(\d+)", text, re.ASCII)
    if not match or len(text) > 200:
        raise ValueError(f"{problem.strip()[:60]!r} is not a Countdown problem; write it like 15,44,79=50")
    return [int(number) for number in match[1].split(",")], int(match[2])


def _counted(numbers: list[int], problem: str) -> str:
    return f"{len(numbers)} number{'s' * (len(numbers) != 1)} in {''.join(problem.split())!r}"
