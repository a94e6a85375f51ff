"""The app in a process of its own, as a visitor meets it: started once for all tests that need it."""

import atexit
import functools
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import rmdm
from rmdm.checkpoint import SHIPPED
from tests.conftest import tiny_model

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Server:
    url: str
    pid: int
    ready: float  # seconds from start to the first page
    trained: frozenset[str]  # the checkpoints that can be expected to solve something

    def memory(self) -> float:
        """Resident megabytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


@functools.cache
def start() -> Server:
    """Serves the shipped checkpoints, and untrained ones in place of those that are not there yet."""
    folder = Path(tempfile.mkdtemp(prefix="rmdm-app-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    trained = frozenset(rmdm.shipped())
    for name in trained:
        shutil.copytree(SHIPPED / name, folder / name)
    for name in {"sudoku-4x4", "sudoku-9x9", "countdown-4", "text8"} - trained:
        rmdm.save(tiny_model(name), folder / name)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "app.py", "--port", str(port), "--checkpoints", str(folder), "--mcp"]
    began = time.monotonic()
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115  open as long as the app runs
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    atexit.register(process.wait)
    atexit.register(process.terminate)
    while time.monotonic() - began < 120:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).read()
            return Server(f"http://127.0.0.1:{port}", process.pid, time.monotonic() - began, trained)
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.2)
    log.seek(0)
    raise AssertionError(f"the app did not start:\n{log.read()}")
