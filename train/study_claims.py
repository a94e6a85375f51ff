"""The claims as data: which models to train, which decodings to try on what problems, and which comparisons decide."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rmdm.recursion import LoopChoice
from rmdm.sampler import ORDERS, Decoding
from train.recipes import PAPER_COUNTDOWN, PAPER_SUDOKU, PAPER_SUDOKU_25, PAPER_TEXT, SUDOKU_4, TEXT, Recipe, fixed


@dataclass(frozen=True, kw_only=True)
class ProblemSet:
    """Held-out problems of one kind: for Sudoku unique puzzles by their clues, or random blanks by their rate."""

    task: str
    clues: tuple[int, int] | None = None
    rate: float | None = None

    @property
    def label(self) -> str:
        kind = f", {self.clues[0]}-{self.clues[1]} clues" if self.clues else ""
        return self.task + kind + (f", {self.rate:.0%} blank" if self.rate else "")


@dataclass(frozen=True, kw_only=True)
class Family:
    """The models of one task: (K x L) for each of `loops`, and (KL x 1) for each L of `unrolled`."""

    base: Recipe
    problems: ProblemSet
    loops: tuple[int, ...]
    unrolled: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The sizes at which the same studies run."""

    name: str
    families: tuple[Family, ...]  # Sudoku first, which is what the ablations use
    large: Recipe
    text: Recipe
    large_loops: tuple[int, ...]
    text_loops: tuple[int, ...]
    middle: int  # L_t of the ablations
    longest: int  # where schedules of L start or end
    sampled: tuple[int, ...]  # L_s
    steps: tuple[int, ...]  # T along an axis
    few: tuple[int, ...]  # T of panels
    last: int  # k of the truncated loss
    threshold: float  # of the Pareto plot
    problems: int  # a seed
    minutes: float | None  # a model; None: the recipe's own number of updates

    def reference(self, task: str) -> Recipe:
        """The costliest recursive model of a task: its speed fixes the number of updates of all models."""
        pairs = [(family.base, family.loops) for family in self.families]
        pairs += [(self.large, self.large_loops), (self.text, self.text_loops)]
        return next(looped(base, max(loops)) for base, loops in pairs if base.task == task)


def _paper_countdown(count: int, loops: tuple[int, ...]) -> Family:
    base = replace(PAPER_COUNTDOWN, name=f"paper-countdown-{count}", task=f"countdown-{count}")
    return Family(base=base, problems=ProblemSet(task=base.task), loops=(1, *loops), unrolled=loops)


PAPER = Scale(
    name="paper",
    families=(
        Family(base=PAPER_SUDOKU, problems=ProblemSet(task="sudoku-9x9", clues=(30, 36)), loops=(1, 3, 5, 10),
               unrolled=(3, 5)),
        _paper_countdown(3, (3, 5)), _paper_countdown(4, (3, 5, 10)),
    ),
    large=PAPER_SUDOKU_25, text=PAPER_TEXT, large_loops=(1, 3, 5), text_loops=(1, 3, 5), middle=5, longest=10,
    sampled=(1, 3, 5, 7, 10, 15, 20), steps=(1, 2, 5, 10, 20, 30, 40), few=(1, 5, 20), last=3, threshold=0.95,
    problems=500, minutes=None,
)  # fmt: skip
# 6x6 with the paper's own attention is the smallest task that one layer neither fails nor masters in a few hundred
# updates. Not compiled: that would take longer than it saves. Countdown is not here: chains take hours to learn.
_SMALL = replace(
    SUDOKU_4, name="study-6x6", about="one layer on 6x6", task="sudoku-6x6", attention="full", heads=4, width=48,
    first_solution=False, batch=16, mask_rates=((0.85, 0.3, 0.75), (0.15, 0.0, 1.0)), warmup=40, average=0.98,
    compile=False,
)  # fmt: skip
CPU = Scale(
    name="cpu",
    families=(
        Family(base=_SMALL, problems=ProblemSet(task="sudoku-6x6", clues=(16, 20)), loops=(1, 2, 4, 8),
               unrolled=(2, 4, 8)),
    ),
    large=replace(_SMALL, name="study-16x16", about="one layer on 16x16", task="sudoku-16x16", batch=4,
                  mask_rates=((0.85, 0.5, 0.95), (0.15, 0.0, 1.0))),
    text=replace(TEXT, name="study-text8", layers=2, heads=4, width=64, batch=8, warmup=40, average=0.98,
                 compile=False),
    large_loops=(1, 2, 4), text_loops=(1, 2, 4), middle=4, longest=8, sampled=(1, 2, 4, 8, 16), steps=(1, 2, 4, 8, 16),
    few=(1, 5), last=2, threshold=0.8, problems=200, minutes=1.0,
)  # fmt: skip
SCALES = {scale.name: scale for scale in (CPU, PAPER)}


# --- models: at paper scale these derive to the very recipes of train/recipes.py, names included ---------------------


def looped(base: Recipe, loops: int) -> Recipe:
    return replace(base, name=f"{base.name}-L{loops}", about=f"({base.layers} x {loops})", loops=fixed(loops))


def deep(base: Recipe, layers: int) -> Recipe:
    """(KL x 1), or the (K x 1) model itself where nothing is added."""
    if layers == base.layers:
        return looped(base, 1)
    return replace(base, name=f"{base.name}-K{layers}", about=f"({layers} x 1)", layers=layers, loops=fixed(1))


def chosen(base: Recipe, name: str, choice: LoopChoice) -> Recipe:
    return replace(base, name=f"{base.name}-{name}", about=f"{base.layers} layers, L {name}", loops=choice)


def arms(recipes: Sequence[Recipe], labels: Sequence[str] | None = None) -> dict[str, Recipe]:
    """Models by the label that tables and figures use: (K x L) unless said otherwise."""
    names = labels or [f"({recipe.layers} x {recipe.config().loops})" for recipe in recipes]
    return dict(zip(names, recipes, strict=True))


# --- comparisons ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of a study: a model on a set of problems with one decoding."""

    model: str
    problems: str
    steps: int
    loops: int | str
    order: str = "confidence"

    def __str__(self) -> str:
        order = "" if self.order == "confidence" else f", {self.order} order"
        return f"{self.model}, {self.problems}, T={self.steps}, L={self.loops}{order}"


@dataclass(frozen=True, kw_only=True)
class Check:
    """The claim that `left` solves more than `right`, or with a margin, that it falls short by no more than that."""

    left: Cell
    right: Cell
    margin: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Study:
    name: str
    claim: str
    source: str  # where the paper says it
    arms: dict[str, Recipe]
    problems: tuple[ProblemSet, ...]
    decodings: Callable[[Recipe], list[Decoding]]
    figure: str
    checks: tuple[Check, ...] = ()
    checkpoint: bool = False  # looks at one model, which may be one trained elsewhere


def own_loops(steps: Sequence[int]) -> Callable[[Recipe], list[Decoding]]:
    """Every T, with the L that the model was trained with."""
    return lambda recipe: [Decoding(steps=t, loops=recipe.config().loops) for t in steps]


def grid(steps: Sequence[int], loops: Sequence[int | str]) -> Callable[[Recipe], list[Decoding]]:
    return lambda recipe: [Decoding(steps=t, loops=l) for l in loops for t in steps]


def _models(scale: Scale, make: Callable[[Family], list[Recipe]]) -> dict[str, Recipe]:
    """The models of every family by label; it names the task where there are several."""
    return {
        label + _suffix(scale, family): recipe
        for family in scale.families
        for label, recipe in arms(make(family)).items()
    }


def _suffix(scale: Scale, family: Family) -> str:
    return f" {family.base.task}" if len(scale.families) > 1 else ""


def _cell(scale: Scale, model: str, steps: int, loops: int | str, **more: str) -> Cell:
    return Cell(model=model, problems=scale.families[0].problems.label, steps=steps, loops=loops, **more)


def studies(scale: Scale) -> dict[str, Study]:
    return {study.name: study for study in _studies(scale)}


def _studies(scale: Scale) -> Iterator[Study]:
    sudoku = scale.families[0]
    base, puzzles, k = sudoku.base, (sudoku.problems,), sudoku.base.layers
    middle, longest, more = scale.middle, scale.longest, sudoku.loops[1:]
    many = tuple(family.problems for family in scale.families)
    twins = _models(scale, lambda family: [looped(family.base, l) for l in family.loops])
    depths = _models(scale, lambda family: [deep(family.base, family.base.layers * l) for l in family.unrolled])

    def against(baseline: str, margin: float) -> tuple[Check, ...]:
        """Every (K x L) of every family against a baseline, at every T."""
        checks = []
        for family in scale.families:
            k, end, label = family.base.layers, _suffix(scale, family), family.problems.label
            for l in family.loops[1:] if baseline == "shallow" else family.unrolled:
                other = f"({k if baseline == 'shallow' else k * l} x 1){end}"
                for t in scale.steps:
                    left = Cell(model=f"({k} x {l}){end}", problems=label, steps=t, loops=l)
                    checks.append(Check(left=left, right=replace(left, model=other, loops=1), margin=margin))
        return tuple(checks)

    yield Study(
        name="iso-parameter", claim="(K x L) beats (K x 1), with the same parameters, at each T",
        source="RQ1, iso-parameter comparison", arms=twins, problems=many, decodings=own_loops(scale.steps),
        figure="over-steps", checks=against("shallow", 0.0),
    )  # fmt: skip
    yield Study(
        name="iso-flop", claim="(K x L) matches (KL x 1), the same computation with L times the parameters",
        source="RQ1, iso-FLOP comparison", arms=twins | depths, problems=many, decodings=own_loops(scale.steps),
        figure="over-steps", checks=against("deep", 0.05),
    )  # fmt: skip
    one, few = scale.few[0], scale.few[1]
    beyond = {l: next(s for s in scale.sampled if s > l) for l in more}
    yield Study(
        name="cross-recursion", claim="a model trained with L_t loops can be sampled with another L_s",
        source="RQ2, cross-recursion flexibility", arms=arms([looped(base, l) for l in sudoku.loops]), problems=puzzles,
        decodings=grid((one, few), scale.sampled), figure="heat",
        checks=(
            *(Check(left=_cell(scale, f"({k} x {l})", one, s), right=_cell(scale, f"({k} x {l})", one, l))
              for l, s in beyond.items()),
            *(Check(left=_cell(scale, f"({k} x {l})", few, s), right=_cell(scale, f"({k} x {l})", few, l), margin=0.05)
              for l, s in beyond.items()),
            *(Check(left=_cell(scale, f"({k} x {l})", t, l), right=_cell(scale, f"({k} x {l})", t, 1))
              for l in more for t in (one, few)),
        ),
    )  # fmt: skip
    down = chosen(base, f"{longest}-to-1", LoopChoice(kind="schedule", low=longest, high=1))
    passes = [(t, l) for l in more for t in scale.steps if t * l in scale.steps]
    yield Study(
        name="compute", claim="loops replace steps: more is solved with the same number of forward passes T x L",
        source="RQ2, compute-efficient inference", problems=puzzles, figure="over-passes",
        arms=arms([looped(base, 1), looped(base, longest), down], ["baseline", f"fixed {longest}", f"{longest} to 1"]),
        decodings=lambda recipe: [
            Decoding(steps=t, loops=l) for l in sudoku.loops for t in scale.steps if l == 1 or recipe.config().loops > 1
        ],
        checks=tuple(
            Check(left=_cell(scale, model, t, l), right=_cell(scale, "baseline", t * l, 1))
            for model in (f"fixed {longest}", f"{longest} to 1") for t, l in passes
        ),
    )  # fmt: skip
    yield Study(
        name="pareto", claim="recursive models reach a solve rate with fewer parameters and fewer steps",
        source="RQ2, parameter-step trade-offs", arms=twins | depths, problems=many,
        decodings=own_loops(scale.steps), figure="pareto",
    )  # fmt: skip
    choices = {
        f"fixed {middle}": looped(base, middle),
        "uniform": chosen(base, "uniform", LoopChoice(kind="uniform", low=1, high=longest)),
        "Poisson": chosen(base, "poisson", LoopChoice(kind="poisson", high=middle)),
        f"1 to {longest}": chosen(base, f"1-to-{longest}", LoopChoice(kind="schedule", low=1, high=longest)),
        f"{longest} to 1": down,
    }
    ablation = grid(scale.few, scale.sampled)
    yield Study(
        name="depth-choice", claim=f"choosing L_t from {longest} down to 1 beats every other choice",
        source="ablation: recursive step choice", arms=choices, problems=puzzles, decodings=ablation,
        figure="over-loops", checks=tuple(
            Check(left=_cell(scale, f"{longest} to 1", t, middle), right=_cell(scale, other, t, middle))
            for t in scale.few for other in choices if other != f"{longest} to 1"
        ),
    )  # fmt: skip
    short = replace(base, last=scale.last)  # the paper's own k where that is the base's
    losses = {"all": looped(base, middle)} | {
        label: replace(source, name=f"{base.name}-{label}", loss=label, loops=fixed(middle),
                       about=f"({k} x {middle}), {label} loss")
        for label, source in (("final", base), ("weighted-linear", base), ("truncated", short))
    }  # fmt: skip
    yield Study(
        name="loss", claim="supervising all loops alike beats final, weighted and truncated, few loops above all",
        source="ablation: training objective", arms=losses, problems=puzzles, decodings=ablation, figure="over-loops",
        checks=tuple(
            Check(left=_cell(scale, "all", t, l), right=_cell(scale, other, t, l))
            for t in scale.few for l in (1, middle) for other in losses if other != "all"
        ),
    )  # fmt: skip
    steps = {"learned": looped(base, middle)} | {
        label: replace(looped(base, middle), name=f"{base.name}-step-{label}", about=f"step embedding {label}",
                       step_embedding=label)
        for label in ("fixed", "none")
    }  # fmt: skip
    yield Study(
        name="step-embedding", claim="a learned step embedding beats a fixed one, and matches none",
        source="ablation: step embedding", arms=steps, problems=puzzles, decodings=ablation, figure="over-loops",
        checks=tuple(
            Check(left=_cell(scale, "learned", t, middle), right=_cell(scale, other, t, middle), margin=margin)
            for t in scale.few for other, margin in (("fixed", 0.0), ("none", 0.05))
        ),
    )  # fmt: skip
    masks = tuple(ProblemSet(task=scale.large.task, rate=rate) for rate in (0.7, 0.8, 0.9))
    large = arms([looped(scale.large, l) for l in scale.large_loops])
    yield Study(
        name="masking-25", claim="the more is masked, the more recursion helps on large boards",
        source="RQ1, Sudoku 25x25", arms=large, problems=masks, decodings=own_loops(scale.few), figure="bars",
        checks=tuple(
            Check(left=Cell(model=f"({scale.large.layers} x {l})", problems=p.label, steps=t, loops=l),
                  right=Cell(model=f"({scale.large.layers} x 1)", problems=p.label, steps=t, loops=1))
            for p in masks for l in scale.large_loops[1:] for t in scale.few
        ),
    )  # fmt: skip
    yield Study(
        name="text", claim="on text the trend reverses: recursion does not lower the scorer's NLL of samples",
        source="RQ1, Text8", arms=arms([looped(scale.text, l) for l in scale.text_loops]),
        problems=(ProblemSet(task="text8"),), decodings=own_loops((8, 64)), figure="text",
    )  # fmt: skip
    best = arms([looped(base, longest)])
    until: tuple[int | str, ...] = (*scale.sampled, "auto")
    name = f"({k} x {longest})"
    yield Study(
        name="order", claim="committing the surest cells first beats a random order", source="ours",
        arms=best, problems=puzzles, figure="orders", checkpoint=True,
        decodings=lambda recipe: [
            Decoding(steps=t, loops=recipe.config().loops, order=order) for order in ORDERS for t in scale.steps
        ],
        checks=tuple(
            Check(left=_cell(scale, name, t, longest), right=_cell(scale, name, t, longest, order=order),
                  margin=0.0 if order == "random" else 0.05)
            for order in ("random", "margin", "entropy") for t in scale.steps if t > 1
        ),
    )  # fmt: skip
    yield Study(
        name="halting", claim="loops that stop when the prediction settles solve as much with fewer forward passes",
        source="ours", arms=best, problems=puzzles, figure="halting", checkpoint=True,
        decodings=lambda recipe: [
            Decoding(steps=t, loops=l, max_loops=max(scale.sampled))
            for t in scale.few for l in until
        ],
        checks=tuple(
            Check(left=_cell(scale, name, t, "auto"), right=_cell(scale, name, t, max(scale.sampled)), margin=0.05)
            for t in scale.few
        ),
    )  # fmt: skip
    yield Study(
        name="trajectory", claim="simple inferences are right in earlier loops than those that build on them",
        source="ours", arms=best, problems=puzzles, figure="trajectory", checkpoint=True,
        decodings=lambda recipe: [Decoding(steps=1, loops=recipe.config().loops)],
    )  # fmt: skip
