// Reading, judging and shuffling Sudoku, with the words of rmdm/tasks/sudoku.py. `grid` is { size, block_rows, block_cols }.

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const KINDS = ["row", "column", "block"];
const range = (n) => [...Array(n).keys()];

// The 3n units: rows, columns, blocks, each a list of cells.
export function units({ size, block_rows: rows, block_cols: columns }) {
  const cell = (row, column) => row * size + column;
  const across = size / columns;
  return [
    ...range(size).map((k) => range(size).map((i) => cell(k, i))),
    ...range(size).map((k) => range(size).map((i) => cell(i, k))),
    ...range(size).map((k) => range(size).map((i) =>
      cell(Math.floor(k / across) * rows + Math.floor(i / columns), (k % across) * columns + (i % columns)))),
  ];
}

// Digits with 0 or . for blanks; above 9 also letters (A = 10) or numbers set apart. Throws what is wrong, in words.
export function encode(grid, problem) {
  const { size } = grid, length = size * size, text = problem.trim();
  if (text.length > 20 * length + 100) throw new Error(`the puzzle has ${text.length} characters; ${length} cells are wanted`);
  const numbers = text.replace(/^[\s,;|]+|[\s,;|]+$/g, "").split(/[\s,;|]+/);
  const apart = size > 9 && numbers.length > 1 && (numbers.length === length || numbers.some((n) => /^\d\d$/.test(n)));
  const cells = apart ? numbers : text.match(/[^\s|+\-,;]/gu) || [];
  if (cells.length !== length)
    throw new Error(`the puzzle has ${cells.length} cells; a ${size}x${size} Sudoku has ${length} (0 or . for an empty one)`);
  const tokens = cells.map((symbol, place) => {
    const where = `row ${Math.floor(place / size) + 1}, column ${(place % size) + 1}`;
    if ([".", "_", "*", "?"].includes(symbol)) return 0;
    const letter = size > 9 && symbol.length === 1 ? LETTERS.indexOf(symbol.toUpperCase()) : -1;
    if (!/^\d\d?$/.test(symbol) && letter < 0)
      throw new Error(`'${symbol.slice(0, 8)}' at ${where} is not a digit; use 1 to ${size}, or 0 or . for empty`);
    const digit = letter < 0 ? Number(symbol) : 10 + letter;
    if (digit > size) throw new Error(`'${symbol}' at ${where} is too large; use 1 to ${size}, or 0 or . for empty`);
    return digit;
  });
  units(grid).forEach((unit, number) => {
    const digits = unit.map((cell) => tokens[cell]).filter(Boolean);
    const twice = digits.find((digit) => digits.indexOf(digit) !== digits.lastIndexOf(digit));
    if (twice) throw new Error(`there are two ${twice}s in ${KINDS[Math.floor(number / size)]} ${(number % size) + 1}`);
  });
  return tokens;
}

// One character a cell up to 9x9; above, letters from A = 10 (Z = 35), and numbers for 36.
export function write({ size }, tokens) {
  if (size <= 9) return tokens.join("");
  if (size <= 35) return tokens.map((d) => (d === 0 ? "." : d < 10 ? String(d) : LETTERS[d - 10])).join("");
  return tokens.join(" ");
}

// Valid: every unit has every digit once, and no clue was changed.
export function check(grid, problem, answer) {
  const { size } = grid;
  const changed = Array.from(problem).filter((clue, cell) => clue && clue !== answer[cell]).length;
  const bad = units(grid).flatMap((unit, number) => {
    const digits = new Set(unit.map((cell) => answer[cell]));
    return digits.size === size && !digits.has(0) ? [] : [`${KINDS[Math.floor(number / size)]} ${(number % size) + 1}`];
  });
  if (changed) return { valid: false, reason: `${changed} clues were changed` };
  if (bad.length) {
    const some = bad.slice(0, 3).join(", ") + (bad.length > 3 ? " and more" : "");
    return { valid: false, reason: `${bad.length} of ${3 * size} units are wrong: ${some}` };
  }
  return { valid: true, reason: `every row, column and block has 1 to ${size} once` };
}

// Another puzzle that is as hard: bands, rows within a band, stacks, columns within a stack, and digits change places.
export function shuffle({ size, block_rows: rows, block_cols: columns }, tokens) {
  const mix = (list) => {
    for (let i = list.length - 1; i > 0; i--) {
      const j = Math.floor(Math.random() * (i + 1));
      [list[i], list[j]] = [list[j], list[i]];
    }
    return list;
  };
  const lines = (lot) => mix(range(size / lot)).flatMap((group) => mix(range(lot)).map((line) => group * lot + line));
  const down = lines(rows), across = lines(columns), digits = [0, ...mix(range(size).map((i) => i + 1))];
  const turn = rows === columns && Math.random() < 0.5;
  return down.flatMap((row) => across.map((column) => digits[tokens[turn ? column * size + row : row * size + column]]));
}
