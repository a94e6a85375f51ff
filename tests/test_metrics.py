"""Metrics against boards, chains and texts worked by hand."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmdm import metrics
from rmdm.metrics import CausalScorer, WordScorer, get_scorer, unigram_entropy, wilson
from rmdm.tasks.countdown import SYMBOLS, Countdown
from rmdm.tasks.sudoku import Sudoku

FOUR = Sudoku(4)
RIGHT = [1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1]


def scl(board: list[int]) -> float:
    return float(metrics.soft_constraint_loss(np.array([board]), FOUR.units)[0])


def test_soft_constraint_loss_by_hand() -> None:
    assert scl(RIGHT) == 0
    assert scl([1] * 16) == 12 * 3 / 4  # each of 12 units has 1 of 4 digits; the paper's maximum 3(n - 1)
    assert scl([0] * 16) == 12  # no digit at all is worse than one
    assert scl([2, *RIGHT[1:]]) == 3 / 4  # row 1, column 1 and block 1 each lack the 1
    assert scl([1, 2, 4, 3, *RIGHT[4:]]) == 2 / 4  # columns 3 and 4 lack a digit each; row 1 and block 2 are whole


def test_rates_of_boards() -> None:
    problem = [1, 0, 3, 4, *[0] * 12]
    other = FOUR.shuffle(np.array([RIGHT]), np.random.default_rng(3))[0].tolist()
    boards = np.array([RIGHT, [2, *RIGHT[1:]], other])
    result = metrics.sudoku(np.array([problem] * 3), boards, FOUR.units, np.array([RIGHT] * 3))
    assert other[:4] != RIGHT[:4]
    assert result["vpr"].tolist() == [True, False, False]  # the third is a whole board, but of another puzzle
    assert result["clues"].tolist() == [True, False, False]
    assert result["exact"].tolist() == [True, False, False]
    assert result["scl"].tolist() == [0, 0.75, 0]
    assert "exact" not in metrics.sudoku(np.array([problem] * 3), boards, FOUR.units, None)


@given(st.lists(st.integers(0, 4), min_size=16, max_size=16), st.lists(st.integers(0, 4), min_size=16, max_size=16))
def test_vpr_is_what_the_judge_says(problem: list[int], board: list[int]) -> None:
    result = metrics.sudoku(np.array([problem]), np.array([board]), FOUR.units, None)
    verdict = FOUR.check(problem, board)
    assert bool(result["vpr"][0]) == verdict.valid
    units = [{board[cell] for cell in unit} & {1, 2, 3, 4} for unit in FOUR.units.tolist()]
    assert result["scl"][0] == pytest.approx(sum(1 - len(unit) / 4 for unit in units))


def test_countdown_figures() -> None:
    task = Countdown(3)
    problem = task.encode("15,44,79=50")
    chains = [
        "79-44=35\n35+15=50",
        "79-44=35\n35+15=51",
        "nonsense".replace("n", "9").translate({ord(c): "=" for c in "ose"}),
    ]
    answers = [[SYMBOLS.index(c) for c in f"79,44,15=50\n{chain}".ljust(48, "\n")] for chain in chains]
    result = metrics.countdown([task.check(problem, answer) for answer in answers])
    assert result["rtr"].tolist() == [True, False, False]
    assert result["ppf"].tolist() == [1, 0.5, 0]
    assert result["laf"].tolist() == [1, 0.5, 0]
    assert result["trn"].tolist() == [0, 0.3, 1]
    assert result["parsed"].tolist() == [1, 1, 0]


def test_entropy_in_nats() -> None:
    assert unigram_entropy("aaaa") == 0
    assert unigram_entropy("abab") == pytest.approx(math.log(2))
    assert unigram_entropy("aaab") == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))


def test_text_figures() -> None:
    class Fixed:
        name, unit = "fixed", "word"

        def nll(self, text: str) -> float:
            return {"ab": 1.0, "cc": 3.0}[text]

    result = metrics.text(["ab", "cc"], Fixed())
    assert result["nll"].mean() == 2
    assert result["gen_ppl"].mean() == pytest.approx((math.e + math.e**3) / 2)  # a mean of perplexities
    assert result["bpd"].mean() == pytest.approx(2 / math.log(2))
    assert result["entropy"].tolist() == pytest.approx([math.log(2), 0])


@pytest.mark.parametrize(
    ("given", "filled", "share"),
    [
        ("the cat _________", "the cat sat xqz t", 1 / 2),  # sat and xqz; the last word is cut off
        ("_________________", "ing sat on xqz th", 2 / 3),  # and so is the first
        ("the c_t sat on it", "the cat sat on it", 1.0),  # a word with one gap is one that was filled in
        ("xqz c_t sat on it", "xqz czt sat on it", 0.0),
        ("_________________", "xqzxqzxqzxqzxqzxq", 0.0),  # no word at all
        ("the xqz sat on it", "the xqz sat on it", 1.0),  # nothing to fill in
    ],
)
def test_real_words_are_those_that_were_filled_in(given: str, filled: str, share: float) -> None:
    assert metrics.real_words(given, filled, "_") == pytest.approx(share)


def test_wilson_against_known_values() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0, 0.1611), abs=1e-4)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=1e-4)
    assert wilson(20, 20) == pytest.approx((1 - 0.1611, 1), abs=1e-4)


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_rate(case: tuple[int, int]) -> None:
    low, high = wilson(*case)
    assert 0 <= low <= case[0] / case[1] <= high <= 1


@pytest.mark.parametrize("case", [(1, 0), (-1, 3), (4, 3)])
def test_wilson_of_nonsense(case: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="trials"):
        wilson(*case)


# --- scorers ----------------------------------------------------------------------------------------------------------

ENGLISH = "the history of the city is known from the works of the early writers who lived in the area at the time"


def test_the_offline_scorer_tells_english_from_noise(words: WordScorer) -> None:
    order = np.random.default_rng(0).permutation(len(ENGLISH))
    shuffled_words = " ".join(np.random.default_rng(0).permutation(ENGLISH.split()))
    real, shuffled, noise = (words.nll(text) for text in (ENGLISH, shuffled_words, "".join(ENGLISH[i] for i in order)))
    assert real < shuffled < noise
    assert noise > 2 * real


def test_the_offline_scorer_is_a_mean_of_words_inside_the_window(words: WordScorer) -> None:
    inner = [words.probability("of", "history"), words.probability("the", "of")]
    assert words.nll("history of the cit") == pytest.approx(-sum(map(math.log, inner)) / 2)
    assert words.nll("x" * 256) == pytest.approx(100 * math.log(10))  # the worst there is


def test_probabilities_of_words_add_up_to_at_most_one(words: WordScorer) -> None:
    following = {pair.split(" ")[1] for pair in words._pairs if pair.startswith("of ")} & words._words.keys()
    assert sum(words.probability(word, "of") for word in following) < 1


def test_any_text_has_a_finite_score(words: WordScorer) -> None:
    @given(st.text(" abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=256))
    def finite(text: str) -> None:
        assert 0 <= words.nll(text) < 1000

    finite()


@pytest.mark.skipif(
    not importlib.util.find_spec("transformers"), reason="transformers is not installed (pip install '.[gptj]')"
)
def test_gpt_j_scores_by_hand(tmp_path: Path) -> None:
    """A tiny GPT-J made on the spot, its loss against the sum of its own log-probabilities."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPTJConfig, GPTJForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    vocabulary = {character: number for number, character in enumerate("abcdefghijklmnopqrstuvwxyz ")}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    config = GPTJConfig(
        vocab_size=27, n_positions=64, n_embd=32, n_layer=1, n_head=2, rotary_dim=8, bos_token_id=26, eos_token_id=26
    )
    model = GPTJForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    scorer = get_scorer(str(tmp_path))
    ids = torch.tensor([[vocabulary[c] for c in "hello there"]])
    with torch.no_grad():
        log_p = model(ids).logits[0].log_softmax(dim=-1)
    wanted = -sum(log_p[n, ids[0, n + 1]].item() for n in range(10)) / 10
    assert scorer.nll("hello there") == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(ValueError, match="too short"):
        scorer.nll("a")


@pytest.mark.skipif(bool(importlib.util.find_spec("transformers")), reason="transformers is installed")
def test_without_transformers_the_error_says_what_to_install() -> None:
    with pytest.raises(ValueError, match="pip install"):
        CausalScorer()
