"""Sudoku of any size with rectangular blocks: boards, symmetries, an exact solver, puzzles, and the judge."""

import functools
import re

import numpy as np

from rmdm.tasks import Reading, Verdict, set_aside

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
RANDOM_GRIDS = 4000  # 9x9 grids made by backtracking; symmetries multiply each by up to 1.2e12


def block_shape(size: int) -> tuple[int, int]:
    """The factor pair nearest to the square root, rows first: 6 -> (2, 3)."""
    rows = next((r for r in range(int(size**0.5), 1, -1) if size % r == 0), 0)
    if not 4 <= size <= 36 or not rows:
        raise ValueError(f"there is no {size}x{size} Sudoku: the size must be 4 to 36, with blocks of 2 rows or more")
    return rows, size // rows


def closed_form(size: int) -> np.ndarray:
    """The paper's base solution, (n, n) with digits 1..n."""
    rows, columns = block_shape(size)
    r, c = np.mgrid[:size, :size]
    return (columns * (r % rows) + r // rows + c) % size + 1


class Sudoku:
    """With `digits`, each board has its own choice of `size` of so many digits, and is of the paper's kind.

    That is practice for the larger board with all of them: its ways are learned there at a fraction of the cost.
    """

    steps = 10
    threshold = None

    def __init__(self, size: int, digits: int | None = None) -> None:
        self.size, self.digits = size, digits or size
        self.grid = block_shape(size)
        self.name = f"sudoku-{size}x{size}" + (f"-of-{digits}" if digits else "")
        if not size <= self.digits <= 36:
            raise ValueError(f"{self.name}: a board needs {size} to 36 digits")
        self.length = size * size
        self.mask = 0
        self.symbols = ("_", *(str(digit) for digit in range(1, self.digits + 1)))
        rows, columns = self.grid
        index = np.arange(self.length)
        row, column = index // size, index % size
        block = row // rows * (size // columns) + column // columns
        self.unit_of = np.stack([row, column, block])  # (3, N)
        self.units = np.concatenate([np.argsort(unit, kind="stable").reshape(size, size) for unit in self.unit_of])
        self.peers = [
            tuple(np.flatnonzero((self.unit_of == self.unit_of[:, [cell]]).any(axis=0) & (index != cell)).tolist())
            for cell in range(self.length)
        ]

    # --- boards -------------------------------------------------------------------------------------------------

    def solved(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Solved boards (count, N): all there are for 4x4, from really random grids for 9x9, else the paper's kind."""
        if self.digits > self.size:
            bank = self._closed_form
        else:
            bank = self.every_board if self.size == 4 else random_grids() if self.size == 9 else self._closed_form
        return self.shuffle(bank[rng.integers(len(bank), size=count)], rng)

    @functools.cached_property
    def _closed_form(self) -> np.ndarray:
        return closed_form(self.size).reshape(1, -1)

    @functools.cached_property
    def every_board(self) -> np.ndarray:
        """All boards in reading order: (288, 16). The symmetries of the paper's closed form reach 192 of them."""
        if self.size > 4:
            raise ValueError(f"there are too many {self.size}x{self.size} boards to list")
        return np.array(sorted(self.solutions([0] * self.length, limit=1000)))

    def first_solutions(self, puzzles: np.ndarray) -> np.ndarray:
        """For each 4x4 puzzle (B, N) the first board in reading order that fits and is not held out."""
        boards = self.every_board[~self.held_out(self.every_board)]
        fits = ((boards == puzzles[:, None]) | (puzzles[:, None] == 0)).all(axis=2)
        return boards[fits.argmax(axis=1)]

    def shuffle(self, boards: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Applies a random validity-preserving symmetry to each board (B, N); blanks (0) stay blank."""
        boards = np.take_along_axis(boards, self._moves(len(boards), rng), axis=1)
        relabel = np.zeros((len(boards), self.size + 1), dtype=np.int64)
        relabel[:, 1:] = rng.random((len(boards), self.digits)).argsort(axis=1)[:, : self.size] + 1
        return np.take_along_axis(relabel, boards, axis=1)

    def _moves(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Symmetries of the cells: where each cell of a new board comes from, (count, N)."""
        rows, columns = self.grid
        turned = rng.random((count, 1)) >= 0.5 if rows == columns else np.zeros((count, 1), dtype=bool)
        row_order = _line_order(count, self.size // rows, rows, rng)
        column_order = _line_order(count, self.size // columns, columns, rng)
        cells = (row_order[:, :, None] * self.size + column_order[:, None, :]).reshape(count, -1)
        return np.where(turned, cells % self.size * self.size + cells // self.size, cells)

    def posed_anew(self, problem: list[int], rng: np.random.Generator) -> tuple[list[int], Reading]:
        """As another board, by a symmetry and with other digits."""
        cells, relabel = self._moves(1, rng)[0], np.append(0, 1 + rng.permutation(self.digits))

        def reading(answer: list[int]) -> list[int]:
            back = np.empty(self.length, dtype=np.int64)
            back[cells] = np.argsort(relabel)[answer]
            return back.tolist()

        return relabel[np.array(problem)[cells]].tolist(), reading

    def batch(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return self.solved(count, rng), np.ones((count, self.length), dtype=bool)

    def held_out(self, tokens: np.ndarray) -> np.ndarray:
        return np.array([set_aside(board.tobytes()) for board in tokens.astype(np.uint8)], dtype=bool)

    @property
    def has_puzzles(self) -> bool:
        """Whether puzzles with one solution are made and solved: larger boards would take minutes."""
        return self.size == self.digits <= 9

    # --- puzzles ------------------------------------------------------------------------------------------------

    def count_solutions(self, puzzle: list[int], limit: int = 2, rng: np.random.Generator | None = None) -> int:
        return len(self.solutions(puzzle, limit, rng))

    def solutions(self, puzzle: list[int], limit: int = 1, rng: np.random.Generator | None = None) -> list[list[int]]:
        """Up to `limit` solutions, by propagation of singles and search; `rng` makes the search order random."""
        found: list[list[int]] = []
        candidates = self._candidates(puzzle)
        if candidates is not None:
            self._search(candidates, limit, found, rng)
        return found

    def by_singles(self, puzzle: list[int]) -> list[int]:
        """The puzzle as far as naked and hidden singles fill it: 0 where they do not."""
        candidates = self._candidates(puzzle)
        if candidates is None or not self._hidden_singles(candidates):
            return list(puzzle)
        return [0 if bits & (bits - 1) else bits.bit_length() for bits in candidates]

    def _candidates(self, puzzle: list[int]) -> list[int] | None:
        """What the clues and the naked singles that follow from them leave in each cell, as bits; None: a conflict."""
        if self.digits > self.size:
            raise ValueError(f"{self.name} has boards to practise on, not puzzles with one solution: give a mask rate")
        candidates = [(1 << self.size) - 1] * self.length
        for cell, digit in enumerate(puzzle):
            if digit and not _assign(candidates, cell, 1 << (digit - 1), self.peers):
                return None
        return candidates

    def _search(
        self, candidates: list[int], limit: int, found: list[list[int]], rng: np.random.Generator | None
    ) -> None:
        if not self._hidden_singles(candidates):
            return
        open_cells = [cell for cell, bits in enumerate(candidates) if bits & (bits - 1)]
        if not open_cells:
            found.append([bits.bit_length() for bits in candidates])
            return
        cell = min(open_cells, key=lambda c: candidates[c].bit_count())
        digits = [1 << d for d in range(self.size) if candidates[cell] >> d & 1]
        if rng is not None:
            rng.shuffle(digits)
        for bit in digits:
            branch = candidates.copy()
            if _assign(branch, cell, bit, self.peers):
                self._search(branch, limit, found, rng)
                if len(found) >= limit:
                    return

    def _hidden_singles(self, candidates: list[int]) -> bool:
        """Places every digit that has one cell left in some unit, until none is; False on a contradiction."""
        changed = True
        while changed:
            changed = False
            for unit in self._unit_lists:
                once = twice = 0
                for cell in unit:
                    twice |= once & candidates[cell]
                    once |= candidates[cell]
                if once != (1 << self.size) - 1:
                    return False
                once &= ~twice
                if once:
                    for cell in unit:
                        bit = candidates[cell] & once
                        if bit and candidates[cell] != bit:
                            if bit & (bit - 1) or not _assign(candidates, cell, bit, self.peers):
                                return False
                            changed = True
        return True

    @functools.cached_property
    def _unit_lists(self) -> list[list[int]]:
        return self.units.tolist()

    def random_problem(
        self, rng: np.random.Generator, clues: tuple[int, int] | None = None, rate: float | None = None
    ) -> str:
        """`clues`: a puzzle with one solution and so many clues. `rate`: a random share of the cells is blank."""
        board = self.solved(1, rng)[0].tolist()
        return self.write(self.dig(board, rng, clues) if rate is None else self.blank(board, rng, rate))

    def fresh(self, rng: np.random.Generator) -> list[int]:
        """A solved board that training never sees: held out by content, and for 9x9 not from its bank of grids."""
        while True:
            nine = self.size == self.digits == 9
            boards = self.shuffle(np.tile(random_grid(rng), (32, 1)), rng) if nine else self.solved(32, rng)
            if (kept := self.held_out(boards)).any():
                return boards[kept][0].tolist()

    def blank(self, board: list[int], rng: np.random.Generator, rate: float) -> list[int]:
        """Blanks each cell with probability `rate`, at least one, and leaves at least one."""
        if not 0 < rate < 1:
            raise ValueError(f"mask rate {rate} is not between 0 and 1")
        while True:
            blanks = rng.random(self.length) < rate
            if blanks.any() and not blanks.all():
                return [0 if blank else digit for blank, digit in zip(blanks, board, strict=True)]

    def dig(self, board: list[int], rng: np.random.Generator, clues: tuple[int, int] | None = None) -> list[int]:
        """Takes clues away in random order while the solution stays unique, down to a number within `clues`.

        Without `clues`, or where the upper end cannot be kept, until no clue more can go.
        """
        target = 0 if clues is None else int(rng.integers(clues[0], clues[1] + 1))
        puzzle, left = list(board), self.length
        for cell in rng.permutation(self.length).tolist():
            if left <= target:
                break
            digit, puzzle[cell] = puzzle[cell], 0
            # Unique as long as no other digit fits in this cell: cheaper than counting from scratch.
            if self._other_fits(puzzle, cell, digit):
                puzzle[cell] = digit
            else:
                left -= 1
        return puzzle

    def _other_fits(self, puzzle: list[int], cell: int, digit: int) -> bool:
        candidates = self._candidates(puzzle)
        if candidates is None:
            return False
        candidates[cell] &= ~(1 << (digit - 1))
        bits = candidates[cell]
        if not bits:
            return False
        if not bits & (bits - 1) and not _propagate(candidates, cell, self.peers):
            return False
        found: list[list[int]] = []
        self._search(candidates, 1, found, None)
        return bool(found)

    # --- text ---------------------------------------------------------------------------------------------------

    def encode(self, problem: str) -> list[int]:
        """Reads a puzzle: digits with 0 or . for blanks; above 9 also letters (A = 10) or numbers set apart."""
        text = problem.strip()
        if len(text) > 20 * self.length + 100:
            raise ValueError(f"the puzzle has {len(text)} characters; {self.length} cells are wanted")
        if self.digits <= 9:
            cells_text = re.findall(r"[^\s|+\-,;]", text)
        elif len(numbers := re.split(r"[\s,;|]+", text.strip(" \t\r\n,;|"))) > 1 and (
            len(numbers) == self.length or any(len(n) == 2 and n.isdecimal() for n in numbers)
        ):
            cells_text = numbers
        else:
            cells_text = re.findall(r"[^\s|+\-,;]", text)
        if len(cells_text) != self.length:
            raise ValueError(
                f"the puzzle has {len(cells_text)} cells; a {self.size}x{self.size} Sudoku has {self.length}"
                " (0 or . for an empty one)"
            )
        puzzle = [self._digit(symbol, place) for place, symbol in enumerate(cells_text)]
        self._reject_repeats(puzzle)
        return puzzle

    def _digit(self, symbol: str, place: int) -> int:
        where = f"row {place // self.size + 1}, column {place % self.size + 1}"
        if symbol in (".", "_", "*", "?"):
            return 0
        if symbol.isascii() and symbol.isdecimal() and len(symbol) <= 2:
            digit = int(symbol)
        elif self.digits > 9 and len(symbol) == 1 and symbol.upper() in LETTERS:
            digit = 10 + LETTERS.index(symbol.upper())
        else:
            raise ValueError(f"{symbol[:8]!r} at {where} is not a digit; use 1 to {self.digits}, or 0 or . for empty")
        if digit > self.digits:
            raise ValueError(f"{symbol!r} at {where} is too large; use 1 to {self.digits}, or 0 or . for empty")
        return digit

    def _reject_repeats(self, puzzle: list[int]) -> None:
        for number, unit in enumerate(self._unit_lists):
            digits = [puzzle[cell] for cell in unit if puzzle[cell]]
            for digit in digits:
                if digits.count(digit) > 1:
                    kind = ("row", "column", "block")[number // self.size]
                    raise ValueError(f"there are two {digit}s in {kind} {number % self.size + 1}")

    def write(self, tokens: list[int]) -> str:
        """One character a cell up to 9x9; above, letters from A = 10 (Z = 35), and numbers for 36."""
        if self.digits <= 9:
            return "".join(str(int(digit)) for digit in tokens)
        if self.digits <= 35:
            return "".join("." if d == 0 else str(int(d)) if d < 10 else LETTERS[int(d) - 10] for d in tokens)
        return " ".join(str(int(digit)) for digit in tokens)

    decode = write

    # --- the judge ----------------------------------------------------------------------------------------------

    def check(self, problem: list[int], answer: list[int]) -> Verdict:
        """Valid: every unit has every digit once, and no clue was changed."""
        answer = [int(digit) for digit in answer]
        conflicts: set[int] = set()
        bad_units = []
        wanted = list(range(1, self.size + 1))
        if self.digits > self.size and len(chosen := set(answer) - {0}) == self.size:
            wanted = sorted(chosen)
        for number, unit in enumerate(self._unit_lists):
            digits = [answer[cell] for cell in unit]
            if sorted(digits) != wanted:
                bad_units.append(f"{('row', 'column', 'block')[number // self.size]} {number % self.size + 1}")
                conflicts.update(cell for cell in unit if answer[cell] == 0 or digits.count(answer[cell]) > 1)
        changed = [cell for cell, clue in enumerate(problem) if clue and clue != answer[cell]]
        details = {"conflicts": sorted(conflicts), "bad_units": len(bad_units), "changed_clues": len(changed)}
        if changed:
            return Verdict(False, f"{len(changed)} clues were changed", details)
        if bad_units:
            some = ", ".join(bad_units[:3]) + (" and more" if len(bad_units) > 3 else "")
            return Verdict(False, f"{len(bad_units)} of {3 * self.size} units are wrong: {some}", details)
        all_digits = f"1 to {self.size}" if self.digits == self.size else f"the same {self.size} digits"
        return Verdict(True, f"every row, column and block has {all_digits} once", details)


def _line_order(count: int, groups: int, lines: int, rng: np.random.Generator) -> np.ndarray:
    """Random orders (count, groups * lines) that shuffle groups of lines, and the lines within each group."""
    within = rng.random((count, groups, lines)).argsort(axis=2)
    group = rng.random((count, groups)).argsort(axis=1)
    return (group[:, :, None] * lines + within).reshape(count, -1)


def _assign(candidates: list[int], cell: int, bit: int, peers: list[tuple[int, ...]]) -> bool:
    if not candidates[cell] & bit:
        return False
    candidates[cell] = bit
    return _propagate(candidates, cell, peers)


def _propagate(candidates: list[int], cell: int, peers: list[tuple[int, ...]]) -> bool:
    """Takes a decided cell's digit from its peers, and goes on from each that is decided by it."""
    decided = [cell]
    while decided:
        cell = decided.pop()
        bit = candidates[cell]
        for peer in peers[cell]:
            bits = candidates[peer]
            if bits & bit:
                bits ^= bit
                if not bits:
                    return False
                candidates[peer] = bits
                if not bits & (bits - 1):
                    decided.append(peer)
    return True


@functools.cache
def random_grids(count: int = RANDOM_GRIDS) -> np.ndarray:
    """Solved 9x9 grids (count, 81) by randomised backtracking from three random diagonal blocks.

    The orbit of one grid under the symmetries is one 5.5-billionth of all grids; these are from thousands of orbits.
    """
    rng = np.random.default_rng(9)
    return np.stack([random_grid(rng) for _ in range(count)])


def random_grid(rng: np.random.Generator) -> np.ndarray:
    board = np.zeros((9, 9), dtype=np.int64)
    for corner in (0, 3, 6):
        board[corner : corner + 3, corner : corner + 3] = rng.permutation(9).reshape(3, 3) + 1
    return np.array(_nine().solutions(board.reshape(-1).tolist(), 1, rng)[0])


@functools.cache
def _nine() -> Sudoku:
    return Sudoku(9)
