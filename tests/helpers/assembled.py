"""What NVIDIA's assembler says of a kernel, warnings included."""

from __future__ import annotations

import subprocess
from typing import Any

from tilewright.compiler import llvm, ptxas
from tilewright.targets import target


def assembled(function: Any, arch: str = "sm_90a") -> tuple[str, str]:
    """The PTX of a recorded kernel, and what `ptxas -v` prints of it. A test is skipped where there is no ptxas."""
    chip = target(arch)
    text = llvm.assembly(function, chip)
    done = subprocess.run([ptxas.find(), f"-arch={chip.chip or chip.name}", "-v", "-", "-o", "/dev/null"], input=text,
                          text=True, capture_output=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return text, said
