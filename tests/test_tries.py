"""Second tries, on fake models that know the answer to a problem in some of its wordings only."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from rmdm.diffusion import Denoise
from rmdm.sampler import Decoding, solve
from rmdm.tasks import get_task
from rmdm.tasks.countdown import Countdown
from rmdm.tasks.sudoku import Sudoku
from rmdm.tries import Solve, check_tries, pose, solve_with_tries

ONE_STEP = Decoding(steps=1, loops=2)
CHAIN = "20*3=60\n75-4=71\n60+71=131"


@pytest.mark.parametrize("name", ["sudoku-4x4", "sudoku-6x6", "sudoku-9x9", "sudoku-25x25", "sudoku-9x9-of-25"])
def test_a_sudoku_posed_anew_has_the_answer_of_the_first(name: str) -> None:
    task, rng = get_task(name), np.random.default_rng(0)
    assert isinstance(task, Sudoku)
    solved = task.solved(20, rng)
    if task.digits > task.size:  # any of its digits, and not the first ones only
        solved = (solved + 7) % task.digits + 1
    others = set()
    for board in solved.tolist():
        problem = task.blank(board, rng, 0.5)
        anew, reading = task.posed_anew(problem, rng)
        answer, _ = task.posed_anew(board, rng)
        assert sum(map(bool, anew)) == sum(map(bool, problem))
        assert reading(anew) == problem
        assert task.check([0] * task.length, answer).valid  # a symmetry of a solved board is a solved board
        others.add(tuple(anew) != tuple(problem))
    assert others == {True}


def test_a_symmetry_takes_the_whole_solution_along() -> None:
    task = get_task("sudoku-6x6")
    assert isinstance(task, Sudoku)
    rng = np.random.default_rng(1)
    for _ in range(10):
        puzzle = task.dig(task.solved(1, rng)[0].tolist(), rng)
        anew, reading = task.posed_anew(puzzle, rng)
        [solution] = task.solutions(anew, limit=2)  # one, as before
        assert task.check(puzzle, reading(solution)).valid


def test_countdown_posed_anew_keeps_numbers_target_and_chain() -> None:
    task = Countdown(4)
    problem = task.encode("20,3,75,4=131")
    seen = set()
    for seed in range(40):
        anew, reading = task.posed_anew(problem, np.random.default_rng(seed))
        numbers, _, target = task.decode([token for token in anew if token != task.mask]).partition("=")
        seen.add(numbers)
        assert sorted(numbers.split(",")) == ["20", "3", "4", "75"]
        assert target == "131"
        answer = reading(filled(task, anew, CHAIN))
        assert task.check(problem, answer).valid
    assert len(seen) > 15  # of 24 orders


def filled(task: Countdown, problem: list[int], chain: str) -> list[int]:
    prompt = [token for token in problem if token != task.mask]
    text = chain.ljust(len(problem) - len(prompt), "\n")
    return prompt + [task.symbols.index(symbol) for symbol in text]


def knows(task: Countdown, when: Callable[[str], bool]) -> Denoise:
    """A model that writes the right chain where `when` likes the order of the numbers, and 1s elsewhere."""

    def denoise(tokens: Tensor, loops: int) -> Iterator[Tensor]:
        logits = torch.zeros(*tokens.shape, len(task.symbols))
        for row, problem in enumerate(tokens.tolist()):
            right = when(task.decode([token for token in problem if token != task.mask]))
            answer = filled(task, problem, CHAIN if right else "1" * 20)
            logits[row, torch.arange(len(problem)), torch.tensor(answer)] = 9.0
        for _ in range(loops):
            yield logits

    return denoise


def decoded(denoise: Denoise) -> Solve:
    return lambda tokens, indices: solve(denoise, tokens, Countdown(4).mask, ONE_STEP, indices=indices)


def test_only_wrong_answers_are_tried_again_and_every_pass_counts() -> None:
    task = Countdown(4)
    largest_first = task.encode("75,20,3,4=131")
    another, _ = task.posed_anew(largest_first, np.random.default_rng(0))
    assert not task.decode(another).startswith("75")
    problems = torch.tensor([largest_first, another])
    denoise = knows(task, lambda prompt: prompt.startswith("75"))
    once, _, _ = solve_with_tries(decoded(denoise), task, problems, 1, 0, [0, 1])
    answers, passes, tried = solve_with_tries(decoded(denoise), task, problems, 40, 0, [0, 1])
    valid = [task.check(p, a).valid for p, a in zip(problems.tolist(), answers.tolist(), strict=True)]
    assert valid == [True, True]
    assert not task.check(problems[1].tolist(), once[1].tolist()).valid
    first = next(  # the try whose order the model knows
        number
        for number in range(1, 40)
        if task.decode(pose(task, problems[1].tolist(), number, 0, 1)[0]).startswith("75")
    )
    assert tried.tolist() == [1, first + 1]
    assert passes.tolist() == [2, 2 * (first + 1)]


def test_an_answer_that_stays_wrong_is_the_first() -> None:
    task = Countdown(4)
    problems = torch.tensor([task.encode("20,3,75,4=131")])
    answers, passes, _ = solve_with_tries(decoded(knows(task, lambda prompt: False)), task, problems, 5, 0, [0])
    assert passes.tolist() == [10]
    assert answers[0].tolist() == filled(task, problems[0].tolist(), "1" * 20)


def test_one_try_is_plain_decoding_and_the_batch_changes_nothing() -> None:
    task = Countdown(4)
    first, rng = task.encode("20,3,75,4=131"), np.random.default_rng(0)
    problems = torch.tensor([first, *(task.posed_anew(first, rng)[0] for _ in range(2))])
    denoise = knows(task, lambda prompt: prompt.startswith("4"))
    plain, used = solve(denoise, problems, task.mask, ONE_STEP)
    answers, passes, _ = solve_with_tries(decoded(denoise), task, problems, 1, 0, [0, 1, 2])
    assert torch.equal(plain, answers)
    assert torch.equal(used, passes)
    together = solve_with_tries(decoded(denoise), task, problems, 8, 0, [0, 1, 2])
    for row in range(3):
        alone = solve_with_tries(decoded(denoise), task, problems[row : row + 1], 8, 0, [row])
        assert torch.equal(alone[0][0], together[0][row])
        assert alone[1].item() == together[1][row].item()


@pytest.mark.parametrize(
    ("name", "tries", "says"),
    [
        ("sudoku-9x9", 0, "tries 0 is not"),
        ("countdown-3", 65, "from 1 to 64"),
        ("text8", 2, "text8 has no rules that tell a wrong answer"),
    ],
)
def test_tries_are_bounded_and_need_rules(name: str, tries: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_tries(get_task(name), tries)
