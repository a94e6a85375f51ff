import contextlib
import http.server
import io
import re
import threading
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmdm.tasks import get_task, text8
from rmdm.tasks.text8 import GAP, SYMBOLS, Text8, normalise

TASK = Text8()


def test_vocabulary() -> None:
    assert len(SYMBOLS) == 28
    assert SYMBOLS[TASK.mask] == "_"
    assert get_task("text8").length == 256


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("In 1998, the Café\n  opened!", "in one nine nine eight the caf opened "),
        ("a--b__c", "a b c"),
        ("X2Y", "x two y"),
        ("", ""),
    ],
)
def test_normalise_as_the_corpus_was(text: str, wanted: str) -> None:
    assert normalise(text) == wanted


def test_prompts() -> None:
    assert TASK.decode(TASK.encode("The cat")) == "the cat" + "_" * 249
    assert TASK.decode(TASK.encode("the _at s_t"))[:11] == "the _at s_t"
    assert TASK.decode(TASK.encode("9 lives"))[:11] == "nine lives_"
    assert TASK.decode(TASK.encode(" lives"))[:6] == " lives"  # a space that was meant stays
    assert TASK.encode("") == [TASK.mask] * 256
    assert len(TASK.encode("a" * 256)) == 256


@pytest.mark.parametrize(("text", "count"), [("a" * 257, 257), ("7" * 60, 360), ("x" * 30_000, 30_000)])
def test_a_prompt_that_is_too_long_is_an_error(text: str, count: int) -> None:
    with pytest.raises(ValueError, match=rf"the text has {count}.* at most 256"):
        TASK.encode(text)


@given(st.text(max_size=300))
def test_any_text_is_a_prompt_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        decoded = TASK.decode(TASK.encode(text))
        assert re.fullmatch(r"[a-z_ ]{256}", decoded)
        assert "  " not in decoded
        given_ = decoded.rstrip(GAP)
        assert TASK.decode(TASK.encode(given_)) == decoded  # normalising again changes nothing


def test_verdicts() -> None:
    problem = TASK.encode("the c_t")
    filled = [token if token != TASK.mask else 1 for token in problem]
    assert TASK.check(problem, filled).valid
    assert "249" in TASK.check(problem, [*filled[:7], *problem[7:]]).reason
    assert not TASK.check(problem, [5, *filled[1:]]).valid


# --- the corpus -------------------------------------------------------------------------------------------------------


def test_splits_and_windows(corpus: Path) -> None:
    task, text = TASK.with_corpus(corpus), corpus.read_text()
    parts = [task.decode(task.split(name).tolist()) for name in ("train", "validation", "test")]
    assert "".join(parts) == text
    assert [len(part) for part in parts] == [9000, 500, 500]
    tokens, region = task.batch(50, np.random.default_rng(0))
    assert tokens.shape == region.shape == (50, 256)
    assert tokens.dtype == np.int64
    assert region.all()
    assert all(task.decode(row) in parts[0] for row in tokens.tolist())
    prompt = task.random_problem(np.random.default_rng(0))
    assert len(prompt) == 64
    assert prompt in parts[2]
    assert not task.held_out(tokens).any()
    with pytest.raises(ValueError, match="choose from train, validation, test"):
        task.split("dev")


def test_other_text_is_normalised(tmp_path: Path) -> None:
    (tmp_path / "book").write_text("Chapter 1. Näive!\n" * 400)
    assert TASK.decode(TASK.with_corpus(tmp_path / "book").corpus[:24].tolist()) == "chapter one n ive chapte"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"too short", "9 characters; at least 5120"),
        (b"PK\x03\x04" + b"a" * 6000, "zip archive"),
        (None, "cannot be read"),
    ],
)
def test_bad_corpora(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "c").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        TASK.with_corpus(tmp_path / "c").batch(1, np.random.default_rng(0))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[dict[str, bytes], Path]]:
    """A stand-in for the corpus's address: what it sends is set by the test. Also an empty cache."""
    content: dict[str, bytes] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content["zip"])

        def log_message(self, *_: object) -> None: ...

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    monkeypatch.setattr(text8, "ADDRESS", f"http://127.0.0.1:{running.server_port}/text8.zip")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("http_proxy", raising=False)
    yield content, tmp_path / "rmdm" / "text8"
    running.shutdown()
    thread.join()
    running.server_close()


def zipped(text: bytes, name: str = "text8") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, text)
    return out.getvalue()


def test_the_corpus_is_fetched_checked_and_cached(
    server: tuple[dict[str, bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    content, cached = server
    text = b"some words " * 1000
    monkeypatch.setattr(text8, "SIZE", len(text))
    monkeypatch.setattr(text8, "CRC", zlib.crc32(text))
    content["zip"] = zipped(text)
    assert len(Text8().corpus) == len(text)
    assert cached.read_bytes() == text
    assert list(cached.parent.iterdir()) == [cached]
    content["zip"] = b""  # from now on the cache serves
    assert len(Text8().corpus) == len(text)
    cached.write_bytes(text[:-1] + b"x")
    with pytest.raises(ValueError, match="not the text8 corpus"):
        _ = Text8().corpus


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (zipped(b"other words " * 1000), "sent another file: 12000 bytes"),
        (b"<html>gone</html>", "not a zip file"),
        (zipped(b"words " * 1000, name="other"), "text8"),
    ],
)
def test_a_wrong_download_leaves_nothing_behind(
    server: tuple[dict[str, bytes], Path], sent: bytes, message: str
) -> None:
    content, cached = server
    content["zip"] = sent
    with pytest.raises(ValueError, match=message):
        _ = Text8().corpus
    assert list(cached.parent.iterdir()) == []


def test_without_a_corpus_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(text8, "ADDRESS", "http://127.0.0.1:9/text8.zip")
    with pytest.raises(ValueError, match="--data PATH"):
        Text8().batch(1, np.random.default_rng(0))
