import pytest
import torch

import rmdm
from rmdm.model import Denoiser
from rmdm.tasks import get_task
from tests.conftest import tiny_config, tiny_model
from train.grow import widened
from train.trainee import warm_start


@pytest.mark.parametrize(
    ("name", "wider"),
    [
        ("sudoku-4x4", {"attention": "units", "heads": 8, "width": 64}),
        ("sudoku-4x4", {"attention": "lines", "heads": 6, "width": 48}),
        ("sudoku-9x9", {"attention": "lines", "heads": 12, "width": 96}),
        ("countdown-3", {"places": 7, "heads": 6, "width": 48}),
        ("countdown-3", {"values": True, "heads": 6, "width": 48}),
        ("countdown-3", {"neighbours": 2, "heads": 6, "width": 48}),
        ("text8", {"step_embedding": "none", "heads": 5, "width": 40}),
    ],
)
def test_a_grown_model_says_the_same_and_all_of_it_learns(name: str, wider: dict) -> None:
    same = {key: wider[key] for key in ("places", "values", "neighbours", "step_embedding") if key in wider}
    start = tiny_model(name, layers=2, attention="units" if "attention" in wider else "full", **same)
    model = tiny_model(name, seed=1, layers=2, **wider)
    model.load_state_dict(widened(start, model))
    tokens = torch.randint(start.config.vocab, (3, start.config.length), generator=torch.Generator().manual_seed(2))
    for before, after in zip(start(tokens, 4), model(tokens, 4), strict=True):
        torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)

    # The second step reaches the new weights behind those that start at zero: none of the new room is dead.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        torch.stack(list(model(tokens, 3))).square().mean().backward()
        optimizer.step()
    old = start.state_dict()
    for key, parameter in model.named_parameters():
        new = torch.ones_like(parameter, dtype=torch.bool)
        new[tuple(slice(side) for side in old[key].shape)] = False
        assert parameter.grad is not None
        if new.any() and key != "place_embed.weight":  # random tokens make few numbers
            learning = (parameter.grad[new] != 0).float().mean()
            assert learning > 0.5, (key, learning)  # a ReLU that is off has no gradient


@pytest.mark.parametrize(
    ("wider", "wanted"),
    [
        ({"width": 16}, "4 heads of width 8 .* do not fit into 4 of width 4"),
        ({"width": 64}, "4 heads of width 8 .* do not fit into 4 of width 16"),
        ({"width": 64, "heads": 8, "layers": 3}, "not with another layers"),
        ({"width": 64, "heads": 8, "attention": "full"}, r"\('full'\)"),
    ],
)
def test_what_cannot_grow_says_why(wider: dict, wanted: str, tmp_path) -> None:
    rmdm.save(tiny_model(attention="units"), tmp_path / "narrow")
    with pytest.raises(ValueError, match=wanted) as error:
        warm_start(tiny_model(**{"attention": "units", **wider}), str(tmp_path / "narrow"))
    assert str(error.value).startswith(f"--init {tmp_path / 'narrow'}")


def test_a_warm_start_grows_a_narrower_checkpoint(tmp_path) -> None:
    start = tiny_model(attention="units")
    rmdm.save(start, tmp_path / "narrow")
    model = tiny_model(attention="lines", heads=6, width=48)
    warm_start(model, str(tmp_path / "narrow"))
    tokens = torch.zeros(1, 16, dtype=torch.long)
    torch.testing.assert_close(list(model(tokens, 2))[-1], list(start(tokens, 2))[-1], atol=1e-4, rtol=1e-4)


def test_a_model_learns_values_without_forgetting(tmp_path) -> None:
    start = tiny_model("countdown-3")
    rmdm.save(start, tmp_path / "plain")
    model = Denoiser(tiny_config("countdown-3", values=True))
    warm_start(model, str(tmp_path / "plain"))
    tokens = torch.tensor([get_task("countdown-3").encode("15,44,79=50")])
    torch.testing.assert_close(list(model(tokens, 2))[-1], list(start(tokens, 2))[-1])
    list(model(tokens, 2))[-1].square().mean().backward()
    assert model.value_project.weight.grad is not None
    assert model.value_project.weight.grad.any()
