"""`python -m tests.reference` writes docs/reference.md: the public functions and classes, from their docstrings."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path
from typing import Any

import tilewright as tw

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"

PARTS = {
    "Multiply": ("matmul", "gemm", "grouped_matmul", "einsum", "tensordot", "contract", "Reduction", "semiring", "pack",
                 "Packed", "PackedWeights"),
    "Functions in products": (
        "epilogue", "prologue", "pairs", "where", "minimum", "maximum", "clamp", "relu", "sigmoid", "silu", "gelu",
        "exp", "log", "tanh", "erf", "sqrt", "popcount", *(f"{axis}_{how}" for axis in ("row", "column")
                                             for how in ("sum", "max", "min", "amax", "argmax", "argmin"))),
    "Quantize": ("quantize", "dequantize", "Quantized", "Scaled"),
    "Look inside": ("Gemm", "detect", "target", "plan", "compile", "explain", "Explanation", "einsum_path", "simulate",
                    "kernel"),
    "Loops": ("loops", "optimize", "Optimized", "schedule", "Schedule"),
    "Prepare": ("tune", "build", "load"),
    "Threads": ("threads", "set_num_threads", "get_num_threads"),
}

HEAD = """# Reference

The public names of `tilewright`, from their docstrings (`help(tilewright.matmul)` shows the same). Number formats are
functions of `tilewright.formats`, described in [formats.md](formats.md); what kernels are written with is in
[write-your-own-kernel.md](write-your-own-kernel.md).
"""


def text() -> str:
    return HEAD + "".join(f"\n## {title}\n" + "".join(map(_entry, names)) for title, names in PARTS.items())


def _entry(name: str) -> str:
    found: Any = getattr(tw, name)
    shown = f"\n### {name}\n\n```text\n{name}{_parameters(found)}\n\n{inspect.getdoc(found) or ''}\n```\n"
    if inspect.isclass(found):
        for member in sorted(vars(found)):
            if not member.startswith("_"):
                shown += _member(name, member, inspect.getattr_static(found, member))
    return shown


def _member(of: str, name: str, found: Any) -> str:
    call = isinstance(found, (classmethod, staticmethod)) or inspect.isfunction(found)
    function = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
    documentation = inspect.getdoc(function) if call or isinstance(found, property) else None
    if documentation is None:
        return ""
    return f"\n```text\n{of}.{name}{_parameters(function) if call else ''}\n\n{documentation}\n```\n"


def _parameters(found: Any) -> str:
    """The parameters, without annotations, wrapped."""
    parameters = inspect.signature(found).parameters.values()
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters if p.name not in ("self", "cls")]
    return "\n".join(textwrap.wrap(str(inspect.Signature(plain)), 100, subsequent_indent="    "))


if __name__ == "__main__":
    PAGE.write_text(text())
