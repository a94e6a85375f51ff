"""What is trained: the model with its loss as one call, the average of its weights, and a warm start."""

import torch
from torch import Tensor, nn

from rmdm import checkpoint
from rmdm.diffusion import Denoise, loop_weights, masked_cross_entropy
from rmdm.model import Denoiser
from rmdm.sampler import log_probabilities, pick
from rmdm.tasks import get_task
from train.data import Batch
from train.devices import Place, fast_bfloat16
from train.grow import widened
from train.recipes import Recipe


class Trainee(nn.Module):
    """A module of its own, since that is what DistributedDataParallel wraps."""

    def __init__(self, model: Denoiser, recipe: Recipe) -> None:
        super().__init__()
        self.model, self.recipe = model, recipe
        self.mask = get_task(recipe.task).mask
        self.mixed = not recipe.float32 and fast_bfloat16(next(model.parameters()).device)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, and the cross entropy after each loop (L,)."""
        recipe = self.recipe
        with torch.autocast(batch.noisy.device.type, torch.bfloat16, enabled=self.mixed):
            if batch.given is not None:
                batch = with_given(batch, certainty(self.model, batch.noisy, batch.loops, self.mask))
            predictions = self.model(
                batch.noisy, batch.loops, gradient_loops=recipe.gradient_loops, save_memory=recipe.save_memory
            )
            losses = torch.stack([masked_cross_entropy(logits, batch.targets, batch.masked) for logits in predictions])
        weights = loop_weights(recipe.loss, batch.loops, recipe.alpha, recipe.last).to(losses.device)
        return (weights * losses).sum(), losses.detach()


def with_given(batch: Batch, score: Tensor) -> Batch:
    """The batch with each row's share of its masks filled in, those with the best score (B, N) first.

    At least one token of a row stays masked, since a share is below 1.
    """
    assert batch.given is not None
    masked = batch.masked.cpu()
    picked = pick(score, masked, (batch.given.cpu() * masked.sum(dim=1)).long()).to(batch.noisy.device)
    noisy = torch.where(picked, batch.targets, batch.noisy)
    return Batch(noisy, batch.targets, batch.masked & ~picked, batch.loops)


@torch.no_grad()
def certainty(denoise: Denoise, tokens: Tensor, loops: int, mask: int) -> Tensor:
    """How sure the model is of each token (B, N).

    A sampler commits what it is surest of and goes on from there: easy tokens, not random ones, which give much away.
    """
    *_, logits = denoise(tokens, loops)
    return log_probabilities(logits, mask, 0.0).amax(dim=-1)


class Average:
    """The moving average of the weights that is judged and kept; with decay 0, the weights themselves."""

    def __init__(self, model: Denoiser, decay: float) -> None:
        self.model, self.decay = model, decay
        self.tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()} if decay else {}

    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))  # short at first, so that the random start is forgotten
        for name, tensor in self.model.state_dict().items() if self.decay else ():
            self.tensors[name].lerp_(tensor, 1 - decay)

    def denoiser(self) -> Denoiser:
        with torch.random.fork_rng(devices=[]):
            kept = Denoiser(self.model.config).to(next(self.model.parameters()).device)
        kept.load_state_dict(self.tensors or self.model.state_dict())
        return kept.eval().requires_grad_(False)


def own_rows(batch: Batch, place: Place) -> Batch:
    """This process's rows of a global batch."""

    def own(rows: Tensor) -> Tensor:
        return rows[place.rank :: place.world].to(place.device)

    given = None if batch.given is None else own(batch.given)
    return Batch(own(batch.noisy), own(batch.targets), own(batch.masked), batch.loops, given)


def warm_start(model: Denoiser, source: str) -> None:
    """Takes over every tensor of the same name and shape; what another task shapes differently starts anew.

    A narrower model, or one with fewer kinds of heads, grows.
    """
    start = checkpoint.load(source)
    if not isinstance(start, Denoiser):
        raise ValueError(f"--init {source}: {start.backend} has no weights to go on from; give a checkpoint")
    if (start.config.width, start.config.kinds) != (model.config.width, model.config.kinds):
        try:
            model.load_state_dict(widened(start, model))
        except ValueError as error:
            raise ValueError(f"--init {source}: {error}") from None
        return
    own, given = model.state_dict(), start.state_dict()
    fitting = {name: given[name] for name in own if name in given and given[name].shape == own[name].shape}
    model.load_state_dict(own | fitting)
