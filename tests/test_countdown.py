import contextlib
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmdm.tasks import get_task, task_for, task_within
from rmdm.tasks.countdown import LENGTHS, SYMBOLS, Countdown, apply, follow

THREE, FOUR = Countdown(3), Countdown(4)


def judged(task: Countdown, problem: str, chain: str) -> tuple[bool, dict, str]:
    tokens = task.encode(problem)
    prompt = tokens[: tokens.index(task.mask)]
    rest = chain.ljust(task.length - len(prompt), "\n")
    verdict = task.check(tokens, prompt + [SYMBOLS.index(character) for character in rest])
    figures = {key: round(verdict.details[key], 4) for key in ("ppf", "laf", "trn", "parsed")}
    return verdict.valid, figures, verdict.reason


# Worked by hand. 15,44,79=50: 79-44=35, 35+15=50.
CHAINS = [
    ("right", "79-44=35\n35+15=50", True, {"ppf": 1, "laf": 1, "trn": 0, "parsed": 1}),
    ("right, other order", "79-44=35\n15+35=50", True, {"ppf": 1, "laf": 1, "trn": 0, "parsed": 1}),
    ("wrong sum at the end", "79-44=35\n35+15=51", False, {"ppf": 0.5, "laf": 0.5, "trn": 0.3, "parsed": 1}),
    ("wrong sum first", "79-44=34\n34+15=49", False, {"ppf": 0, "laf": 0.5, "trn": 1, "parsed": 1}),
    ("a number twice", "79-44=35\n79-15=64", False, {"ppf": 0.5, "laf": 1, "trn": 0.3, "parsed": 1}),
    ("wrong pool", "80-45=35\n35+15=50", False, {"ppf": 0, "laf": 1, "trn": 1, "parsed": 1}),
    ("not the target", "15+44=59\n79-59=20", False, {"ppf": 1, "laf": 1, "trn": 0.6, "parsed": 1}),
    ("one step short", "79-44=35", False, {"ppf": 0.5, "laf": 1, "trn": 0.3, "parsed": 1}),
    ("a step too many", "79-44=35\n35+15=50\n50+0=50", False, {"ppf": 1, "laf": 1, "trn": 0, "parsed": 1}),
    ("unparseable", "79--44\n=,=", False, {"ppf": 0, "laf": 0, "trn": 1, "parsed": 0}),
    ("half unparseable", "79-44=35\n35+15", False, {"ppf": 0.5, "laf": 1, "trn": 0.3, "parsed": 0.5}),
    ("a gap between", "79-44=35\n\n35+15=50", False, {"ppf": 0.5, "laf": 1, "trn": 0.3, "parsed": 0.6667}),
    ("nothing", "", False, {"ppf": 0, "laf": 0, "trn": 1, "parsed": 0}),
    ("leading zero", "79-44=035\n35+15=50", False, {"ppf": 0, "laf": 1, "trn": 1, "parsed": 0.5}),
    ("negative", "44-79=35\n35+15=50", False, {"ppf": 0, "laf": 0.5, "trn": 1, "parsed": 1}),
    ("a mask left", "79-44=35\n35+15=5_", False, {"ppf": 0.5, "laf": 1, "trn": 0.3, "parsed": 0.5}),
]


@pytest.mark.parametrize(("chain", "valid", "figures"), [case[1:] for case in CHAINS], ids=[case[0] for case in CHAINS])
def test_hand_worked_chains(chain: str, valid: bool, figures: dict) -> None:
    assert judged(THREE, "15,44,79=50", chain)[:2] == (valid, figures)


def test_the_pool_is_a_multiset() -> None:
    assert judged(THREE, "7,7,2=28", "7+7=14\n14*2=28")[0]
    assert not judged(THREE, "7,8,2=28", "7+7=14\n14*2=28")[0]
    assert "there is no 7 left" in judged(THREE, "7,8,2=28", "7+7=14\n14*2=28")[2]


def test_a_changed_prompt_is_not_valid() -> None:
    problem = THREE.encode("15,44,79=50")
    answer = [SYMBOLS.index(c) for c in "15,45,79=50\n79-44=35\n35+15=50".ljust(48, "\n")]
    verdict = THREE.check(problem, answer)
    assert not verdict.valid
    assert "prompt" in verdict.reason


@pytest.mark.parametrize(
    ("a", "operator", "b", "result"),
    [
        *[(3, "+", 4, 7), (4, "-", 3, 1), (3, "*", 4, 12), (12, "/", 4, 3)],
        *[(3, "-", 4, None), (4, "-", 4, None), (13, "/", 4, None), (4, "/", 0, None), (0, "*", 4, None)],
    ],
)
def test_operations_give_positive_whole_numbers(a: int, operator: str, b: int, result: int | None) -> None:
    assert apply(a, operator, b) == result


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_generated_chains_are_right_and_fit(count: int) -> None:
    task = Countdown(count)
    tokens, region = task.batch(200, np.random.default_rng(0))
    assert tokens.shape == (200, LENGTHS[count])
    for row, open_ in zip(tokens.tolist(), region, strict=True):
        problem = [task.mask if masked else token for token, masked in zip(row, open_, strict=True)]
        assert SYMBOLS[problem[open_.argmax() - 1]] == "\n"  # the prompt ends with its newline
        assert task.check(problem, row).valid
        assert task.mask not in row
        numbers, _ = task.read(task.decode(row).partition("\n")[0])
        assert all(1 <= number <= 100 for number in numbers)


def test_about_half_of_the_chains_of_five_fit() -> None:
    assert Countdown(5).fit_rate(np.random.default_rng(0)) == pytest.approx(0.46, abs=0.05)


def test_another_order_of_the_numbers_is_held_out_together() -> None:
    def row(prompt: str) -> list[int]:
        return THREE.encode(prompt)

    rows = np.array([row(",".join(order) + "=50") for order in itertools.permutations(["15", "44", "79"])])
    assert len(set(THREE.held_out(rows).tolist())) == 1
    tokens, _ = THREE.batch(3000, np.random.default_rng(0))
    assert THREE.held_out(tokens).mean() == pytest.approx(1 / 16, abs=0.015)


def reachable(pool: list[int]) -> set[int]:
    """Every number that all of the pool can make, by brute force."""
    if len(pool) == 1:
        return {pool[0]}
    found = set()
    for i, j in itertools.permutations(range(len(pool)), 2):
        rest = [n for k, n in enumerate(pool) if k not in (i, j)]
        for operator in "+-*/":
            result = apply(pool[i], operator, pool[j])
            if result is not None:
                found |= reachable([*rest, result])
    return found


def test_oracle_against_brute_force() -> None:
    pool = [3, 7, 25]
    targets = reachable(pool)
    for target in range(1, 600):
        chain = THREE.oracle(f"3,7,25={target}")
        assert (chain is not None) == (target in targets)
        if chain:
            steps = follow(pool, chain)
            assert not any(step.failure for step in steps)
            assert steps[-1].pool == (target,)
    assert FOUR.oracle("1,1,1,1=1000") is None


def every_chain(pool: list[int], target: int) -> list[list[str]]:
    if len(pool) == 1:
        return [[]] if pool == [target] else []
    chains = []
    for i, j in itertools.permutations(range(len(pool)), 2):
        for operator in "+-*/":
            result = apply(pool[i], operator, pool[j])
            if result is not None:
                rest = [n for k, n in enumerate(pool) if k not in (i, j)]
                line = f"{pool[i]}{operator}{pool[j]}={result}"
                chains += [[line, *more] for more in every_chain([*rest, result], target)]
    return chains


def test_smallest_chain_against_brute_force() -> None:
    rng = np.random.default_rng(1)
    for task in (THREE, FOUR):
        tokens, _ = task.batch(12, rng)
        for row in task.smallest_chains(tokens).tolist():
            prompt, *lines = task.decode(row).split("\n")
            numbers, target = task.read(prompt)
            sums = [sum(int(line.split("=")[1]) for line in chain) for chain in every_chain(numbers, target)]
            assert sum(int(line.split("=")[1]) for line in lines) == min(sums)
            assert task.check(task.encode(prompt), row).valid
            for line in lines:
                a, b = re.split(r"[+\-*/=]", line)[:2]
                assert int(a) >= int(b)


def test_smallest_chains_keep_prompt_and_length() -> None:
    """With five numbers the first step stays as it was drawn: a whole search would hold the trainer up."""
    five = Countdown(5)
    tokens, _ = five.batch(40, np.random.default_rng(2))
    rows = five.smallest_chains(tokens)
    assert rows.shape == tokens.shape
    assert (rows != tokens).any(axis=1).mean() > 0.8
    for before, after in zip(map(five.decode, tokens.tolist()), map(five.decode, rows.tolist()), strict=True):
        prompt = before.split("\n")[0]
        assert after.split("\n")[0] == prompt
        assert before.split("\n")[1].split("=")[1] == after.split("\n")[1].split("=")[1]
        ids = [SYMBOLS.index(symbol) for symbol in after.ljust(five.length, "\n")]
        assert five.check(five.encode(prompt), ids).valid


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("15,44=50", "2 numbers in '15,44=50'; countdown-3 takes 3"),
        ("hello", "not a Countdown problem; write it like"),
        ("15,44,79", "not a Countdown problem"),
        ("15,44,79=", "not a Countdown problem"),
        ("15,44,-7=50", "not a Countdown problem"),
        ("15,44,790=50", "the number 790 is not within 1 to 100"),
        ("0,44,79=50", "the number 0 is not within"),
        ("15,44,79=0", "the target 0"),
        ("15,44,79=99999999999", "the target 99999999999"),
        ("", "not a Countdown problem"),
    ],
)
def test_bad_problems_are_explained(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        THREE.encode(text)


@given(st.text(max_size=100) | st.text("0123456789,= +-_", max_size=60))
def test_any_text_is_a_problem_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        tokens = THREE.encode(text)
        assert len(tokens) == 48
        assert THREE.mask in tokens


@given(st.text("".join(SYMBOLS), max_size=36))
def test_any_answer_can_be_judged(chain: str) -> None:
    valid, figures, reason = judged(THREE, "15,44,79=50", chain)
    assert reason
    assert 0 <= figures["ppf"] <= 1
    assert 0 <= figures["laf"] <= 1
    assert 0 <= figures["parsed"] <= 1
    assert figures["trn"] >= 0
    assert not valid or (figures["ppf"] == 1 and figures["trn"] == 0)


@given(st.lists(st.integers(1, 100), min_size=3, max_size=3), st.integers(1, 10**9))
def test_encode_and_decode(numbers: list[int], target: int) -> None:
    line = f"{','.join(map(str, numbers))}={target}"
    largest_first = f"{','.join(map(str, sorted(numbers, reverse=True)))}={target}"
    assert THREE.decode(THREE.encode(line)).rstrip("_") == largest_first + "\n"
    assert THREE.encode(f" {line} \n") == THREE.encode(line) == THREE.encode(largest_first)


def test_a_problem_is_the_same_in_whatever_order_its_numbers_are_named() -> None:
    rows, region = FOUR.batch(200, np.random.default_rng(3))
    mixed = FOUR.in_any_order(rows, np.random.default_rng(4))
    assert (rows != mixed).any(axis=1).mean() > 0.8
    assert (np.where(region, rows, 0) == np.where(region, mixed, 0)).all()  # the chains stay
    for row, other in zip(rows.tolist(), mixed.tolist(), strict=True):
        prompt = FOUR.decode(other).partition("\n")[0]
        assert FOUR.encode(prompt)[: len(prompt)] == row[: len(prompt)]
    # Equally small chains are a choice, which must not depend on the order either.
    chains, others = FOUR.smallest_chains(rows), FOUR.smallest_chains(mixed)
    assert (np.where(region, chains, 0) == np.where(region, others, 0)).all()


@pytest.mark.parametrize(("own", "counts"), [(2, (2,)), (3, (3,)), (4, (3, 4, 5)), (5, (3, 4, 5))])
def test_one_model_for_several_counts_of_numbers(own: int, counts: tuple[int, ...]) -> None:
    task = Countdown(own)
    assert task.counts == counts
    for count in range(1, 7):
        problem = ",".join(["7"] * count) + "=49"
        if count in counts:
            assert task_for(task, problem).name == f"countdown-{count}"
            assert len(task_for(task, problem).encode(problem)) <= task.length
        else:
            message = rf"{count} numbers? in .*; a model for countdown-{own} takes {counts[0]}"
            with pytest.raises(ValueError, match=message):
                task_for(task, problem)


def test_another_task_must_fit_the_model() -> None:
    assert task_within(Countdown(4), "countdown-3").length == 48
    assert task_within(Countdown(5), "countdown-4").name == "countdown-4"
    for own, name in (("countdown-3", "countdown-4"), ("sudoku-9x9", "sudoku-4x4"), ("countdown-4", "text8")):
        with pytest.raises(ValueError, match=f"a model for {own} cannot do {name}"):
            task_within(get_task(own), name)
    with pytest.raises(ValueError, match="'chess' is unknown"):
        task_within(Countdown(4), "chess")


PLAYER = Path(__file__).resolve().parent.parent / "assets" / "player" / "player.js"
LINES = [
    "15+44=59", "44-15=29", "15-44=29", "15*44=660", "44/15=2", "44/44=1", "44/0=0", "0*15=0", "15+44=60", "7+8=15",
    "015+44=59", "15+44", "", "15+44=59=59", "99999999999999999999+1=100000000000000000000", "44+44=88", "44-44=0",
]  # fmt: skip


@pytest.mark.skipif(
    shutil.which("node") is None, reason="test_countdown asks the player's judge in Node, which is not here"
)
def test_the_player_judges_as_the_checker_does(tmp_path: Path) -> None:
    (tmp_path / "player.mjs").write_text(PLAYER.read_text(encoding="utf-8"), encoding="utf-8")
    pool = [15, 44, 79]
    script = """
        import { judge } from "./player.mjs";
        const say = ({ pool, reason }) => [pool.map(String), reason];
        const both = (line) => [...say(judge(line, POOL.map(BigInt))), judge(line, null).reason];
        console.log(JSON.stringify(LINES.map(both)));
    """.replace("LINES", json.dumps(LINES)).replace("POOL", json.dumps(pool))
    (tmp_path / "ask.mjs").write_text(script)
    done = subprocess.run(["node", "ask.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True)
    for line, (left, reason, later) in zip(LINES, json.loads(done.stdout), strict=True):
        (step,), (_, after_a_failure) = follow(pool, [line]), follow(pool, ["", line])
        assert (left, reason) == ([str(number) for number in step.pool], step.failure or ""), line
        assert (later or "an earlier step failed") == after_a_failure.failure, line
