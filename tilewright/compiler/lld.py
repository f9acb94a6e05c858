"""LLVM's linker, where it is installed: a relocatable object for an AMD GPU → a code object that HIP can load.

From a ROCm installation ($ROCM_PATH, else /opt/rocm), the wheel ziglang, the PATH, or $TILEWRIGHT_LLD. Nothing but
making code objects needs it: assembly, what a kernel uses and its simulation do without.
"""
from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tilewright.compiler import installed


class Missing(RuntimeError):
    """There is no linker for AMD GPUs on this machine."""


@cache
def find() -> tuple[str, ...]:
    """The command that runs it. Missing if there is none, with where it was looked for."""
    named = os.environ.get("TILEWRIGHT_LLD")
    if named:
        if not os.access(named, os.X_OK):
            raise Missing(f"TILEWRIGHT_LLD is {named!r}, which is not a program")
        return (named,)
    rocm = Path(os.environ.get("ROCM_PATH") or "/opt/rocm")
    for place in ("llvm/bin/ld.lld", "lib/llvm/bin/ld.lld"):
        if os.access(rocm / place, os.X_OK):
            return (str(rocm / place),)
    for folder in installed.folders():
        if os.access(zig := folder / "ziglang" / "zig", os.X_OK):
            return str(zig), "ld.lld"
    on_path = shutil.which("ld.lld")
    if on_path:
        return (on_path,)
    raise Missing("there is no linker for AMD GPUs: `pip install ziglang` brings one, ROCm has "
                  "one in $ROCM_PATH/llvm/bin, or set TILEWRIGHT_LLD")


def link(relocatable: bytes) -> bytes:
    """The code object. ValueError with the linker's words if it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        source, linked = Path(folder, "kernel.o"), Path(folder, "kernel.hsaco")
        source.write_bytes(relocatable)
        done = subprocess.run([*find(), "-shared", "--build-id=none", source, "-o", linked], capture_output=True,
                              text=True)
        if done.returncode:
            raise ValueError(f"the linker {' '.join(find())} refuses the kernel: {(done.stdout + done.stderr).strip()}")
        return linked.read_bytes()
