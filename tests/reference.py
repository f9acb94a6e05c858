"""`python -m tests.reference` writes docs/reference.md: the public functions and classes, from their docstrings and
annotations, each with an example of tests/reference_examples.py, which is run.

A docstring's paragraphs become text, its columns of names and meanings tables, and what is indented blocks."""

from __future__ import annotations

import inspect
import linecache
import re
import textwrap
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import tilewright as tw
from tests.pages import a_directory
from tests.reference_examples import EXAMPLES, FIRST

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"

PARTS = {
    "Multiply": ("matmul", "gemm", "grouped_matmul", "einsum", "tensordot", "contract", "attention", "Reduction",
                 "semiring", "pack", "Packed", "PackedWeights"),
    "Functions in products": (
        "epilogue", "prologue", "pairs", "where", "minimum", "maximum", "clamp", "relu", "sigmoid", "silu", "gelu",
        "exp", "log", "tanh", "erf", "sqrt", "popcount", *(f"{axis}_{how}" for axis in ("row", "column")
                                             for how in ("sum", "max", "min", "amax", "argmax", "argmin"))),
    "Quantize": ("quantize", "dequantize", "Quantized", "Scaled"),
    "Look inside": ("Gemm", "Attention", "detect", "target", "plan", "compile", "explain", "Explanation",
                    "einsum_path", "simulate", "kernel"),
    "Loops": ("loops", "optimize", "Optimized", "schedule", "Schedule"),
    "Prepare": ("tune", "build", "load"),
    "Threads": ("threads", "set_num_threads", "get_num_threads"),
}

HEAD = f"""# Reference

The public names of `tilewright`, made from their docstrings (`help(tilewright.matmul)` shows the same text). Number
formats are functions of `tilewright.formats`, described in [formats.md](formats.md); the language for kernels is
in [write-your-own-kernel.md](write-your-own-kernel.md); operators and layers for torch are in [torch.md](torch.md).

All examples run after these lines:

```python
{FIRST}```
"""


def text() -> str:
    shown = {name for names in PARTS.values() for name in names}
    namespace: dict[str, Any] = {}
    exec(FIRST, namespace)
    with a_directory():
        return HEAD + "".join(
            f"\n## {title}\n\n" + " · ".join(f"[{name}](#{name.lower()})" for name in names) + "\n"
            + "".join(_entry(name, shown, namespace) for name in names) for title, names in PARTS.items())


def _entry(name: str, shown: set[str], namespace: dict[str, Any]) -> str:
    found: Any = getattr(tw, name)
    written = f"\n### {name}\n\n```text\n{name}{_parameters(found)}\n```\n{_markdown(found, shown)}"
    if inspect.isclass(found):
        for member in sorted(vars(found)):
            if not member.startswith("_"):
                written += _member(name, member, inspect.getattr_static(found, member), shown)
    if name in EXAMPLES:
        printed = _printed(name, namespace)
        written += f"\n```python\n{EXAMPLES[name]}```\n" + (f"\n```text\n{printed}```\n" if printed else "")
    return written


def _printed(name: str, namespace: dict[str, Any]) -> str:
    file, code = f"the example of {name}", EXAMPLES[name]
    linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file       # tw.loops reads the source
    with redirect_stdout(StringIO()) as printed:
        exec(compile(code, file, "exec"), namespace)
    return printed.getvalue()


def _member(of: str, name: str, found: Any, shown: set[str]) -> str:
    call = isinstance(found, (classmethod, staticmethod)) or inspect.isfunction(found)
    function = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
    if not (call or isinstance(found, property)) or inspect.getdoc(function) is None:
        return ""
    signature = f"\n```text\n{of}.{name}{_parameters(function)}\n```\n" if call else ""
    return f"\n#### {of}.{name}\n{signature}{_markdown(function, shown)}"


def _parameters(found: Any) -> str:
    """The parameters, without annotations, wrapped."""
    parameters = inspect.signature(found).parameters.values()
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters if p.name not in ("self", "cls")]
    return "\n".join(textwrap.wrap(str(inspect.Signature(plain)), 100, subsequent_indent="    "))


def _markdown(found: Any, shown: set[str]) -> str:
    written = ""
    for paragraph in (inspect.getdoc(found) or "").split("\n\n"):
        lines = [line for line in paragraph.splitlines() if line.strip()]
        rows = _rows(lines)
        if lines and all(line.startswith("    ") for line in lines):
            written += "\n```text\n" + textwrap.dedent("\n".join(lines)) + "\n```\n"
        elif rows:
            written += "\n| | |\n|---|---|\n"
            for name, meaning in rows:
                written += f"| `{name}` | {_escaped(meaning, shown)} |\n".replace("`|`", "`\\|`")
        else:
            written += f"\n{_escaped(' '.join(x.strip() for x in lines), shown)}\n"
    return written


def _rows(lines: list[str]) -> list[tuple[str, str]]:
    """(name, meaning) of the rows of a paragraph that is a table of both, else none."""
    first = re.match(r"\S.*?  +(?=\S)", lines[0]) if lines else None
    if not first:
        return []
    rows: list[tuple[str, str]] = []
    for line in lines:
        if line.startswith("   "):
            rows[-1] = rows[-1][0], f"{rows[-1][1]} {line.strip()}"
        elif found := re.match(r"(\S.*?)  +(\S.*)", line) or re.match(rf"(\S.{{{first.end() - 1}}})(?<= )(\S.*)", line):
            rows.append((found[1].strip(), found[2]))
        else:
            return []
    return rows


def _escaped(text: str, shown: set[str]) -> str:
    """A docstring's words in Markdown, with links to pages and to what the reference has."""
    parts = re.split(r"(`[^`]*`)", re.sub(r"(?<![`\w])(__\w+__)", r"`\1`", text))
    for i in range(0, len(parts), 2):
        part = re.sub(r"([*<|\\])", r"\\\1", parts[i])
        part = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", part)
        part = re.sub(r"\bdocs/([\w-]+\.md)\b", r"[\1](\1)", part)
        parts[i] = re.sub(r"\b(?:tilewright|tw)\.(\w+)\b", lambda x: f"[{x[1]}](#{x[1].lower()})" if x[1] in shown
                          else x[0], part)
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(text())
