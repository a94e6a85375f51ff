import math

import numpy as np
import pytest

from rmdm.recursion import POISSON_CAP, LoopChoice


def draws(choice: LoopChoice, count: int = 20_000) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.array([choice(0, 1, rng) for _ in range(count)])


def test_fixed() -> None:
    assert set(draws(LoopChoice(kind="fixed", high=5), 10)) == {5}


def test_uniform_has_both_ends_and_equal_shares() -> None:
    values, counts = np.unique(draws(LoopChoice(kind="uniform", low=2, high=5)), return_counts=True)
    assert values.tolist() == [2, 3, 4, 5]
    assert (counts / 20_000).tolist() == pytest.approx([0.25] * 4, abs=0.015)


def test_poisson_has_the_mean_and_the_spread_of_the_mixture() -> None:
    sample = draws(LoopChoice(kind="poisson", high=6))
    assert sample.min() == 1
    assert sample.max() <= POISSON_CAP * 6
    assert sample.mean() == pytest.approx(6, abs=0.1)
    # The variance of a Poisson of a log-normal rate: E[rate] + Var[rate], with sigma 0.5.
    assert sample.var() == pytest.approx(5 + 25 * (math.exp(0.25) - 1), rel=0.1)


@pytest.mark.parametrize(("low", "high"), [(1, 10), (10, 1)])
def test_schedule_goes_evenly_from_end_to_end(low: int, high: int) -> None:
    choice, rng = LoopChoice(kind="schedule", low=low, high=high), np.random.default_rng(0)
    path = [choice(step, 1000, rng) for step in range(1000)]
    assert (path[0], path[-1]) == (low, high)
    assert path == sorted(path, reverse=low > high)
    for step in (0, 123, 500, 999):
        assert abs(path[step] - (low + step / 999 * (high - low))) <= 0.5
    assert choice(0, 1, rng) == low


@pytest.mark.parametrize(
    "bad", [{"kind": "x"}, {"low": 0}, {"kind": "uniform", "low": 3, "high": 2}, {"kind": "poisson", "high": 1}]
)
def test_bad_choices_are_errors(bad: dict) -> None:
    with pytest.raises(ValueError, match=r"unknown|not positive|more than|at least 2"):
        LoopChoice(**bad)
