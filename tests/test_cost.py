import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from rmdm.cost import forward_flops, peak_gflops, training_flops
from tests.conftest import tiny_model


@pytest.mark.parametrize(
    ("name", "loops", "attention"),
    [
        ("sudoku-4x4", 1, "full"),
        ("sudoku-9x9", 3, "full"),
        ("sudoku-9x9", 3, "units"),
        ("sudoku-6x6", 2, "lines"),
        ("countdown-3", 2, "full"),
    ],
)
def test_operations_against_torchs_own_counter(name: str, loops: int, attention: str) -> None:
    shape = {"heads": 6, "width": 48} if attention == "lines" else {}
    model = tiny_model(name, layers=2, step_embedding="none", attention=attention, **shape)
    tokens = torch.zeros(2, model.config.length, dtype=torch.long)
    # The counter does not know the CPU's fused attention.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        list(model(tokens, loops))
    assert counter.get_total_flops() == 2 * forward_flops(model.config, loops)


def test_a_training_step_costs_three_forward_passes_or_less() -> None:
    config = tiny_model().config
    assert training_flops(config, 8) == 3 * forward_flops(config, 8)
    assert training_flops(config, 8, gradient_loops=2) == forward_flops(config, 8) + 2 * forward_flops(config, 2)


def test_the_peak_is_measured() -> None:
    assert peak_gflops(seconds=0.05, size=128) > 0.05
