"""NVIDIA's assembler, where it is installed: PTX → machine code, and what a kernel uses of a multiprocessor.

Nothing needs it to run, since the driver assembles PTX too, and says the same about it. It lets a machine without a GPU
see registers and spills. From the wheel nvidia-cuda-nvcc, the CUDA toolkit, or $TILEWRIGHT_PTXAS.
"""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilewright.compiler import installed


class Missing(RuntimeError):
    """There is no ptxas on this machine."""


@dataclass(frozen=True)
class Usage:
    """What ptxas or the driver report of one kernel. Bytes; registers of 32 bits, per thread."""
    registers: int
    shared: int                 # declared in the module; what a launch adds is not in it
    stack: int                  # per thread: spilled registers and local arrays
    spill_stores: int
    spill_loads: int
    barriers: int = 0

    @property
    def spills(self) -> int:
        """Bytes that a thread stores to its stack and loads from it."""
        return self.spill_stores + self.spill_loads


@cache
def find() -> Path:
    """The assembler. Missing if there is none, with where it was looked for."""
    named = os.environ.get("TILEWRIGHT_PTXAS")
    if named:
        if not os.access(named, os.X_OK):
            raise Missing(f"TILEWRIGHT_PTXAS is {named!r}, which is not a program")
        return Path(named)
    for place in installed.folders():
        if paths := sorted(place.glob("nvidia/*/bin/ptxas")):
            return paths[-1]
    found_on_path = shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")
    if found_on_path:
        return Path(found_on_path)
    raise Missing("ptxas is not installed: `pip install nvidia-cuda-nvcc` brings it, or set TILEWRIGHT_PTXAS")


@cache
def version() -> str:
    """The version that the assembler states: 13.5.37. Missing if there is none."""
    said = subprocess.run([find(), "--version"], capture_output=True, text=True).stdout
    match = re.search(r"V([\d.]+)", said)
    return match[1] if match else "of an unknown version"


def assemble(ptx: str, architecture: str, *, options: tuple[str, ...] = ()) -> tuple[bytes, dict[str, Usage]]:
    """(cubin, {kernel: what it uses}). ValueError with the assembler's words if it refuses the text."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        done = subprocess.run([find(), f"-arch={architecture}", "-v", *options, source, "-o", cubin],
                              capture_output=True, text=True)
        said = done.stdout + done.stderr
        if done.returncode:
            raise ValueError(f"ptxas refuses the kernel for {architecture}: {said.strip()}")
        return cubin.read_bytes(), usage(said)


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:, used (\d+) barriers)?")


def usage(said: str) -> dict[str, Usage]:
    """What `ptxas -v` printed, by kernel."""
    usages: dict[str, Usage] = {}
    name, frame = "", (0, 0, 0)
    for line in said.splitlines():
        if entry := _ENTRY.search(line):
            name, frame = entry[1], (0, 0, 0)
        elif stack := _STACK.search(line):
            frame = tuple(map(int, stack.groups()))         # type: ignore[assignment]
        elif (used := _USED.search(line)) and name:
            shared = re.search(r"(\d+) bytes smem", line)
            usages[name] = Usage(int(used[1]), int(shared[1]) if shared else 0, *frame, int(used[2] or 0))
    return usages
