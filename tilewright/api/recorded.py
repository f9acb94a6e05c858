"""The functions of a recorded call as a Gemm takes them: texts of its semiring, prologues and epilogue (record.py)."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.expressions import remembered
from tilewright.expressions.semiring import Semiring, semiring
from tilewright.rules import arguments, fusing, prologues
from tilewright.rules.arguments import Array
from tilewright.rules.call import Call

FUNCTIONS = ("f", "epilogue", "prologue_a", "prologue_b")       # arguments of matmul and contract
MORE = ("reduce", "operands", "out_dtype")                      # what they depend on


def key(options: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Equal for functions that compute the same; None where that cannot be seen."""
    found = []
    for name in FUNCTIONS:
        if (x := options.get(name)) is not None:
            found.append((name, x.text if hasattr(x, "text") else remembered.keys((x,))))
    return None if any(each is None for _, each in found) else tuple(found)


def texts(a: Array, b: Array, options: Mapping[str, Any], operands: Mapping[str, Array], on_gpu: bool
          ) -> dict[str, str]:
    """For operands as they are multiplied, or shadows; `operands`: of the functions, likewise."""
    made, f = None, options.get("f")
    if f is not None:
        kind = "float" if arguments.combined_in(a, b).kind == "f" else "int"
        made = f if isinstance(f, Semiring) else semiring(f, options.get("reduce", "sum"), kind)
    call = Call.checked(a, b, epilogue=options.get("epilogue"), operands=options.get("operands"),
                        prologue_a=options.get("prologue_a"), prologue_b=options.get("prologue_b"),
                        out_dtype=options.get("out_dtype"), semiring=made)
    shares = prologues.shared_out(call, operands)
    prepared = prologues.all_of(call, a, b, shares)
    found = {"semiring": made.text} if made else {}
    found |= {f"prologue_{role}": each.prologue.text for role, each in prepared.items()}
    if call.epilogue is not None or (made and made.state and on_gpu):       # where a launch makes results of a state
        product = prologues.decided(call, a, b, None, None, prepared)
        found["epilogue"] = fusing.fused(call._replace(operands=shares.get("epilogue")), product).epilogue.text
    return found
