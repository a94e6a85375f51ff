"""Text8: 256 characters of lower-case English. Reader of any text, and the corpus from path, cache or network."""

import functools
import os
import re
import tempfile
import urllib.request
import zipfile
import zlib
from pathlib import Path

import numpy as np
from tqdm import tqdm

from rmdm.tasks import Verdict

SYMBOLS = tuple(" abcdefghijklmnopqrstuvwxyz_")
GAP = "_"
LENGTH = 256
PROMPT = 64  # the paper's prompts are about as long
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

ADDRESS = "http://mattmahoney.net/dc/text8.zip"
SIZE, CRC = 100_000_000, 0x7D6BE66F  # of the unzipped file
LARGEST_ZIP = 64 * 2**20  # the real one has 31 MB
SPLITS = {"train": (0.0, 0.9), "validation": (0.9, 0.95), "test": (0.95, 1.0)}
SHORTEST = LENGTH * 20  # so that the twentieth parts hold a window each


def normalise(text: str, gaps: bool = False) -> str:
    """As the corpus was made: lower case, digits spelled out one by one, all else a space, and no two spaces in a row.

    With `gaps`, an underscore stays: it marks a character to be filled in.
    """
    text = re.sub(r"[0-9]", lambda digit: f" {DIGITS[int(digit[0])]} ", text.lower())
    return re.sub(r"[^a-z_]+" if gaps else r"[^a-z]+", " ", text)


class Text8:
    name = "text8"
    symbols = SYMBOLS
    mask = SYMBOLS.index(GAP)
    length = LENGTH
    grid = None
    steps = 64
    threshold = None

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = path

    def with_corpus(self, path: str | Path | None) -> "Text8":
        """The same task on the corpus at `path`; None: the official one, from the cache or the network."""
        return Text8(path)

    # --- the corpus ---------------------------------------------------------------------------------------------

    @functools.cached_property
    def corpus(self) -> np.ndarray:
        """All of it as token ids (uint8), read when it is first needed."""
        return read_corpus(official() if self.path is None else Path(self.path))

    def split(self, name: str) -> np.ndarray:
        """The first 90%, the next 5% or the last 5%: 90, 5 and 5 million characters of the whole corpus."""
        if name not in SPLITS:
            raise ValueError(f"split {name!r} is unknown; choose from {', '.join(SPLITS)}")
        low, high = (round(share * len(self.corpus)) for share in SPLITS[name])
        return self.corpus[low:high]

    def windows(self, split: str, count: int, rng: np.random.Generator, length: int = LENGTH) -> np.ndarray:
        """Random windows (count, length) of a split."""
        text = np.lib.stride_tricks.sliding_window_view(self.split(split), length)
        return text[rng.integers(len(text), size=count)].astype(np.int64)

    def batch(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return self.windows("train", count, rng), np.ones((count, LENGTH), dtype=bool)

    def held_out(self, tokens: np.ndarray) -> np.ndarray:
        """None: batches come from the train split alone."""
        return np.zeros(len(tokens), dtype=bool)

    def random_problem(self, rng: np.random.Generator) -> str:
        """A prompt from the test split, to be continued."""
        return self.decode(self.windows("test", 1, rng, PROMPT)[0].tolist())

    # --- text ---------------------------------------------------------------------------------------------------

    def encode(self, problem: str) -> list[int]:
        """Any text, `_` for a gap, continued by gaps up to 256 characters."""
        if len(problem) > 100 * LENGTH:
            raise ValueError(f"the text has {len(problem)} characters; at most {LENGTH} are taken")
        text = normalise(problem, gaps=True)
        text = text.lstrip(" ") if problem[:1] != " " else text  # the space before a first digit's name
        if len(text) > LENGTH:
            raise ValueError(
                f"the text has {len(text)} characters in lower-case letters and spaces; at most {LENGTH} are taken"
            )
        return [SYMBOLS.index(character) for character in text.ljust(LENGTH, GAP)]

    def decode(self, tokens: list[int]) -> str:
        return "".join(SYMBOLS[int(token)] for token in tokens)

    # --- the judge ----------------------------------------------------------------------------------------------

    def check(self, problem: list[int], answer: list[int]) -> Verdict:
        """Text has no right answer: valid means that every gap is filled and nothing else has changed."""
        changed = sum(given not in (self.mask, int(new)) for given, new in zip(problem, answer, strict=True))
        gaps = sum(int(token) == self.mask for token in answer)
        details = {"changed": changed, "gaps": gaps}
        if changed:
            return Verdict(False, f"{changed} given characters were changed", details)
        if gaps:
            return Verdict(False, f"{gaps} gaps are left", details)
        return Verdict(True, "every gap is filled", details)


def read_corpus(path: Path) -> np.ndarray:
    """A text file as token ids; text that is not in the corpus's alphabet is normalised."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ValueError(f"the corpus {path} cannot be read: {error.strerror}") from None
    if raw[:4] == b"PK\x03\x04":
        raise ValueError(f"the corpus {path} is a zip archive; unzip it first")
    ids = np.full(256, 255, dtype=np.uint8)
    ids[[ord(symbol) for symbol in SYMBOLS[:-1]]] = np.arange(len(SYMBOLS) - 1)
    tokens = ids[np.frombuffer(raw, dtype=np.uint8)]
    if (tokens == 255).any():
        text = normalise(raw.decode("utf-8", errors="replace"))
        tokens = ids[np.frombuffer(text.encode("ascii"), dtype=np.uint8)]
    if len(tokens) < SHORTEST:
        raise ValueError(f"the corpus {path} has {len(tokens)} characters; at least {SHORTEST} are needed")
    return tokens


def official() -> Path:
    """The whole corpus in the user's cache, fetched there first if need be."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rmdm" / "text8"
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _fetch(path)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(
                f"text8 is not in the cache ({path}) and cannot be fetched: {error}."
                f" Give a text file with --data PATH, or put the file from {ADDRESS}, unzipped, into the cache"
            ) from None
    elif path.stat().st_size != SIZE or zlib.crc32(path.read_bytes()) != CRC:
        raise ValueError(f"{path} is not the text8 corpus (size or checksum differ); delete it, or give --data PATH")
    return path


def _fetch(path: Path) -> None:
    """Downloads and unzips the corpus; it appears at `path` whole and checked, or not at all."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        archive, text = Path(folder) / "text8.zip", Path(folder) / "text8"
        with urllib.request.urlopen(ADDRESS, timeout=30) as answer, open(archive, "wb") as file:
            total = int(answer.headers.get("Content-Length") or 0) or None
            with tqdm(total=total, unit="B", unit_scale=True, desc="text8.zip", disable=None) as bar:
                while block := answer.read(2**18):
                    bar.update(len(block))
                    if bar.n > LARGEST_ZIP or file.tell() > LARGEST_ZIP:
                        raise ValueError(f"{ADDRESS} sends more than {LARGEST_ZIP} bytes")
                    file.write(block)
        checksum = size = 0
        with zipfile.ZipFile(archive) as zipped, zipped.open("text8") as source, open(text, "wb") as target:
            while size <= SIZE and (block := source.read(2**20)):
                size, checksum = size + len(block), zlib.crc32(block, checksum)
                target.write(block)
        if (size, checksum) != (SIZE, CRC):
            raise ValueError(f"{ADDRESS} sent another file: {size} bytes, CRC-32 {checksum:08x}")
        os.replace(text, path)
