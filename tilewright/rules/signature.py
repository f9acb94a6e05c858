"""The arrays of a product's call by the names that messages give them, and what else describes its operands.

Both together are what a call is known by (runtime/repeats.py): the key has the description of each array, and the
program that later calls run takes their addresses in this order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.formats import Quantized, Scaled

NUMBERS = bool, int, float
DECODED = Scaled, Quantized
BESIDE = "zeros", "minima"              # what a Scaled may have beside its scales
operand = "operands[{!r}]".format       # the name in messages of an array that functions read


def signature(a: Any, b: Any, operands: Mapping[str, Any] | None = None, scale_a: Any = None, scale_b: Any = None,
              c: Any = None) -> tuple[dict[str, Any], list[Any]]:
    """Arrays by name, those of operands in few bits one by one; of `operands` they may be numbers. And whatever else of
    the arguments makes a difference: how an operand is stored, names, and scales and c that are numbers."""
    arrays, described = dict[str, Any](), list[Any]()
    for name, x in (("a", a), ("b", b)):
        if type(x) in DECODED:
            arrays[name], arrays[f"{name}.scales"] = x.elements, x.scales
            if type(x) is Quantized:
                described += x.format.name, x.shape, x.axis, repr(x.tensor_scale)
                continue
            described += x.group, x.nibbles, x.minima is None
            for part in BESIDE:
                if getattr(x, part) is not None:
                    arrays[f"{name}.{part}"] = getattr(x, part)
        else:
            arrays[name] = x
            described.append(None)
    if operands:
        described.append((*operands,))
        for name, x in operands.items():
            arrays[f"operands[{name!r}]"] = x          # as `operand` has it, whose call would take as long
    for name, x in (("scale_a", scale_a), ("scale_b", scale_b), ("c", c)):
        if x is None:
            described.append(None)
        elif type(x) in NUMBERS:
            described += type(x), repr(x)          # by which 0.0 is not -0.0, and nan is itself
        else:
            arrays[name] = x
            described.append(name)
    return arrays, described


def stored(x: Any, arrays: Mapping[str, Any], name: str) -> Any:
    """An argument of that name with these arrays instead of its own, by the names that `signature` gives."""
    if type(x) not in DECODED:
        return arrays[name]
    parts = {"elements": arrays[name], "scales": arrays[f"{name}.scales"]}
    return replace(x, **parts, **{part: arrays[f"{name}.{part}"] for part in BESIDE if f"{name}.{part}" in arrays})


def substituted(call: Any, arrays: Mapping[str, Any], outs: Sequence[Any]) -> Any:
    """A call with these arrays, by the names that `signature` gives, and results instead of its own."""
    given = {name: stored(getattr(call, name), arrays, name) for name in ("a", "b", "scale_a", "scale_b", "c")
             if name in arrays}
    operands = call.operands and {name: arrays[operand(name)] for name in call.operands}
    return call._replace(out=tuple(outs) if type(call.out) is tuple else outs[0], operands=operands, **given)
