"""How good answers are: pure functions of boards, chains and texts. What a single answer is worth, the tasks judge."""

import functools
import heapq
import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from rmdm.tasks import Verdict


def wilson(successes: float, n: int) -> tuple[float, float]:
    """The 95% interval of a rate (Wilson's score interval, which holds near 0 and 1 too)."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"{successes} successes in {n} trials")
    z = 1.959964
    rate, spread = successes / n, z * z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = z * math.sqrt(rate * (1 - rate) / n + spread / (4 * n)) / (1 + spread)
    return (0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half)


def mean_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """The 95% interval of a mean, by the normal approximation."""
    mean, n = float(np.mean(values)), len(values)
    half = 1.959964 * float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return mean - half, mean + half


# --- Sudoku ---------------------------------------------------------------------------------------------------------


def soft_constraint_loss(boards: np.ndarray, units: np.ndarray) -> np.ndarray:
    """SCL: over the 3n units, the sum of the shares of digits that are missing. (B, N), (3n, n) -> (B,)"""
    size = units.shape[1]
    digits = boards[:, units]  # (B, 3n, n)
    covered = (digits[..., None] == np.arange(1, size + 1)).any(axis=2).sum(axis=2)  # (B, 3n)
    return (size - covered).sum(axis=1) / size


def clues_kept(problems: np.ndarray, boards: np.ndarray) -> np.ndarray:
    """Whether every given digit stands where it stood. (B, N), (B, N) -> (B,) bool"""
    return ((problems == 0) | (problems == boards)).all(axis=1)


def sudoku(
    problems: np.ndarray, boards: np.ndarray, units: np.ndarray, solutions: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Each board's share in VPR, SCL, clue consistency and, where the solutions are known, the exact-solution rate."""
    loss, kept = soft_constraint_loss(boards, units), clues_kept(problems, boards)
    result = {"vpr": (loss == 0) & kept, "scl": loss, "clues": kept}
    if solutions is not None:
        result["exact"] = (boards == solutions).all(axis=1)
    return result


# --- Countdown ------------------------------------------------------------------------------------------------------


def countdown(verdicts: Sequence[Verdict]) -> dict[str, np.ndarray]:
    """Each chain's share in RTR, PPF, LAF and TRN, and the share of its lines that parse."""
    result = {key: np.array([verdict.details[key] for verdict in verdicts]) for key in ("ppf", "laf", "trn", "parsed")}
    return {"rtr": np.array([verdict.valid for verdict in verdicts]), **result}


# --- text -----------------------------------------------------------------------------------------------------------


def unigram_entropy(text: str) -> float:
    """The entropy of the text's own character frequencies, in nats."""
    return -sum(n / len(text) * math.log(n / len(text)) for n in Counter(text).values())


COMMON_WORDS = 50_000  # 95% of the words of text8 are among these, with one letter changed 31%


@functools.cache
def web_words() -> dict[str, float]:
    """How often each of a third of a million words comes on the web, as `wordsegment` counts them."""
    from wordsegment import Segmenter  # loads for a second, and only texts need it

    return Segmenter.parse(Segmenter.UNIGRAMS_FILENAME)


@functools.cache
def common_words() -> frozenset[str]:
    return frozenset(heapq.nlargest(COMMON_WORDS, web_words(), key=web_words().__getitem__))


def real_words(given: str, filled: str, gap: str) -> float:
    """Of the whole words that were filled in, even in part, the share of common ones. 1 where none was to be filled in.

    A word at an end of the window may be cut off, and does not count.
    """
    if gap not in given:
        return 1.0
    written = [word[0] for word in re.finditer(r"(?<= )\S+(?= )", filled) if gap in given[word.start() : word.end()]]
    return sum(word in common_words() for word in written) / max(len(written), 1)  # no word at all: none is real


class Scorer(Protocol):
    """A frozen language model that says how likely a text is."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...  # what one of its tokens is
    def nll(self, text: str) -> float:
        """Nats per token of the scorer."""


def text(texts: Sequence[str], scorer: Scorer) -> dict[str, np.ndarray]:
    """Each text's share in NLL, generative perplexity (a mean of perplexities), BPD and entropy.

    NLL and BPD are per token of the scorer, as in the paper: not to be mixed with bits per character.
    """
    nll = np.array([scorer.nll(sample) for sample in texts])
    entropy = np.array([unigram_entropy(sample) for sample in texts])
    return {"nll": nll, "gen_ppl": np.exp(nll), "bpd": nll / math.log(2), "entropy": entropy}


class WordScorer:
    """Words and word pairs of the web as `wordsegment` counts them: needs no download, and knows words, not sense.

    A word's probability is a mixture: how often it follows the word before, how often it comes at all, and how likely
    its spelling is letter by letter, so that a rare name costs less than gibberish does. Of the weights tried, these
    were about the best for real English; they matter little. Perplexities per word are large numbers.
    """

    name = "wordsegment"
    unit = "word"
    PAIR, WORD, SPELLING = 0.4, 0.59, 0.01

    def __init__(self) -> None:
        from wordsegment import Segmenter

        self._words = web_words()
        self._pairs = Segmenter.parse(Segmenter.BIGRAMS_FILENAME)
        self._total = sum(self._words.values())
        letters = "".join(f" {word}" for word in self._words) + " "  # a space opens and closes every word
        self._letters, self._letter_pairs = Counter(letters), Counter(pairwise(letters))

    def probability(self, word: str, before: str) -> float:
        pair = self._pairs.get(f"{before} {word}", 0.0) / self._words.get(before, math.inf)
        spelling = math.prod(  # one is added, so that a pair of letters that never came is possible
            (self._letter_pairs[a, b] + 1) / (self._letters[a] + 28) for a, b in pairwise(f" {word} ")
        )
        alone = self._words.get(word, 0.0) / self._total
        # A few pairs are counted more often than their first word. And 100 letters without a space are as bad as 300.
        return max(self.PAIR * min(pair, 1.0) + self.WORD * alone + self.SPELLING * spelling, 1e-100)

    def nll(self, text: str) -> float:
        # The first and last word may be cut off by the window's edge: the first is context, the last is left out.
        pairs = list(pairwise(text.split()))[:-1] or [("", text.strip())]
        return -sum(math.log(self.probability(word, before)) for before, word in pairs) / len(pairs)


class CausalScorer:
    """GPT-J-6B, the paper's scorer, or another causal model, through transformers. It is 24 GB, and downloaded."""

    unit = "token"

    def __init__(self, name: str = "EleutherAI/gpt-j-6b") -> None:
        try:
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError:
            raise ValueError(f"the scorer {name!r} needs transformers. Run: pip install '.[gptj]'") from None
        self.name = name
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(name)
            self.model = AutoModelForCausalLM.from_pretrained(name).eval()
        except (OSError, ValueError) as error:
            raise ValueError(f"the scorer {name!r} cannot be loaded: {str(error).splitlines()[0]}") from None

    @torch.no_grad()
    def nll(self, text: str) -> float:
        tokens = self.tokenizer(text, return_tensors="pt").input_ids  # (1, N)
        if tokens.shape[1] < 2:
            raise ValueError(f"the text {text[:20]!r} is too short to be scored")
        logits = self.model(tokens).logits[0, :-1].float()  # each but the first is predicted from those before
        return F.cross_entropy(logits, tokens[0, 1:]).item()


def get_scorer(name: str) -> Scorer:
    """`wordsegment`, or the hub id or folder of a causal model, such as EleutherAI/gpt-j-6b."""
    return WordScorer() if name == WordScorer.name else CausalScorer(name)
