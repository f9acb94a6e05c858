"""Files of shapes: the products of a program, one JSON object a line, as TILEWRIGHT_RECORD writes them.

    {"m": 512, "n": 512, "k": 64, "a": "bf16", "b": "bf16", "out": "f32", "layout": "nt", "count": 12}

m, n and k are required; a, b, out, layout, batch, scales, epilogue, prologue_a, prologue_b and semiring are those of a
Gemm, with its defaults; functions are their texts. What else is known
of the calls: see `Listed`. An attention is a line with the fields of an Attention that are not usual:

    {"attention": {"sequences": 1, "heads": 32, "kv_heads": 8, "queries": 4096, "keys": 4096, "size": 128, "q": "bf16"}}

 Lines of one product are one entry, whose count is their sum; so files can be concatenated.
"""
from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from tilewright import inputs, targets
from tilewright.attention_problem import Attention
from tilewright.problem import Gemm

OF_GEMM = ("m", "n", "k", "a", "b", "out", "layout", "batch", "scales", "epilogue", "prologue_a", "prologue_b",
           "semiring")
STRIDES = ("contiguous", "rows", "any")
KINDS: dict[str, tuple[type, ...]] = {"threads": (int,), "target": (str,), "algorithm": (str,), "strides": (str,),
                                      "align": (int,), "count": (int,)}


@dataclass(frozen=True)
class Listed:
    """A product or an attention, and how it was called.

    threads     that the call might use, on a CPU; None: not known
    target      the name of what it ran on; None: not known
    algorithm   of tilewright.matmul
    strides     "contiguous"; "rows": rows (or columns, of a transposed operand) are contiguous, but further apart than
                they are long; "any"
    align       bytes, a power of two up to 16, of which the addresses of all operands were multiples
    count       calls
    """
    problem: Any                # a Gemm, or an Attention
    threads: int | None = None
    target: str | None = None
    algorithm: str | None = None
    strides: str = "contiguous"
    align: int = 16
    count: int = 1

    def unlike(self, chip: Any) -> str:
        """Why a plan for contiguous operands on this target is none for it, or ""."""
        if self.target is not None and type(targets.target(self.target)) is not type(chip):
            return f"it was called on {self.target}"
        if self.algorithm is not None:
            return f"it was called with algorithm={self.algorithm!r}"
        if self.strides == "any" or (self.strides == "rows" and not isinstance(chip, targets.CpuTarget)):
            return "its operands were not contiguous"
        return "its operands were not aligned to 16 bytes" if self.align < 16 else ""

    def to_json(self) -> str:
        """One line, without the fields that have their defaults."""
        more = {f.name: getattr(self, f.name) for f in fields(self)[1:] if getattr(self, f.name) != f.default}
        if isinstance(self.problem, Attention):
            return json.dumps({"attention": self.problem.fields} | more)
        of_gemm = {name: getattr(self.problem, name) for name in OF_GEMM}
        usual = {"batch": 1, **dict.fromkeys(OF_GEMM[8:], "")}
        return json.dumps({name: value for name, value in of_gemm.items() if value != usual.get(name)} | more)

    @classmethod
    def from_json(cls, line: str) -> Listed:
        """ValueError says what is wrong with the line."""
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"this is not JSON: {error}") from None
        if not isinstance(entry, dict):
            raise ValueError("a shape is an object, {...}")
        attention = entry.pop("attention", None)
        if lacks := [] if attention else [name for name in OF_GEMM[:3] if name not in entry]:
            raise ValueError(f"the shape lacks {', '.join(lacks)}")
        if unknown := [name for name in entry if name not in (*(() if attention else OF_GEMM), *KINDS)]:
            raise ValueError(f"a shape has no field {unknown[0]!r}; it may have {', '.join((*OF_GEMM, *KINDS))}")
        more = {name: entry[name] for name in KINDS if entry.get(name) is not None}
        for name, value in more.items():
            if type(value) not in KINDS[name] or (type(value) is int and value < 1):
                wanted = "a positive whole number" if KINDS[name] == (int,) else "text"
                raise ValueError(f"{name} must be {wanted}, not {value!r}")
        if more.get("strides", STRIDES[0]) not in STRIDES:
            raise ValueError(f"strides must be one of {', '.join(STRIDES)}, not {more['strides']!r}")
        if "target" in more:
            targets.target(more["target"])
        try:
            if attention:
                return cls(Attention(**attention), **more)
            return cls(Gemm(**{name: entry[name] for name in OF_GEMM if name in entry}), **more)
        except TypeError as error:
            raise ValueError(str(error)) from None


def read(path: str | os.PathLike[str]) -> list[Listed]:
    """The products of a file, those with the most arithmetic first. ValueError names the first bad line; OSError if the
    file cannot be read."""
    listed = []
    for number, line in enumerate(inputs.text(path).splitlines(), 1):
        if line.strip():
            try:
                listed.append(Listed.from_json(line))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    return merged(listed)


def merged(listed: Iterable[Listed]) -> list[Listed]:
    """Each product once, with the sum of its counts, those with the most arithmetic first."""
    counts: dict[Listed, int] = {}
    for each in listed:
        one = replace(each, count=1)
        counts[one] = counts.get(one, 0) + each.count
    lines = [replace(one, count=count) for one, count in counts.items()]
    return sorted(lines, key=lambda each: -each.problem.flops * each.count)
