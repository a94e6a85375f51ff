"""What a model is made of. A config travels inside every checkpoint, so it is checked as strictly as user input."""

from dataclasses import asdict, dataclass, fields
from typing import Any

# The kinds of heads, each an equal part of them: what of a grid a query sees. Full attention is the paper's.
ATTENTIONS = {
    "full": ("all",),
    "units": ("row", "column", "block", "all"),
    "lines": ("row", "column", "block", "row in a block", "column in a block", "all"),
}
STEP_EMBEDDINGS = ("learned", "fixed", "none")
# A config can come from a stranger's file: without bounds, one number in it could ask for all memory.
LARGEST = {"vocab": 1024, "length": 4096, "layers": 128, "heads": 128, "width": 8192, "loops": 1024}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A (K x L) denoiser: `layers` is K, `loops` the L it was trained with (a default, not a limit)."""

    task: str
    vocab: int  # symbols of the task and the mask token
    length: int
    layers: int
    heads: int
    width: int
    loops: int
    grid: tuple[int, int] | None = None  # rows and columns of a Sudoku block; None for plain sequences
    attention: str = "full"
    step_embedding: str = "learned"
    places: int = 0  # sequences of numbers: so many places of a digit (units, tens, ...) have an embedding
    values: bool = False  # ... and so has the value of the whole number
    neighbours: int = 0  # plain sequences: so many tokens to the left and right are mixed in before attention and MLP

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or not 0 < len(self.task) <= 64:
            raise ValueError(f"task {self.task!r} is not a name of 1 to 64 characters")
        for name, largest in LARGEST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
                raise ValueError(f"{name} {value!r} is not a whole number from 1 to {largest}")
        for name in ("places", "neighbours"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 16:
                raise ValueError(f"{name} {value!r} is not a whole number from 0 to 16")
        if self.neighbours and self.grid:
            raise ValueError(f"neighbours {self.neighbours} are for sequences; the cells of a grid have units")
        if not isinstance(self.values, bool):
            raise ValueError(f"values {self.values!r} is not true or false")
        if self.attention not in ATTENTIONS:
            raise ValueError(f"attention {self.attention!r} is unknown; choose from {', '.join(ATTENTIONS)}")
        if self.step_embedding not in STEP_EMBEDDINGS:
            raise ValueError(
                f"step_embedding {self.step_embedding!r} is unknown; choose from {', '.join(STEP_EMBEDDINGS)}"
            )
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        rotated = 4 if self.grid else 2  # rotary turns pairs, and a grid turns them for rows and for columns
        if (self.width // self.heads) % rotated:
            raise ValueError(f"head size {self.width // self.heads} is not a multiple of {rotated}, as rotary wants")
        if self.grid is not None:
            if len(self.grid) != 2 or not all(isinstance(side, int) and side >= 1 for side in self.grid):
                raise ValueError(f"grid {self.grid!r} is not (block rows, block columns)")
            object.__setattr__(self, "grid", tuple(self.grid))  # JSON has lists only
            if (self.grid[0] * self.grid[1]) ** 2 != self.length:
                raise ValueError(f"length {self.length} does not fit blocks of {self.grid[0]}x{self.grid[1]}")
        if len(self.kinds) > 1 and (self.grid is None or self.heads % len(self.kinds)):
            raise ValueError(
                f"attention {self.attention!r} needs a grid and a multiple of {len(self.kinds)} heads:"
                f" {', '.join(self.kinds)}"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of heads, in their order."""
        return ATTENTIONS[self.attention]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ModelConfig":
        known = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or set(values) - known:
            extra = sorted(set(values) - known) if isinstance(values, dict) else type(values).__name__
            raise ValueError(f"not a model config: unknown {extra}; known are {', '.join(sorted(known))}")
        try:
            return cls(**values)
        except TypeError as error:  # a missing key
            raise ValueError(f"not a model config: {error}") from None
