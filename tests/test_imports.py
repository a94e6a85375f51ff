"""Who may import whom: rmdm nothing of ours, the others rmdm and never each other."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = {"rmdm", "train", "export", "app"}
FILES = [path for folder in ("rmdm", "train", "export") for path in sorted((ROOT / folder).rglob("*.py"))]
FILES += [path for path in [ROOT / "app.py"] if path.exists()]


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add((node.module or "").partition(".")[0])
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_import_rules(path: Path) -> None:
    home = path.relative_to(ROOT).parts[0].removesuffix(".py")
    allowed = {home, "rmdm"}
    assert not (imported(path) & OURS) - allowed


def test_the_app_touches_no_network_and_no_sampler() -> None:
    path = ROOT / "app.py"
    if not path.exists():
        pytest.skip("there is no app.py")
    text = path.read_text(encoding="utf-8")
    assert "torch.nn" not in text


def test_there_are_no_pickles_and_no_utils() -> None:
    for path in FILES:
        assert path.name != "utils.py"
        assert "pickle" not in imported(path), path
