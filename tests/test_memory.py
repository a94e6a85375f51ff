"""In processes of their own, since a setting of malloc cannot be taken back."""

import platform
import subprocess
import sys

import pytest

COUNT = """
import resource
import torch
from rmdm.memory import keep_freed_memory

if {kept}:
    keep_freed_memory()
for warm in (True, False):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [torch.ones(500_000) for _ in range(20)]  # 2 MB each: glibc would fetch and return them every time
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(kept: bool) -> int:
    done = subprocess.run([sys.executable, "-c", COUNT.format(kept=kept)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other systems' malloc is left as it is")
def test_memory_that_was_freed_is_not_fetched_again() -> None:
    assert page_faults(kept=True) < 500
