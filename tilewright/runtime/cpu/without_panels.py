"""Jobs of plans that pack nothing: their fields but for addresses and, of complex ones, arguments of their emitters."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.kernels.cpu import jobs

if TYPE_CHECKING:
    from tilewright.runtime.cpu.recipe import Recipe

MOST_CHUNK = 48         # rows of a product in place that have sums on the stack


def dots(recipe: Recipe) -> dict[str, int]:
    """The fields of jobs.DOTS, or of jobs.ROW_DOTS."""
    shape, st = recipe.shape, recipe.strides
    fields = {"m": shape.m, "k": shape.depth or shape.k, "lda": st.rsa, "ldb": st.csb, "rsc": st.rsc, "csc": st.csc,
              "parts": recipe.parts}
    return fields | {"ldb": st.rsb, "csa": st.csa} if recipe.plan.by_rows(shape) else fields


def dot_tiles(recipe: Recipe) -> dict[str, int]:
    """The fields of jobs.DOT_TILES."""
    shape, st, plan = recipe.shape, recipe.strides, recipe.plan
    recipe.passes = -(-shape.k // plan.kc)
    rows, columns = -(-shape.m // plan.mr), -(-shape.n // plan.nr)
    heights, widths = ((-(-size // panels), size // panels) for size, panels in ((shape.m, rows), (shape.n, columns)))
    kernels = [recipe.host.address("dot_tiles:emit_dot_tile", recipe.target, shape.dtype,
                                   *((h, w) if st.csc == 1 else (w, h))) for h in heights for w in widths]
    return {"m": shape.m, "n": shape.n, "k": shape.k, "lda": st.rsa, "ldb": st.csb, "rsc": st.rsc, "csc": st.csc,
            "kc": plan.kc, "row_panels": rows, "col_panels": columns, "row_parts": plan.ic_ways,
            "col_parts": plan.jc_ways, **dict(zip(jobs.DOT_TILES[-4:], kernels))}


def stream(recipe: Recipe) -> dict[str, int]:
    """The fields of jobs.STREAM."""
    shape, st = recipe.shape, recipe.strides
    return {"n": shape.n, "k": shape.k, "rsa": st.rsa, "csa": st.csa, "ldb": st.rsb, "ldc": st.rsc,
            "parts": recipe.parts}


def complex_row_kernel(recipe: Recipe) -> tuple[str, ...] | None:
    """The arguments that the emitters of kernels/cpu/complex_rows.py take after `nr`; None for other plans."""
    if not recipe.plan.complex_row(recipe.shape):
        return None
    steps = (recipe.strides.csa, recipe.strides.rsb) if recipe.plan.algorithm == "dots" else ()
    return tuple("along" if step == 2 else "any" for step in steps)


def complex_row(recipe: Recipe) -> dict[str, int]:
    """The fields of jobs.COMPLEX_ROW"""
    shape, st = recipe.shape, recipe.strides
    sign_a, sign_b = (recipe.bits(-1.0 if role in recipe.conj else 1.0) for role in "ab")
    return {"n": shape.n // 2, "k": shape.k // 2, "csa": st.csa, "rsb": st.rsb, "csb": st.csb,
            "csc": 2 if st.csc == 1 else st.csc, "parts": recipe.parts, "sign_a": sign_a, "sign_b": sign_b}


def complex_in_place_kernel(recipe: Recipe) -> tuple[Any, ...]:
    """The arguments of emit_complex_in_place after the format; none for other plans. Groups are equally tall."""
    shape, plan = recipe.shape, recipe.plan
    if not plan.complex_in_place(shape):
        return ()
    edge, high = shape.n % plan.nr > 0, -(-shape.m // -(-shape.m // plan.mr))
    panels = ("several, edge" if edge else "several") if shape.n > plan.nr else "edge" if edge else "one"
    return high, plan.nr, min(-(-shape.m // high), max(MOST_CHUNK // high, 1)), shape.a, shape.b, panels


def complex_in_place(recipe: Recipe) -> dict[str, int]:
    """The fields of jobs.COMPLEX_IN_PLACE"""
    shape, st, plan = recipe.shape, recipe.strides, recipe.plan
    return {"m": shape.m, "n": shape.n // 2, "k": shape.k // 2, "rsa": st.rsa, "csa": st.csa, "rsb": st.rsb,
            "csb": st.csb, "rsc": st.rsc, "csc": 2 if st.csc == 1 else st.csc, "row_parts": plan.ic_ways,
            "col_parts": plan.jc_ways, **{f"sign_{x}": -1 if x in recipe.conj else 1 for x in "ab"}}
