"""Masking, losses and the likelihood bound, each against a formulation with plain loops."""

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rmdm.diffusion import LOSSES, bits_per_character, loop_weights, mask_tokens, masked_cross_entropy


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_masking_has_the_rate_and_stays_in_the_region() -> None:
    tokens = torch.ones(2000, 50, dtype=torch.long)
    region = torch.arange(50).expand(2000, 50) >= 10
    noisy = mask_tokens(tokens, region, torch.linspace(0, 1, 2000), 0, seeded())
    masked = noisy == 0
    assert not masked[:, :10].any()
    assert masked[1000:1100, 10:].float().mean().item() == pytest.approx(0.525, abs=0.02)
    assert masked.any(dim=1).all()  # at least one, even at rate 0
    assert masked[0].sum() == 1
    assert torch.equal(noisy[~masked], tokens[~masked])


def test_the_one_forced_mask_is_uniform_over_the_region() -> None:
    tokens, region = torch.ones(8000, 8, dtype=torch.long), torch.tensor([[False] * 4 + [True] * 4]).expand(8000, 8)
    share = (mask_tokens(tokens, region, torch.zeros(8000), 0, seeded()) == 0).float().mean(dim=0)
    assert share[:4].sum() == 0
    assert share[4:].tolist() == pytest.approx([0.25] * 4, abs=0.02)


def test_masking_depends_on_its_generator_only() -> None:
    arguments = (torch.ones(4, 9, dtype=torch.long), torch.ones(4, 9, dtype=torch.bool), torch.full((4,), 0.5), 0)
    assert torch.equal(mask_tokens(*arguments, seeded(3)), mask_tokens(*arguments, seeded(3)))


def test_cross_entropy_is_a_mean_over_each_sample_then_over_samples() -> None:
    logits = torch.randn(3, 5, 4, generator=seeded())
    targets = torch.randint(4, (3, 5), generator=seeded())
    masked = torch.tensor([[1, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 1, 0, 0]]).bool()
    samples = []
    for b in range(3):
        losses = []
        for n in range(5):
            if masked[b, n]:
                z = logits[b, n].double()
                losses.append(-math.log(math.exp(z[targets[b, n]]) / sum(math.exp(v) for v in z)))
        samples.append(sum(losses) / len(losses))
    assert masked_cross_entropy(logits, targets, masked).item() == pytest.approx(sum(samples) / 3, rel=1e-5)


@pytest.mark.parametrize("loops", [1, 2, 5])
def test_loop_weights_are_the_papers_formulas(loops: int) -> None:
    alpha, k = 1.7, 3
    linear = [step**alpha for step in range(1, loops + 1)]
    exponential = [math.exp(alpha * (step - loops)) for step in range(1, loops + 1)]
    wanted = {
        "all": [1 / loops] * loops,
        "final": [0.0] * (loops - 1) + [1.0],
        "weighted-linear": [w / sum(linear) for w in linear],
        "weighted-exponential": [w / sum(exponential) for w in exponential],
        "truncated": [0.0] * max(loops - k, 0) + [1 / min(k, loops)] * min(k, loops),
    }
    assert set(wanted) == set(LOSSES)
    for name, weights in wanted.items():
        assert loop_weights(name, loops, alpha, k).tolist() == pytest.approx(weights, abs=1e-6)


def test_an_unknown_loss_lists_the_known() -> None:
    with pytest.raises(ValueError, match="choose from all, final"):
        loop_weights("mean", 3)


# --- the likelihood bound ---------------------------------------------------------------------------------------------

MASK, LENGTH, LETTERS = 2, 3, 2  # two letters and the mask, three places: small enough to enumerate
TABLE = torch.randn((LETTERS + 1) ** LENGTH, LENGTH, LETTERS + 1, generator=seeded(5))


def table_model(tokens: Tensor, loops: int) -> Iterator[Tensor]:
    """Any function of the noisy sequence will do: here a table of random logits. The first loop is to be ignored."""
    number = (tokens * torch.tensor([9, 3, 1])).sum(dim=1)
    yield torch.zeros(len(tokens), LENGTH, LETTERS + 1)
    yield TABLE[number]


def log_p(noisy: tuple[int, ...], place: int, letter: int) -> float:
    z = TABLE[noisy[0] * 9 + noisy[1] * 3 + noisy[2], place, :LETTERS].double()
    return (z[letter] - z.logsumexp(dim=0)).item()


def bound(x: tuple[int, ...]) -> float:
    """-ELBO in nats by enumeration: each set of m masks has the weight int t^(m-1) (1-t)^(n-m) dt = B(m, n-m+1)."""
    total = 0.0
    for masks in itertools.product([False, True], repeat=LENGTH):
        m = sum(masks)
        if m:
            weight = math.gamma(m) * math.gamma(LENGTH - m + 1) / math.gamma(LENGTH + 1)
            noisy = tuple(MASK if masked else letter for masked, letter in zip(masks, x, strict=True))
            total -= weight * sum(log_p(noisy, n, x[n]) for n in range(LENGTH) if masks[n])
    return total


def likelihood(x: tuple[int, ...]) -> float:
    """-log of the probability that x comes out when places are revealed one by one in a random order."""
    total = 0.0
    for order in itertools.permutations(range(LENGTH)):
        noisy, p = [MASK] * LENGTH, 1.0
        for n in order:
            p *= math.exp(log_p(tuple(noisy), n, x[n]))
            noisy[n] = x[n]
        total += p / math.factorial(LENGTH)
    return -math.log(total)


def test_bits_per_character_against_enumeration() -> None:
    for x in ((0, 0, 0), (1, 0, 1)):
        tokens = torch.tensor(x).expand(20_000, LENGTH)
        bits, error = bits_per_character(table_model, tokens, MASK, 2, seeded(), draws=4)
        wanted = bound(x) / LENGTH / math.log(2)
        assert error < 0.02
        assert abs(bits - wanted) < 4 * error


def test_the_bound_bounds_the_likelihood() -> None:
    gaps = [bound(x) - likelihood(x) for x in itertools.product(range(LETTERS), repeat=LENGTH)]
    assert min(gaps) > 0
    assert sum(math.exp(-likelihood(x)) for x in itertools.product(range(LETTERS), repeat=LENGTH)) == pytest.approx(1)


def test_a_uniform_model_needs_log2_of_the_letters() -> None:
    def uniform(tokens: Tensor, loops: int) -> Iterator[Tensor]:
        yield torch.zeros(*tokens.shape, 5)  # the mask's share must not count

    bits, error = bits_per_character(uniform, torch.zeros(4000, 64, dtype=torch.long), 4, 1, seeded())
    assert bits == pytest.approx(2, abs=4 * error)
    assert error > 0
