"""A trained model inside a wider one that computes the same: what was learned goes on with more room."""

import torch
from torch import Tensor

from rmdm.config import ModelConfig
from rmdm.model import Denoiser

# What these compute is added to the hidden states. Their new weights start at zero and all others at random: the model
# says what it said before, and every new weight has a gradient, now or after the first step.
ADDING = ("embed.weight", "attention.out.weight", "down.weight", "step_embed.second.weight", "value_project.weight")


def widened(start: Denoiser, model: Denoiser) -> dict[str, Tensor]:
    """The weights of `start` as a state for `model`, which is wider or has more kinds of heads."""
    channels, hidden = torch.arange(start.config.width), torch.arange(4 * start.config.width)
    heads = _places_of_heads(start.config, model.config)
    qkv = torch.cat([heads + part * model.config.width for part in range(3)])
    axes = {  # where the old rows, and the old columns of a matrix, stand in the new tensor
        "qkv.weight": (qkv, channels), "out.weight": (channels, heads), "up.weight": (hidden, channels),
        "down.weight": (channels, hidden), "head.weight": (None, channels), "embed.weight": (None, channels),
        "first.weight": (channels, None), "first.bias": (channels,), "second.weight": (channels, channels),
        "project.weight": (channels, None), "near_attention.weight": (None, channels),
        "near_mlp.weight": (None, channels),
    }  # fmt: skip
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, given in start.state_dict().items():
        if "norm" in name:
            # The new channels are zero, which lowers the root mean square that a norm divides by.
            state[name][channels] = given
            state[name] *= (start.config.width / model.config.width) ** 0.5
            continue
        if name.endswith(ADDING):
            state[name].zero_()
        places = next(places for ending, places in axes.items() if name.endswith(ending))
        whole = [
            torch.arange(side) if place is None else place for side, place in zip(given.shape, places, strict=True)
        ]
        state[name][torch.meshgrid(*whole, indexing="ij")] = given
    return state


def _places_of_heads(old: ModelConfig, new: ModelConfig) -> Tensor:
    """The channel, among all heads' in the new model, of each channel of the old heads."""
    size, own, each = old.width // old.heads, old.heads // len(old.kinds), new.heads // len(new.kinds)
    same = ("task", "vocab", "length", "grid", "layers", "step_embedding", "places", "neighbours")
    differ = [field for field in same if getattr(old, field) != getattr(new, field)]
    if differ:
        raise ValueError(f"a model grows in width and heads only, not with another {', '.join(differ)}")
    if old.step_embedding == "fixed":
        raise ValueError("a fixed step embedding has another pattern at another width; such a model cannot grow")
    if new.width < old.width or new.width // new.heads != size or own > each or not set(old.kinds) <= set(new.kinds):
        raise ValueError(
            f"{old.heads} heads of width {size} (attention {old.attention!r}) do not fit into {new.heads} of width"
            f" {new.width // new.heads} ({new.attention!r})"
        )
    heads = [new.kinds.index(kind) * each + number for kind in old.kinds for number in range(own)]
    return (torch.tensor(heads)[:, None] * size + torch.arange(size)).flatten()
