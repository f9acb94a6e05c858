"""Jobs of complex products that are multiplied in place: the arguments of their emitters, and the fields of a job."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.runtime.cpu.recipe import Recipe

MOST_CHUNK = 48         # rows of a product in place that have sums on the stack


def row_kernel(recipe: Recipe) -> tuple[str, ...]:
    """The arguments that the emitters of kernels/cpu/complex_rows.py take after `nr`."""
    steps = (recipe.strides.csa, recipe.strides.rsb) if recipe.plan.algorithm == "dots" else ()
    return tuple("along" if step == 2 else "any" for step in steps)


def row_fields(recipe: Recipe) -> dict[str, int]:
    """The fields of jobs.COMPLEX_ROW but for addresses."""
    shape, st = recipe.shape, recipe.strides
    sign_a, sign_b = (recipe.bits(-1.0 if role in recipe.conj else 1.0) for role in "ab")
    return {"n": shape.n // 2, "k": shape.k // 2, "csa": st.csa, "rsb": st.rsb, "csb": st.csb,
            "csc": 2 if st.csc == 1 else st.csc, "parts": recipe.parts, "sign_a": sign_a, "sign_b": sign_b}


def in_place_kernel(recipe: Recipe) -> tuple[Any, ...]:
    """The arguments that emit_complex_in_place takes after the tile."""
    shape, plan = recipe.shape, recipe.plan
    edge, groups = shape.n % plan.nr > 0, min(-(-shape.m // plan.mr), max(MOST_CHUNK // plan.mr, 1))
    panels = ("several, edge" if edge else "several") if shape.n > plan.nr else "edge" if edge else "one"
    return groups, shape.a, shape.b, panels


def in_place_fields(recipe: Recipe) -> dict[str, int]:
    """The fields of jobs.COMPLEX_IN_PLACE but for addresses."""
    shape, st, plan = recipe.shape, recipe.strides, recipe.plan
    csc = 2 if st.csc == 1 else st.csc
    signs = {f"sign_{x}": -1 if x in recipe.conj else 1 for x in "ab"}
    return {"m": shape.m, "n": shape.n // 2, "k": shape.k // 2, "rsa": st.rsa, "csa": st.csa, "rsb": st.rsb,
            "csb": st.csb, "rsc": st.rsc, "csc": csc, "row_parts": plan.ic_ways, "col_parts": plan.jc_ways, **signs}
