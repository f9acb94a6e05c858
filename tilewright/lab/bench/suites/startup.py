"""How long a process takes until tilewright is imported and until it has multiplied, seen from outside the process.

What is timed is what a user waits for: the interpreter's start, every import, compiling or loading a kernel, the first
result.  Bare Python and `import numpy` are timed in the same rounds, to show what of it is tilewright's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tilewright.lab.measure.measure import Sample, rotated

_FIRST = """
import numpy as np, tilewright
a = np.ones((256, 256), np.float32)
assert tilewright.matmul(a, a)[0, 0] == 256
"""
PROGRAMS = {
    "python": "pass",
    "import numpy": "import numpy",
    "import tilewright": "import tilewright",
    "first result, cold cache": _FIRST,
    "first result, warm cache": _FIRST,
}


def run(rounds: int = 7, step: Callable[[], None] = lambda: None) -> dict[str, Sample]:
    """Seconds of wall clock per process, interleaved; `step` is called after each."""
    root = str(Path(__file__).resolve().parents[4])
    seconds: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory() as warm:
        for name in PROGRAMS:  # writes the bytecode files and fills the warm cache
            _once(name, warm, root)
        for turn in range(rounds):
            for name in rotated(list(PROGRAMS), turn):
                with tempfile.TemporaryDirectory() as empty:
                    seconds[name].append(_once(name, empty if "cold" in name else warm, root))
                step()
    return {name: Sample(tuple(times), 1) for name, times in seconds.items()}


def _once(name: str, cache: str, root: str) -> float:
    environment: Mapping[str, str] = {**os.environ, "TILEWRIGHT_CACHE_DIR": cache}
    # Appended, not in PYTHONPATH: the checkout must be found without hiding anything from the standard library.
    program = f"import sys; sys.path.append({root!r})\n" + PROGRAMS[name]
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    took = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{name!r} failed: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
    return took
