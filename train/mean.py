"""python -m train.mean A B --out FOLDER: the mean of the weights of checkpoints of one shape.

Two stages of one training, each cooled down, often lie on two sides of a better model.
"""

import argparse
import sys
from pathlib import Path

import torch

from rmdm import checkpoint
from rmdm.checkpoint import PretrainedDenoiser


def mean(sources: list[str]) -> PretrainedDenoiser:
    """As the first of them, but for the weights."""
    models = []
    for source in sources:
        model = checkpoint.load(source)
        if not isinstance(model, PretrainedDenoiser):
            raise ValueError(f"{source} runs on {model.backend} and has no weights to average; give a checkpoint")
        models.append(model)
    states = [model.state_dict() for model in models]
    shapes = [{name: tensor.shape for name, tensor in state.items()} for state in states]
    for source, model, shape in zip(sources, models, shapes, strict=True):
        if model.config.task != models[0].config.task or shape != shapes[0]:
            raise ValueError(f"{source} is not of the task and shape of {sources[0]}: there is no mean of them")
    models[0].load_state_dict({name: torch.stack([state[name] for state in states]).mean(dim=0) for name in shapes[0]})
    return models[0]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m train.mean", description=__doc__)
    parser.add_argument("checkpoints", nargs="+", help="two or more: shipped names, folders or hub ids")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the mean")
    options = parser.parse_args(arguments)
    try:
        if len(options.checkpoints) < 2:
            raise ValueError("give two checkpoints or more")
        if (options.out / checkpoint.WEIGHTS).exists():
            raise ValueError(f"{options.out} holds a checkpoint already; choose another --out")
        print(f"the mean of {len(options.checkpoints)} is in {checkpoint.save(mean(options.checkpoints), options.out)}")
    except (ValueError, OSError) as error:
        print(f"train.mean: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
