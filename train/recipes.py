"""Every way of training that has a name. Recipes derive from one another; what the paper leaves open is said."""

import dataclasses
import re
from dataclasses import dataclass, field, replace
from typing import Any, get_type_hints

from rmdm.config import ModelConfig
from rmdm.diffusion import loop_weights
from rmdm.recursion import LoopChoice
from rmdm.tasks import get_task

OPTIMIZERS = ("adamw", "muon")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    name: str
    about: str
    task: str
    # the model
    layers: int
    heads: int
    width: int
    attention: str = "full"
    step_embedding: str = "learned"
    places: int = 0
    values: bool = False
    neighbours: int = 0  # so many tokens to each side are mixed in before attention and MLP
    # the loops and the loss
    loops: LoopChoice = field(default_factory=LoopChoice)
    loss: str = "all"
    alpha: float = 1.0  # of the weighted losses
    last: int = 3  # of the truncated loss
    gradient_loops: int | None = None
    save_memory: bool = False
    # the data: rows of mask rates (share of the batch, lowest, highest), uniform in between
    mask_rates: tuple[tuple[float, float, float], ...] = ((1.0, 0.0, 1.0),)
    surest_given: float = 0.0  # share of the batches in which the tokens that the model is surest of are given
    puzzles: float = 0.0  # Sudoku: share of the batch that are minimal puzzles on their way to a solution
    open_bands: float = 0.0  # Sudoku: share of the rows in which some bands or stacks of blocks are given whole
    hard_puzzles: bool = False  # ... and of these only the ones that singles alone do not solve
    singles: float = 0.0  # ... and the share of them in which all that singles fill is given
    first_solution: bool = False  # Sudoku 4x4: of several solutions the first in reading order is the target
    smallest_chain: bool = False  # Countdown: of several chains the one with the smallest results is the target
    any_order: float = 0.0  # ... and the share of the rows with the numbers in any order, which --tries needs
    products: float = 0.0  # Countdown: of the chains without a product, the share that is drawn again
    whole_numbers: float = 0.0  # Countdown: share of the rows in which a number is masked whole or not at all
    equations: float = 0.0  # Countdown: share of the run, from its start, that turns from equations to chains
    equations_kept: float = 0.0  # ... and the share of batches that stay equations to its end
    others: tuple[str, ...] = ()  # Countdown: shorter or equally long tasks, each a batch in turn
    # the optimizer
    batch: int = 32  # examples an update, over all devices and accumulation steps
    accumulate: int = 1
    optimizer: str = "adamw"
    lr: float = 3e-4  # AdamW's, for all that Muon does not take
    muon_lr: float = 0.02
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    warmup: int = 2000
    min_lr_ratio: float = 0.1
    clip: float = 1.0
    average: float = 0.0  # decay of the average of weights that is evaluated and saved; 0: the weights themselves
    steps: int = 0  # the length of a run, where neither --steps nor --minutes says
    compile: bool = True  # the loop body, where the machine has a compiler
    float32: bool = False  # the model's products never in bfloat16, not even where the machine is built for them
    # evaluation while it runs
    eval_every: int = 1000
    eval_problems: int = 128
    eval_steps: int = 5
    eval_mask: float | None = None  # Sudoku: boards with so many random blanks, instead of minimal puzzles
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer {self.optimizer!r} is unknown; choose from {', '.join(OPTIMIZERS)}")
        if self.batch < 1 or self.accumulate < 1 or self.batch % self.accumulate:
            raise ValueError(f"batch {self.batch} is not a multiple of accumulate {self.accumulate}")
        for share, low, high in self.mask_rates:
            if not (0 < share <= 1 and 0 <= low <= high <= 1):
                raise ValueError(f"mask rates {(share, low, high)} are not (share, lowest, highest) within 0 to 1")
        for name in ("surest_given", "puzzles", "singles", "any_order", "equations", "equations_kept"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} {getattr(self, name)} is not a share from 0 to 1")
        if not 0 <= self.average < 1:
            raise ValueError(f"average {self.average} is not a decay from 0 to below 1")
        loop_weights(self.loss, 1)  # knows which losses there are
        self.config()  # and this, which models

    def config(self) -> ModelConfig:
        task = get_task(self.task)
        return ModelConfig(
            task=self.task, vocab=len(task.symbols), length=task.length, grid=task.grid, layers=self.layers,
            heads=self.heads, width=self.width, attention=self.attention, step_embedding=self.step_embedding,
            places=self.places, values=self.values, neighbours=self.neighbours,
            loops=max(self.loops.low, self.loops.high) if self.loops.kind == "schedule" else self.loops.high,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Without the younger fields where they are unused: older states and caches stay what they are."""
        younger = ("places", "values", "neighbours", "hard_puzzles", "first_solution", "smallest_chain", "any_order",
                   "products", "whole_numbers", "equations_kept", "float32", "open_bands", "singles",
                   "surest_given")  # fmt: skip
        unused = [key for key in younger if not getattr(self, key)]
        return {key: value for key, value in dataclasses.asdict(self).items() if key not in unused}

    def with_settings(self, settings: list[str]) -> "Recipe":
        """A variant by `key=value` texts; loops take fixed:8, uniform:1:10, poisson:5 or schedule:10:1."""
        changes = {}
        hints = get_type_hints(Recipe)
        known = [key for key in hints if key not in ("name", "about", "assumptions", "task")]
        for setting in settings:
            key, equals, text = setting.partition("=")
            if key not in known or not equals:
                raise ValueError(f"--set {setting!r}: write key=value with a key of {', '.join(known)}")
            try:
                changes[key] = _parse(hints[key], text)
            except (ValueError, IndexError) as error:
                raise ValueError(f"--set {setting!r}: {error}") from None
        return replace(self, **changes)


def _parse(kind: Any, text: str) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("write true or false")
        return text.lower() == "true"
    if kind in (int, float, str):
        return kind(text)
    if kind is LoopChoice:
        if not re.fullmatch(r"[a-z]+(:\d{1,4}){1,2}", text):
            raise ValueError("write fixed:8, uniform:1:10, poisson:5 or schedule:10:1")
        name, *numbers = text.split(":")
        return LoopChoice(kind=name, low=int(numbers[0]) if len(numbers) > 1 else 1, high=int(numbers[-1]))
    if kind in (int | None, float | None):
        return None if text == "none" else (int if kind == int | None else float)(text)
    if kind == tuple[str, ...]:
        return tuple(name for name in text.split(",") if name)
    if kind == tuple[float, float]:
        if text.count(",") != 1:
            raise ValueError("write two numbers, like 0.9,0.95")
        return tuple(float(number) for number in text.split(","))
    rows = [row.split(":") for row in text.split(",")]  # of mask rates
    if any(len(row) != 3 for row in rows):
        raise ValueError("write share:lowest:highest, like 0.5:0:1,0.5:0.5:1")
    return tuple(tuple(float(number) for number in row) for row in rows)


def fixed(loops: int) -> LoopChoice:
    return LoopChoice(high=loops)


# --- the paper's own rows, for a GPU ----------------------------------------------------------------------------

OPEN_IN_THE_PAPER = (
    "batch size 256 (Sudoku 25x25: 64), no accumulation",
    "AdamW betas 0.9, 0.95 and weight decay 0.01",
    "gradient clipping at 1.0, no dropout, no average of weights",
    "MLP activation: squared ReLU; RoPE base 10,000",
    "alpha 1 for the weighted losses, last 3 loops for the truncated one, Poisson's sigma 0.5, cap 4 x its mean",
)


def _steps(examples: int, epochs: int, batch: int) -> int:
    return examples * epochs // batch


PAPER_SUDOKU = Recipe(
    name="paper-sudoku-9x9", about="(6 x 5), all-steps loss, learned step embedding", task="sudoku-9x9", layers=6,
    heads=6, width=384, loops=fixed(5), batch=256, weight_decay=0.01, steps=_steps(1_800_000, 10, 256), eval_every=5000,
    assumptions=(*OPEN_IN_THE_PAPER, "boards from our own generator instead of the 1.8M of Shah et al."),
)  # fmt: skip
PAPER_SUDOKU_25 = replace(
    PAPER_SUDOKU, name="paper-sudoku-25x25", about="(6 x 5) on 25x25", task="sudoku-25x25", batch=64, save_memory=True,
    steps=_steps(100_000, 75, 64), assumptions=OPEN_IN_THE_PAPER,
)  # fmt: skip
PAPER_COUNTDOWN = replace(
    PAPER_SUDOKU, name="paper-countdown-4", about="(3 x 5) on Countdown-4", task="countdown-4", layers=3, heads=12,
    loops=fixed(5), steps=_steps(100_000, 300, 256), eval_steps=20,
    assumptions=(*OPEN_IN_THE_PAPER, "chains made on the fly instead of 100k fixed ones"),
)  # fmt: skip
PAPER_TEXT = replace(
    PAPER_SUDOKU, name="paper-text8", about="(6 x 3) on Text8", task="text8", loops=fixed(3),
    steps=_steps(90_000_000 // 256, 10, 256), eval_steps=64, assumptions=OPEN_IN_THE_PAPER,
)  # fmt: skip


def _paper() -> list[Recipe]:
    """The rows of the paper's tables: depth and loops, losses, choices of L, step embeddings."""
    rows = []
    for base, depths, loop_counts in (
        (PAPER_SUDOKU, (8, 10, 12, 18, 24, 30), (1, 2, 3, 5, 10)),
        (PAPER_SUDOKU_25, (), (1, 3, 5)),
        (replace(PAPER_COUNTDOWN, name="paper-countdown-3", task="countdown-3"), (6, 9, 15), (1, 3, 5)),
        (PAPER_COUNTDOWN, (6, 9, 15, 30), (1, 3, 5, 10)),
        (replace(PAPER_COUNTDOWN, name="paper-countdown-5", task="countdown-5"), (6, 9, 15, 30), (1, 3, 5, 10)),
        (PAPER_TEXT, (), (1, 3, 5)),
    ):
        k = base.layers
        rows += [
            replace(base, name=f"{base.name}-L{loops}", about=f"({k} x {loops})", loops=fixed(loops))
            for loops in loop_counts
        ]
        rows += [
            replace(base, name=f"{base.name}-K{depth}", about=f"({depth} x 1)", layers=depth, loops=fixed(1))
            for depth in depths
        ]
    sudoku = PAPER_SUDOKU
    for loss in ("final", "weighted-linear", "weighted-exponential", "truncated"):
        rows.append(replace(sudoku, name=f"{sudoku.name}-{loss}", about=f"(6 x 5), {loss} loss", loss=loss))
    for loops in (2, 3, 10):
        name = f"{sudoku.name}-L{loops}-final"
        rows.append(replace(sudoku, name=name, about=f"(6 x {loops}), final loss", loss="final", loops=fixed(loops)))
    for name, choice in {
        "uniform": LoopChoice(kind="uniform", low=1, high=10),
        "poisson": LoopChoice(kind="poisson", high=5),
        "1-to-10": LoopChoice(kind="schedule", low=1, high=10),
        "10-to-1": LoopChoice(kind="schedule", low=10, high=1),
    }.items():
        rows.append(replace(sudoku, name=f"{sudoku.name}-{name}", about=f"6 layers, L {name}", loops=choice))
    for embedding in ("fixed", "none"):
        name = f"{sudoku.name}-step-{embedding}"
        rows.append(replace(sudoku, name=name, about=f"step embedding {embedding}", step_embedding=embedding))
    return rows


# --- the CPU recipes, tuned on two cores ------------------------------------------------------------------------

SUDOKU = Recipe(
    name="sudoku-9x9", about="the solvers' first stage: one layer, unit heads", task="sudoku-9x9", layers=1, heads=4,
    width=128, attention="units", loops=fixed(10), optimizer="muon", lr=2e-3, muon_lr=4e-3, warmup=100,
    min_lr_ratio=0.0, average=0.998, batch=32, mask_rates=((0.85, 0.4, 0.75), (0.15, 0.0, 1.0)), puzzles=0.5,
    steps=4000, eval_every=500,
)  # fmt: skip
SUDOKU_MORE = replace(
    SUDOKU, name="sudoku-9x9-more", about="second stage, with --init sudoku-9x9: more loops, harder puzzles",
    loops=LoopChoice(kind="uniform", low=8, high=24), gradient_loops=10, puzzles=0.75, lr=1e-3, muon_lr=2e-3,
    steps=2400,
)  # fmt: skip
SUDOKU_LAST = replace(
    SUDOKU_MORE, name="sudoku-9x9-last", about="third stage, with --init of the second: up to 32 loops",
    loops=LoopChoice(kind="uniform", low=8, high=32), hard_puzzles=True, steps=5000,
)  # fmt: skip
SUDOKU_MINED = replace(
    SUDOKU_MORE, name="sudoku-9x9-mined", about="fourth stage, with --init of the third and --data of train.mine",
    loops=LoopChoice(kind="uniform", low=10, high=24), steps=4500,
)  # fmt: skip
SUDOKU_WIDE = replace(
    SUDOKU_MINED, name="sudoku-9x9-wide", about="fifth stage, with --init of the fourth, which grows; hard puzzles",
    width=192, heads=6, attention="lines", hard_puzzles=True, lr=1.5e-3, muon_lr=3e-3, steps=7000, eval_every=1000,
)  # fmt: skip
SUDOKU_THROUGH = replace(
    SUDOKU_WIDE, name="sudoku-9x9-through", about="sixth stage, with --init of the fifth: gradients through all loops",
    loops=LoopChoice(kind="uniform", low=10, high=22), gradient_loops=None, loss="weighted-linear", singles=0.5,
    steps=6000,
)  # fmt: skip
SUDOKU_SUREST = replace(
    SUDOKU_THROUGH, name="sudoku-9x9-surest", about="seventh stage, with --init of the sixth: from where a sampler is",
    loops=LoopChoice(kind="uniform", low=12, high=24), singles=0.4, surest_given=0.4, lr=1e-3, muon_lr=2e-3, steps=3300,
)  # fmt: skip
SUDOKU_TWO = replace(
    SUDOKU_SUREST, name="sudoku-9x9-two-layers", about="eighth stage, with --init of the shipped: a second layer",
    layers=2, loops=LoopChoice(kind="uniform", low=10, high=20), steps=2800, eval_every=400,
)  # fmt: skip
SUDOKU_4 = replace(
    SUDOKU, name="sudoku-4x4", about="the smallest: seconds to train", task="sudoku-4x4", heads=4, width=64,
    loops=fixed(6), mask_rates=((1.0, 0.0, 1.0),), puzzles=0.0, first_solution=True, batch=64, steps=3000,
    eval_steps=8, eval_mask=0.5, eval_every=500,
)  # fmt: skip
SUDOKU_25 = replace(
    SUDOKU, name="sudoku-25x25", about="625 cells, the paper's generator; with --init of sudoku-25x25-first",
    task="sudoku-25x25", layers=2, heads=6, width=192, attention="lines", open_bands=0.5, puzzles=0.0,
    loops=LoopChoice(kind="uniform", low=2, high=5), mask_rates=((0.5, 0.3, 0.75), (0.5, 0.6, 0.95)), batch=8,
    steps=3600, eval_every=500, eval_problems=32, eval_mask=0.7,
)  # fmt: skip
SUDOKU_25_FIRST = replace(
    SUDOKU_25, name="sudoku-25x25-first", about="first stage of 25x25: practice on boards with 9 of its digits",
    task="sudoku-9x9-of-25", open_bands=0.8, loops=LoopChoice(kind="uniform", low=2, high=4),
    mask_rates=((1.0, 0.5, 0.95),), batch=32, steps=1200,
)  # fmt: skip
SUDOKU_25_SUREST = replace(
    SUDOKU_25, name="sudoku-25x25-surest", about="third stage of 25x25, with --init of the second: from a sampler",
    loops=LoopChoice(kind="uniform", low=6, high=8), loss="weighted-linear", open_bands=0.1, surest_given=0.5,
    mask_rates=((0.2, 0.3, 0.75), (0.8, 0.7, 0.88)), lr=1e-3, muon_lr=1.5e-3, steps=2000, eval_mask=0.8, eval_steps=10,
)  # fmt: skip
COUNTDOWN = Recipe(
    name="countdown-4", about="chains of 3, 4 and 5 numbers", task="countdown-4", layers=2, heads=6, width=192,
    places=7, values=True, loops=fixed(3), optimizer="muon", lr=2e-3, muon_lr=4e-3, warmup=200, min_lr_ratio=0.0,
    average=0.999, batch=16, mask_rates=((0.5, 0.0, 1.0), (0.5, 0.5, 1.0)), smallest_chain=True, equations=0.3,
    equations_kept=0.25, others=("countdown-3",) * 6 + ("countdown-4", "countdown-5"), steps=14_000,
    eval_every=500, eval_steps=20,
)  # fmt: skip
COUNTDOWN_MORE = replace(
    COUNTDOWN, name="countdown-4-more", about="second stage, with --init countdown-4: more loops, more products",
    products=0.6, whole_numbers=0.5, equations_kept=0.2, mask_rates=((0.3, 0.0, 0.5), (0.7, 0.3, 1.0)),
    loops=LoopChoice(kind="uniform", low=2, high=6), gradient_loops=4, steps=16_000,
)  # fmt: skip
COUNTDOWN_WIDE = replace(
    COUNTDOWN_MORE, name="countdown-4-wide", about="third stage, with --init of the second: wider, products first",
    width=256, heads=8, batch=32, loops=LoopChoice(kind="uniform", low=2, high=5), equations=0.4, equations_kept=0.2,
    others=("countdown-3",) * 3 + ("countdown-4",) * 2 + ("countdown-5",) * 2, lr=1.5e-3, muon_lr=3e-3, steps=11_000,
    eval_every=2000,
)  # fmt: skip
COUNTDOWN_SEARCH = replace(
    COUNTDOWN_WIDE, name="countdown-4-search", about="fourth stage, with --init of the third: loops for the search",
    loss="final", loops=LoopChoice(kind="uniform", low=3, high=6), equations=0.0, equations_kept=0.15,
    whole_numbers=0.4, mask_rates=((0.2, 0.0, 0.5), (0.4, 0.5, 1.0), (0.4, 0.9, 1.0)), lr=2e-3, muon_lr=4e-3,
    others=("countdown-3",) * 3 + ("countdown-4",) * 3 + ("countdown-5",), steps=25_000,
)  # fmt: skip
COUNTDOWN_LOOPS = replace(
    COUNTDOWN_SEARCH, name="countdown-4-loops", about="fifth stage, with --init of the fourth: up to 20 loops",
    loops=LoopChoice(kind="uniform", low=6, high=20), products=0.3, equations_kept=0.05, lr=1e-3, muon_lr=2e-3,
    others=("countdown-3",) * 3 + ("countdown-4",) * 3 + ("countdown-5",) * 2, steps=8500,
)  # fmt: skip
COUNTDOWN_SUREST = replace(
    COUNTDOWN_LOOPS, name="countdown-4-surest", about="sixth stage, with --init of the fifth: from where a sampler is",
    loops=LoopChoice(kind="uniform", low=6, high=14), gradient_loops=None, surest_given=0.7,
    mask_rates=((0.2, 0.0, 1.0), (0.8, 0.95, 1.0)),
    others=("countdown-3",) * 2 + ("countdown-4",) * 3 + ("countdown-5",) * 3, steps=4000,
)  # fmt: skip
COUNTDOWN_THREE = replace(
    COUNTDOWN_SUREST, name="countdown-4-three-layers", about="seventh stage, with --init of the sixth: a third layer",
    layers=3, loops=LoopChoice(kind="uniform", low=6, high=12), any_order=0.1, products=0.5, lr=1.5e-3,
    muon_lr=3e-3, steps=7000, eval_every=1000,
)  # fmt: skip
COUNTDOWN_FOUR = replace(
    COUNTDOWN_THREE, name="countdown-4-longer", about="eighth stage, with --init of the seventh: more loops",
    loops=LoopChoice(kind="uniform", low=8, high=16), products=0.6,
    others=("countdown-3",) * 2 + ("countdown-4",) * 3 + ("countdown-5",) * 2, steps=3400,
)  # fmt: skip
TEXT = Recipe(
    name="text8", about="characters of English: one loop in the first half of the run, two in the second", task="text8",
    layers=4, heads=4, width=256, neighbours=4, loops=LoopChoice(kind="schedule", low=1, high=2), optimizer="muon",
    lr=2e-3, muon_lr=8e-3, warmup=100, min_lr_ratio=0.0, average=0.998, batch=16, steps=7000, eval_every=500,
    eval_steps=64, eval_problems=64,
)  # fmt: skip
TEXT_MORE = replace(
    TEXT, name="text8-more", about="second stage, with --init of the first: larger batches",
    batch=32, average=0.999, steps=7000, eval_every=1000,
)  # fmt: skip
TEXT_WIDE = replace(
    TEXT_MORE, name="text8-wide", about="third stage, with --init of the second, which grows",
    heads=5, width=320, lr=1.5e-3, muon_lr=6e-3, steps=5200,
)  # fmt: skip
CPU = (
    SUDOKU_4, SUDOKU, SUDOKU_25,
    replace(COUNTDOWN, name="countdown-3", about="chains of 3 numbers", task="countdown-3", others=()),
    COUNTDOWN,
    replace(COUNTDOWN, name="countdown-5", about="chains of 5 numbers", task="countdown-5", others=()),
    TEXT,
)  # fmt: skip


OTHER_STAGES = (
    SUDOKU_MORE, SUDOKU_LAST, SUDOKU_MINED, SUDOKU_WIDE, SUDOKU_THROUGH, SUDOKU_SUREST, SUDOKU_TWO,
    SUDOKU_25_FIRST, SUDOKU_25_SUREST, COUNTDOWN_MORE, COUNTDOWN_WIDE, COUNTDOWN_SEARCH, COUNTDOWN_LOOPS,
    COUNTDOWN_SUREST, COUNTDOWN_THREE, COUNTDOWN_FOUR, TEXT_MORE, TEXT_WIDE,
)  # fmt: skip


def twins(recipe: Recipe) -> tuple[Recipe, Recipe]:
    """The (K x 1) and (KL x 1) baselines of a recursive recipe: same attention, data and number of updates."""
    loops = recipe.config().loops
    shallow = replace(recipe, name=f"{recipe.name}-shallow", about=f"({recipe.layers} x 1)", loops=fixed(1))
    deep = replace(shallow, name=f"{recipe.name}-deep", about=f"({recipe.layers * loops} x 1)",
                   layers=recipe.layers * loops)  # fmt: skip
    return shallow, deep


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in [*CPU, *OTHER_STAGES, *(twin for recipe in CPU for twin in twins(recipe)), *_paper()]
}


def get_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise ValueError(f"recipe {name!r} is unknown; known are {', '.join(RECIPES)}")
    return RECIPES[name]
