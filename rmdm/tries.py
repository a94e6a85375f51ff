"""Another try where the rules say that an answer is wrong: the same problem, posed in other words.

A model that fails a problem often solves it with its numbers in another order, or as another Sudoku of the same kind.
Neither says anything of the answer, and the rules need no solution: whoever deploys a model can do the same.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from rmdm.tasks import Reading, Task
from rmdm.tasks.countdown import Countdown
from rmdm.tasks.sudoku import Sudoku

MOST_TRIES = 64
Solve = Callable[[Tensor, Sequence[int]], tuple[Tensor, Tensor]]  # problems (B, N), their numbers -> answers, passes


def check_tries(task: Task, tries: int) -> None:
    if not 1 <= tries <= MOST_TRIES:
        raise ValueError(f"tries {tries} is not a whole number from 1 to {MOST_TRIES}")
    if tries > 1 and not isinstance(task, Sudoku | Countdown):
        raise ValueError(f"{task.name} has no rules that tell a wrong answer; tries are for Sudoku and Countdown")


def pose(task: Task, problem: list[int], number: int, seed: int, index: int) -> tuple[list[int], Reading]:
    """The problem as try `number` sees it, and how its answer reads; the first try sees it as it is."""
    if number == 0:
        return problem, list
    assert isinstance(task, Sudoku | Countdown)
    return task.posed_anew(problem, np.random.default_rng([seed, index, number]))


def solve_with_tries(
    once: Solve, task: Task, problems: Tensor, tries: int, seed: int, indices: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Answers (B, N), and the passes and the number of tries (B,) that each took; one that stays wrong is the first.

    `once` decodes a batch; `seed` and a problem's index fix how it is posed, whatever batch it is in.
    """
    answers, given = problems.clone(), problems.tolist()
    passes, tried = torch.zeros(len(problems), dtype=torch.long), torch.zeros(len(problems), dtype=torch.long)
    left = list(range(len(given)))
    for number in range(tries):
        posed = [pose(task, given[row], number, seed, indices[row]) for row in left]
        found, used = once(torch.tensor([anew for anew, _ in posed]), [indices[row] for row in left])
        passes[left] += used
        tried[left] += 1
        wrong = []
        for row, (_, reading), tokens in zip(left, posed, found.tolist(), strict=True):
            answer = reading(tokens)
            valid = task.check(given[row], answer).valid
            if valid or number == 0:
                answers[row] = torch.tensor(answer)
            if not valid:
                wrong.append(row)
        left = wrong
        if not left:
            break
    return answers, passes, tried
