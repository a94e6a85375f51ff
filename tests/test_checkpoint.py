"""Checkpoints: what was saved comes back, and nothing that a stranger sends runs, explodes or passes unnoticed."""

import contextlib
import json
import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import rmdm
from rmdm import checkpoint
from rmdm.checkpoint import KEY, PretrainedDenoiser, wanted_shapes, write_atomically
from rmdm.model import Denoiser
from tests.conftest import tiny_config, tiny_model

TOKENS = torch.zeros(2, 16, dtype=torch.long)


def same(a: Denoiser, b: rmdm.checkpoint.Loaded) -> bool:
    with torch.no_grad():
        return all(torch.equal(x, y) for x, y in zip(a(TOKENS, 3), b(TOKENS, 3), strict=True))


@pytest.mark.parametrize(
    "changes", [{}, {"attention": "units"}, {"step_embedding": "none"}, {"step_embedding": "fixed"}]
)
def test_saved_and_loaded(tmp_path: Path, changes: dict) -> None:
    model = tiny_model(**changes)
    rmdm.save(model, tmp_path / "mine", card_text="# card", extra_metadata={"steps": "7"})
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    loaded = rmdm.load(tmp_path / "mine")
    assert isinstance(loaded, PretrainedDenoiser)
    assert (loaded.name, loaded.backend, loaded.task.name) == ("mine", "PyTorch", "sudoku-4x4")
    assert loaded.config == model.config
    assert loaded.metadata["steps"] == "7"
    assert not loaded.training
    assert same(model, loaded)
    assert json.loads((tmp_path / "mine" / "config.json").read_text()) == {**model.config.to_dict(), "grid": [2, 2]}


@pytest.mark.parametrize("name", ["sudoku-6x6", "countdown-3"])
@pytest.mark.parametrize("step_embedding", ["learned", "fixed", "none"])
def test_wanted_shapes_are_the_models(name: str, step_embedding: str) -> None:
    numbers = {"places": 3, "values": True, "neighbours": 2} if name == "countdown-3" else {}
    config = tiny_config(name, layers=2, step_embedding=step_embedding, **numbers)
    assert wanted_shapes(config) == {key: list(t.shape) for key, t in Denoiser(config).state_dict().items()}


def test_loading_draws_no_random_numbers(checkpoints: Path) -> None:
    torch.manual_seed(0)
    wanted = torch.rand(1)
    torch.manual_seed(0)
    rmdm.load(checkpoints / "sudoku-4x4")
    assert torch.equal(torch.rand(1), wanted)


def test_every_way_to_name_a_checkpoint(checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rmdm.shipped(checkpoints) == ["countdown-3", "sudoku-4x4", "sudoku-9x9", "text8"]
    assert rmdm.load("sudoku-4x4", checkpoints=checkpoints).name == "sudoku-4x4"
    assert rmdm.load(checkpoints / "text8" / "model.safetensors").name == "text8"
    monkeypatch.setattr(checkpoint, "SHIPPED", checkpoints)
    assert rmdm.load("countdown-3").task.name == "countdown-3"
    assert rmdm.shipped(tmp_path / "none") == []


def test_names_that_lead_nowhere(checkpoints: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("sudoku-5x5", "shipped are countdown-3, sudoku-4x4, sudoku-9x9, text8"),
        ("../sudoku-4x4", "there is no checkpoint"),
        ("countdown-5", "there is no checkpoint 'countdown-5'"),  # asked for, where the model of its count is missing
        (str(tmp_path / "empty"), "neither model.safetensors"),
        ("someone/something", "no file or folder 'someone/something' here, and the hub cannot be reached"),
        ("", "neither|there is no checkpoint"),
    ):
        with pytest.raises(ValueError, match=message):
            rmdm.load(name, checkpoints=checkpoints)


def test_the_hubs_mixin(tmp_path: Path) -> None:
    model = PretrainedDenoiser(tiny_config())
    model.load_state_dict(tiny_model().state_dict())
    model.save_pretrained(tmp_path / "a")
    again = PretrainedDenoiser.from_pretrained(tmp_path / "a")
    assert same(model, again)
    assert "rmdm" in (tmp_path / "a" / "README.md").read_text()
    assert callable(model.push_to_hub)
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "config.json").write_text((tmp_path / "a" / "config.json").read_text())
    torch.save(model.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    with pytest.raises(ValueError, match="cannot be read"):  # the hub's own PyTorch mixin would take it
        PretrainedDenoiser.from_pretrained(tmp_path / "pickled")


def test_a_card_survives_saving_without_one(tmp_path: Path) -> None:
    rmdm.save(tiny_model(), tmp_path, card_text="# mine")
    rmdm.save(tiny_model(seed=1), tmp_path)
    assert (tmp_path / "README.md").read_text() == "# mine"


def test_writing_is_atomic(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("before")

    def fails(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError):
        write_atomically(target, fails)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]
    write_atomically(target, lambda path: path.write_text("after"))
    assert target.read_text() == "after"
    assert oct(target.stat().st_mode & 0o777) == "0o644"


def test_weights_are_stored_once_whatever_the_loops(tmp_path: Path) -> None:
    sizes = []
    for loops in (1, 9):
        rmdm.save(tiny_model(loops=loops), tmp_path / str(loops))
        sizes.append((tmp_path / str(loops) / "model.safetensors").stat().st_size)
    assert sizes[0] == sizes[1]


def test_a_compiled_models_keys_are_refused(tmp_path: Path) -> None:
    class Compiled(torch.nn.Module):  # torch.compile wraps a model in just this way
        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = tiny_model()
            self.config = self._orig_mod.config

    with pytest.raises(ValueError, match="lacks"):
        rmdm.save(Compiled(), tmp_path)  # type: ignore[arg-type]


# --- hostile files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def parts(checkpoints: Path) -> tuple[dict[str, torch.Tensor], dict]:
    return load_file(checkpoints / "sudoku-4x4" / "model.safetensors"), tiny_config().to_dict()


def refused(path: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rmdm.load(path)


class Bomb:
    def __reduce__(self) -> tuple:
        return os.system, ("touch " + os.environ["BOMB"],)


@pytest.mark.parametrize("length", [0x10480, 0x4B50])
def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path: Path, length: int) -> None:
    checkpoint.save(tiny_model(), tmp_path)
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    old = int.from_bytes(data[:8], "little")
    assert old <= length
    path.write_bytes(length.to_bytes(8, "little") + data[8 : 8 + old].ljust(length) + data[8 + old :])
    assert path.read_bytes()[:2] in (b"\x80\x04", b"PK")
    assert rmdm.load(path).config == tiny_model().config


@pytest.mark.parametrize("kind", ["zip", "legacy", "plain"])
def test_pickles_are_refused_unopened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
    path = tmp_path / "model.safetensors"
    if kind == "plain":
        path.write_bytes(pickle.dumps(Bomb()))
    else:
        torch.save({"a": Bomb()}, path, _use_new_zipfile_serialization=kind == "zip")
    refused(path, "pickled PyTorch file, which could run code")
    assert not (tmp_path / "exploded").exists()


def test_broken_files_are_refused(checkpoints: Path, tmp_path: Path) -> None:
    whole = (checkpoints / "sudoku-4x4" / "model.safetensors").read_bytes()
    path = tmp_path / "model.safetensors"
    for content in (
        b"",
        b"x",
        b"{}",
        whole[:5],
        whole[:50],
        whole[: len(whole) // 2],
        whole[:-1],
        whole + b"more",
        b"\xff" * 100,
        struct.pack("<Q", 2**60) + b"{" + b" " * 50,
        struct.pack("<Q", 10) + b"{" * 10,
        b"#!/bin/sh\nexit 0\n" * 10,
    ):
        path.write_bytes(content)
        refused(path, "damaged or no safetensors file")


def test_foreign_safetensors_are_refused(tmp_path: Path, parts: tuple) -> None:
    weights, config = parts
    path = tmp_path / "model.safetensors"
    save_file(weights, path)
    refused(path, "not one of ours")
    for text in ("", "nonsense", "[]", "null", "1", "[" * 2000, json.dumps({"task": "sudoku-4x4"}), '{"width": 1e999}'):
        save_file(weights, path, {KEY: text})
        refused(path, "no usable config")
    for change, message in (
        ({"task": "chess"}, "task 'chess' is unknown"),
        ({"task": "sudoku-7x7"}, "no 7x7 Sudoku"),
        ({"task": "text8"}, "does not fit text8"),
        ({"vocab": 6}, "vocab 6 does not fit sudoku-4x4"),
        ({"grid": None}, "grid None does not fit"),
        ({"width": 64}, r"has the shape \[5, 32\]; the config wants \[5, 64\]"),
        ({"layers": 2}, "lacks 6 of"),
        ({"layers": 10**9}, "layers 1000000000"),
        ({"width": 8192, "layers": 128}, "lacks"),  # 400 GB, if anyone were to allocate it
        ({"evil": 1}, "unknown .*evil"),
    ):
        save_file(weights, path, {KEY: json.dumps({**config, **change})})
        refused(path, message)


def test_wrong_tensors_are_refused(tmp_path: Path, parts: tuple) -> None:
    weights, config = parts
    path, metadata = tmp_path / "model.safetensors", {KEY: json.dumps(config)}
    key = "head.weight"
    for change, message in (
        ({"_orig_mod.head.weight": weights[key].clone()}, "that its config does not explain"),
        ({key: weights[key].T.contiguous()}, "has the shape"),
        ({key: weights[key].long()}, "numbers of type I64"),
        ({key: weights[key] * torch.nan}, "not finite"),
        ({key: torch.full_like(weights[key], torch.inf)}, "not finite"),
    ):
        save_file({**weights, **change}, path, metadata)
        refused(path, message)
    save_file({name: tensor for name, tensor in weights.items() if name != key}, path, metadata)
    refused(path, "lacks 1 of .* tensors, head.weight first")


def test_half_precision_weights_are_taken(tmp_path: Path, parts: tuple) -> None:
    weights, config = parts
    path = tmp_path / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in weights.items()}, path, {KEY: json.dumps(config)})
    loaded = rmdm.load(path)
    assert isinstance(loaded, Denoiser)
    assert loaded.head.weight.dtype == torch.float32


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 3000), value=st.integers(0, 255))
def test_any_flipped_byte_of_the_header_is_refused_or_harmless(
    checkpoints: Path, tmp_path: Path, place: int, value: int
) -> None:
    raw = bytearray((checkpoints / "sudoku-4x4" / "model.safetensors").read_bytes())
    raw[place % (8 + int.from_bytes(raw[:8], "little"))] = value
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    with contextlib.suppress(ValueError):
        rmdm.load(path)


@given(st.binary(max_size=200))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged|pickled|not one of ours"):
        rmdm.load(tmp_path / "x.safetensors")
