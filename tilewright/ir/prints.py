"""k.print: values of threads as text, in the simulator. Compiled code leaves it out."""
from __future__ import annotations

from tilewright.ir.operations import Operation


def show(label: str, most: int, conditional: bool) -> Operation:
    """Of the condition, if there is one, and the values."""
    return Operation("print", lambda low, t, *xs: None, lambda gang, node, *xs: gang.machine.prints.show(
        gang, node, label, most, conditional, xs), kind="", role="effect")
