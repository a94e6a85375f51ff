"""The sampler on fake models, whose every number is known."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rmdm.sampler import ORDERS, Decoding, Frame, pick, sample, share, solve
from tests.conftest import tiny_model

MASK, VOCAB = 0, 5
Denoise = Callable[[Tensor, int], Iterator[Tensor]]


def fake(logits: Tensor) -> Denoise:
    """The same logits (N, V) for everyone, after every loop."""

    def denoise(tokens: Tensor, loops: int) -> Iterator[Tensor]:
        for _ in range(loops):
            yield logits.expand(len(tokens), *logits.shape).clone()

    return denoise


def sharp(strength: list[float], token: int = 1) -> Tensor:
    """Logits that want `token` everywhere, the more strongly the larger `strength`."""
    logits = torch.zeros(len(strength), VOCAB)
    logits[:, token] = torch.tensor(strength)
    return logits


def frames(denoise: Denoise, tokens: list[list[int]], every_loop: bool = False, **options: object) -> list[Frame]:
    decoding = Decoding(**options)  # type: ignore[arg-type]
    return list(sample(denoise, torch.tensor(tokens), MASK, decoding, every_loop=every_loop, distribution=True))


@given(st.integers(0, 100), st.integers(1, 120))
def test_shares_are_even_and_the_first_get_the_rest(masks: int, steps: int) -> None:
    split, left = [], masks
    for step in range(steps):
        split.append(share(torch.tensor([left]), steps - step).item())
        left -= split[-1]
    assert left == 0
    assert max(split) - min(split) <= 1
    assert split == sorted(split, reverse=True)


@pytest.mark.parametrize(
    ("masks", "steps", "wanted"), [(7, 3, [3, 2, 2]), (4, 2, [2, 2]), (3, 10, [1, 1, 1]), (5, 1, [5])]
)
def test_commits_follow_the_even_split_and_empty_steps_are_skipped(masks: int, steps: int, wanted: list[int]) -> None:
    run = frames(fake(sharp([1.0] * 8)), [[0] * masks + [2] * (8 - masks)], steps=steps, loops=4)
    assert [int(frame.committed.sum()) for frame in run] == wanted
    assert run[-1].passes.tolist() == [4 * len(wanted)]
    assert [frame.step for frame in run] == list(range(1, len(wanted) + 1))


def test_the_surest_come_first_and_ties_go_to_the_lower_index() -> None:
    run = frames(fake(sharp([1.0, 3.0, 2.0, 3.0])), [[0, 0, 0, 0]], steps=4, loops=1)
    assert [frame.committed[0].nonzero().item() for frame in run] == [1, 3, 2, 0]


def test_pick_ranks_masked_positions_only() -> None:
    score = torch.tensor([[5.0, 1.0, 1.0, 9.0]])
    masked = torch.tensor([[False, True, True, True]])
    assert pick(score, masked, torch.tensor([2])).tolist() == [[False, True, False, True]]
    assert pick(score, masked, torch.tensor([9])).tolist() == masked.tolist()
    assert not pick(score, masked, torch.tensor([0])).any()


def test_orders_differ_where_they_should() -> None:
    p = torch.tensor([[0.0, 0.50, 0.49, 0.01, 0.0], [0.0, 0.40, 0.20, 0.20, 0.20], [0.0, 0.45, 0.45, 0.05, 0.05]])
    first = {}
    for order in ("confidence", "margin", "entropy"):
        run = frames(fake((p + 1e-9).log()), [[0, 0, 0]], steps=3, loops=1, order=order)
        first[order] = run[0].committed[0].nonzero().item()
    entropy = [-(row[row > 0] * row[row > 0].log()).sum().item() for row in p]
    assert first == {"confidence": 0, "margin": 1, "entropy": entropy.index(min(entropy))}


def test_random_order_is_uniform_and_set_by_the_seed() -> None:
    def first(seed: int) -> list[int]:
        run = frames(fake(sharp([3.0, 2.0, 1.0])), [[0, 0, 0]] * 300, steps=3, loops=1, order="random", seed=seed)
        return run[0].committed.long().argmax(dim=1).tolist()

    assert first(5) == first(5)
    assert first(5) != first(6)
    assert all(70 < first(5).count(place) < 130 for place in range(3))


def test_threshold_commits_all_above_and_at_least_one() -> None:
    run = frames(fake(sharp([9.0, 9.0, 0.5, 0.1])), [[0] * 4], schedule="threshold", threshold=0.9, loops=2)
    assert [frame.committed[0].nonzero()[:, 0].tolist() for frame in run] == [[0, 1], [2], [3]]
    assert run[-1].passes.tolist() == [6]


@pytest.mark.parametrize(("steps", "wanted"), [(1, [6]), (2, [3, 3]), (3, [2, 2, 2]), (4, [2, 2, 1, 1])])
def test_a_threshold_keeps_the_pace_that_the_steps_need(steps: int, wanted: list[int]) -> None:
    unsure = frames(fake(sharp([0.1] * 6)), [[0] * 6], schedule="threshold", steps=steps, loops=2)
    assert [int(frame.committed.sum()) for frame in unsure] == wanted
    half = frames(fake(sharp([9.0] * 3 + [0.1] * 3)), [[0] * 6], schedule="threshold", steps=steps, loops=2)
    assert [int(frame.committed.sum()) for frame in half] == {1: [6], 2: [3, 3], 3: [3, 2, 1], 4: [3, 1, 1, 1]}[steps]


def test_the_mask_is_never_produced_and_given_tokens_never_change() -> None:
    logits = torch.zeros(6, VOCAB)
    logits[:, MASK] = 100.0
    for options in ({}, {"temperature": 2.0}, {"schedule": "threshold"}, {"order": "random"}, {"loops": "auto"}):
        for frame in frames(fake(logits), [[0, 3, 0, 4, 0, 0]], every_loop=True, **{"steps": 2, "loops": 2, **options}):
            assert frame.tokens[0, [1, 3]].tolist() == [3, 4]
            assert frame.guess[0, [1, 3]].tolist() == [3, 4]
            assert (frame.guess != MASK).all()
            assert frame.distribution is not None
            assert frame.distribution[..., MASK].max() == 0
        assert (frame.tokens != MASK).all()


def test_finished_samples_drop_out_and_keep_their_tokens() -> None:
    seen = []

    def denoise(tokens: Tensor, loops: int) -> Iterator[Tensor]:
        seen.append(len(tokens))
        yield sharp([1.0, 1.0, 1.0]).expand(len(tokens), 3, VOCAB)

    run = frames(denoise, [[0, 2, 2], [0, 0, 0], [2, 2, 2]], steps=3, loops=1)
    assert seen == [2, 1, 1]
    assert run[-1].passes.tolist() == [1, 3, 0]
    assert run[-1].tokens.tolist() == [[1, 2, 2], [1, 1, 1], [2, 2, 2]]


def test_nothing_to_do_gives_no_frame() -> None:
    tokens = torch.tensor([[1, 2]])
    assert not list(sample(fake(sharp([1.0, 1.0])), tokens, MASK, Decoding()))
    answer, passes = solve(fake(sharp([1.0, 1.0])), tokens, MASK, Decoding())
    assert answer.tolist() == [[1, 2]]
    assert passes.tolist() == [0]


def test_every_loop_has_a_frame_and_only_the_last_of_a_step_commits() -> None:
    many = frames(fake(sharp([2.0, 1.0])), [[0, 0]], every_loop=True, steps=2, loops=3)
    assert [(frame.step, frame.loop) for frame in many] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    assert [bool(frame.committed.any()) for frame in many] == [False, False, True] * 2
    assert [frame.passes.item() for frame in many] == [1, 2, 3, 4, 5, 6]
    few = frames(fake(sharp([2.0, 1.0])), [[0, 0]], steps=2, loops=3)
    for a, b in zip([many[2], many[5]], few, strict=True):
        assert torch.equal(a.tokens, b.tokens)
        assert torch.equal(a.probability, b.probability)


def test_frames_are_snapshots() -> None:
    run = frames(fake(sharp([2.0, 1.0])), [[0, 0]], steps=2, loops=1)
    assert run[0].tokens.tolist() == [[1, 0]]
    assert run[1].tokens.tolist() == [[1, 1]]


def test_probability_is_softmax_at_temperature_zero_and_of_scaled_logits_otherwise() -> None:
    logits = torch.tensor([[7.0, 1.0, 2.0, 3.0, 4.0]])
    (greedy,) = frames(fake(logits), [[0]], steps=1, loops=1)
    assert greedy.guess.item() == 4
    assert greedy.probability.item() == pytest.approx(torch.softmax(torch.tensor([1.0, 2, 3, 4]), 0)[3].item())
    (warm,) = frames(fake(logits), [[0]], steps=1, loops=1, temperature=2.0)
    assert warm.probability.item() == pytest.approx(torch.softmax(torch.tensor([1.0, 2, 3, 4]) / 2, 0)[3].item())


def test_draws_follow_the_distribution_and_top_k_cuts_it() -> None:
    logits = torch.log(torch.tensor([[1e-9, 0.1, 0.2, 0.3, 0.4]]))
    tokens = torch.zeros(4000, 1, dtype=torch.long)
    answer, _ = solve(fake(logits), tokens, MASK, Decoding(steps=1, loops=1, temperature=1.0))
    assert (torch.bincount(answer[:, 0], minlength=5) / 4000).tolist() == pytest.approx(
        [0, 0.1, 0.2, 0.3, 0.4], abs=0.03
    )
    answer, _ = solve(fake(logits), tokens, MASK, Decoding(steps=1, loops=1, temperature=1.0, top_k=2))
    assert (torch.bincount(answer[:, 0], minlength=5) / 4000).tolist() == pytest.approx(
        [0, 0, 0, 3 / 7, 4 / 7], abs=0.03
    )


# --- loops ------------------------------------------------------------------------------------------------------------


def settling(after: list[int]) -> Denoise:
    """Row i, known by its first token, changes its mind in every loop until loop after[i], and then stays."""

    def denoise(tokens: Tensor, loops: int) -> Iterator[Tensor]:
        for loop in range(1, loops + 1):
            logits = torch.zeros(len(tokens), tokens.shape[1], VOCAB)
            for row, name in enumerate(tokens[:, 0].tolist()):
                logits[row, :, 1 + min(loop, after[name - 1]) % 4] = 5.0
            yield logits

    return denoise


def test_auto_stops_each_sample_when_it_has_settled() -> None:
    run = frames(settling([1, 3, 50]), [[1, 0], [2, 0], [3, 0]], steps=1, loops="auto", max_loops=8)
    assert run[-1].passes.tolist() == [2, 4, 8]  # one loop more, to see that nothing changes
    assert run[-1].tokens[:, 1].tolist() == [2, 4, 1]


def test_auto_alone_is_auto_in_a_batch() -> None:
    together = frames(settling([1, 3, 50]), [[1, 0], [2, 0], [3, 0]], steps=1, loops="auto", max_loops=8)[-1]
    for row in range(3):
        alone = frames(settling([1, 3, 50]), [[row + 1, 0]], steps=1, loops="auto", max_loops=8)[-1]
        assert torch.equal(alone.tokens[0], together.tokens[row])
        assert alone.passes[0] == together.passes[row]
        assert torch.equal(alone.probability[0], together.probability[row])


def test_auto_waits_for_probabilities_too() -> None:
    def sharpening(tokens: Tensor, loops: int) -> Iterator[Tensor]:
        for loop in range(loops):
            yield sharp([min(loop, 4.0)]).expand(len(tokens), 1, VOCAB)

    assert frames(sharpening, [[0]], steps=1, loops="auto", max_loops=20)[-1].passes.item() == 6


@pytest.mark.parametrize("loops", [6, "auto"])
@pytest.mark.parametrize("every_loop", [False, True])
def test_an_unrolled_graph_that_yields_once_counts_all_its_loops(loops: int | str, every_loop: bool) -> None:
    def unrolled(tokens: Tensor, loops: int) -> Iterator[Tensor]:
        yield sharp([3.0, 1.0], token=2).expand(len(tokens), 2, VOCAB)

    run = frames(unrolled, [[0, 0]], every_loop=every_loop, steps=2, loops=loops, max_loops=6)
    assert run[-1].passes.tolist() == [12]
    assert run[-1].tokens.tolist() == [[2, 2]]
    assert run[0].guess.tolist() == [[2, 2]]  # also where nothing was committed yet
    assert run[0].probability[0, 1].item() == pytest.approx(torch.softmax(torch.tensor([1.0, 0, 0, 0]), 0)[0].item())
    assert run[0].distribution is not None
    assert [frame.loop for frame in run] == [6, 6]


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 2, "order": "random"},
        {"loops": "auto"},
        {"schedule": "threshold"},
    ],
)
def test_the_batch_never_changes_the_answer(options: dict) -> None:
    model = tiny_model()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, (7, 16), generator=generator) * (torch.rand(7, 16, generator=generator) < 0.4)
    decoding = Decoding(**{"steps": 5, "loops": 3, "seed": 11, "max_loops": 6, **options})
    whole, passes = solve(model, tokens, MASK, decoding)
    for row in range(7):
        alone, used = solve(model, tokens[row : row + 1], MASK, decoding, indices=[row])
        assert torch.equal(alone[0], whole[row])
        assert used[0] == passes[row]
    order = [4, 1, 6]
    some, _ = solve(model, tokens[order], MASK, decoding, indices=order)
    assert torch.equal(some, whole[order])


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 4), min_size=16, max_size=16),
    st.integers(1, 40),
    st.sampled_from(sorted(ORDERS)),
    st.sampled_from([0.0, 1.0]),
)
def test_any_problem_is_filled_and_its_clues_kept(row: list[int], steps: int, order: str, temperature: float) -> None:
    tokens = torch.tensor([row])
    answer, passes = solve(
        tiny_model(), tokens, MASK, Decoding(steps=steps, loops=2, order=order, temperature=temperature)
    )
    assert (answer != MASK).all()
    assert torch.equal(answer[tokens != MASK], tokens[tokens != MASK])
    assert passes.item() == 2 * min(steps, row.count(0))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"steps": 0}, "steps 0"),
        ({"loops": "many"}, "neither 'auto' nor"),
        ({"loops": 0}, "loops 0"),
        ({"order": "best"}, "choose from confidence, margin, entropy, random"),
        ({"schedule": "all"}, "choose from steps, threshold"),
        ({"threshold": 1.5}, "threshold 1.5"),
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_k": -1}, "top_k -1"),
    ],
)
def test_bad_settings_are_named(bad: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Decoding(**bad)
