"""The strided engine: C = alpha * A @ B + beta * C on this CPU, for checked operands of any strides.

A call looks up a `Recipe` by shape, strides and thread count; the first call of its kind chooses the plan and compiles.
"""
from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright import forks
from tilewright.plans.amx import TILE_WORDS, choose_tiles
from tilewright.plans.choose import choose, choose_complex, choose_converting
from tilewright.plans.cpu import CpuPlan, Shape
from tilewright.plans.measured import store
from tilewright.plans.words import BY_NAME, word
from tilewright.runtime.cpu import amx, pool, small
from tilewright.runtime.cpu.layout import address
from tilewright.runtime.cpu.recipe import COMPLEX, EXCHANGED, Recipe, Strides, order
from tilewright.targets import CpuTarget, detect

Matrix = NDArray[Any]
_NAMES = {np.dtype(name): short for name, short in (("float32", "f32"), ("float64", "f64"), ("int32", "i32"),
                                                    ("int64", "i64"), ("complex64", "c64"), ("complex128", "c128"))}
_WHOLE = {"int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16"}
# What packing converts, by the format that is multiplied; all numbers of one are numbers of the other.
_FLOATS = {"float16": "f16", "bfloat16": "bf16", "float8_e5m2": "e5m2", "float8_e4m3fn": "e4m3fn",
           "float8_e4m3fnuz": "e4m3fnuz"}
_TRUTH = {"bool": "i8"}
_CONVERTED = {"float32": _FLOATS | _WHOLE | _TRUTH, "int32": _WHOLE | _TRUTH}
# What sums are rounded to as they are stored, by the format in which they are added up.
_ROUNDED = {"float32": _FLOATS | {"float8_e5m2fnuz": "e5m2fnuz"}, "int32": _WHOLE}
LEAST_K, LEAST_WORK = 32, 64**3         # k and m*n*k from which converting in packing beats converting before
LEAST_TILES = 64    # rows and columns of C, and k, from which AMX is used
MOST_RECIPES = 1024

_recipes: dict[tuple, tuple[Recipe, bool]] = {}


def gemm(a: Matrix, b: Matrix, c: Matrix, alpha: float = 1.0, beta: float = 0.0, *, threads: int | None = None,
         plan: CpuPlan | None = None, target: CpuTarget | None = None, tiles: str = "", conj: str = "") -> bool:
    """a [m, k], b [k, n], c [m, n] of one dtype, float32, float64, int32, int64, complex64 or complex128, with strides
    that are multiples of its size; a and b may be narrower where `converts` says so, and c where `finishes` does, with
    beta = 0. Integers are multiplied modulo 2^bits; alpha and beta are whole then. conj: which of complex operands are
    conjugated, "", "a", "b" or "ab"; a plan for these is a packed one, without `swap`, for the real m x 2n x 2k.

    c is writeable and shares nothing with a and b. beta == 0 never reads c.

    tiles: a word of plans.amx that stands for elements by several terms; then c means nothing if the result is true,
    which says that some element has no such terms.
    """
    m, k = a.shape
    n = b.shape[1]
    if m == 0 or n == 0:
        return False
    if k == 0 or alpha == 0:
        _scale(c, beta)
        return False
    threads = threads or pool.get_num_threads()
    key = (m, n, k, a.strides, b.strides, c.strides, a.dtype, b.dtype, c.dtype, threads, plan, target, tiles, conj)
    found = _recipes.get(key)
    if found is None:
        with forks.building:
            found = _remember(key, a, b, c, threads, plan, target, tiles, conj)
    return _run(*found, a, b, c, alpha, beta)


def converts(x: Matrix, dtype: np.dtype[Any], m: int, n: int, k: int) -> bool:
    """Whether `gemm` takes x as an operand of an m x n x k product in another dtype as it is, and should."""
    return _enough(m, n, k) and bool(_packed_from(x.dtype, dtype))


def finishes(sums: np.dtype[Any], result: np.dtype[Any], m: int, n: int, k: int) -> bool:
    """Whether `gemm` takes a C of this dtype for an m x n x k product added up in another, and rounds as it stores."""
    return _enough(m, n, k) and bool(_stored_as(result, sums))


def _enough(m: int, n: int, k: int) -> bool:
    return k >= LEAST_K and m*n*k >= LEAST_WORK


@cache      # NumPy makes the name of a dtype anew each time, and takes microseconds
def _packed_from(dtype: np.dtype[Any], sums: np.dtype[Any]) -> str:
    """The format of operands of this dtype, if packing converts them; numbers in another order of bytes it does not."""
    return _CONVERTED.get(sums.name, {}).get(dtype.name, "") if dtype.isnative else ""


@cache
def _stored_as(dtype: np.dtype[Any], sums: np.dtype[Any]) -> str:
    """The format of results of this dtype, if sums are rounded to it as they are stored."""
    return _ROUNDED.get(sums.name, {}).get(dtype.name, "") if dtype.isnative else ""


def gemm_batched(a: Matrix, b: Matrix, c: Matrix, alpha: float = 1.0, beta: float = 0.0, *,
                 threads: int | None = None, plan: CpuPlan | None = None, target: CpuTarget | None = None,
                 conj: str = "") -> None:
    """The same for a [batch, m, k], b [batch, k, n] and c [batch, m, n]. A batch stride of a or b may be 0.

    Each product has the bits that `gemm` would give it.
    """
    m, n = c.shape[1:]
    k = a.shape[2]
    if c.size == 0:
        return
    if k == 0 or alpha == 0:
        _scale(c, beta)
        return
    threads = threads or pool.get_num_threads()
    key = (m, n, k, a.strides[1:], b.strides[1:], c.strides[1:], a.dtype, b.dtype, c.dtype, threads, plan, target,
           "", conj)
    found = _recipes.get(key)
    if found is None:
        with forks.building:
            found = _remember(key, a[0], b[0], c[0], threads, plan, target, conj=conj)
    _run(*found, a, b, c, alpha, beta)


def _scale(c: Matrix, beta: float) -> None:
    if beta == 0:
        c[...] = 0
    elif beta != 1:
        with np.errstate(all="ignore"):
            for part in (c.real, c.imag) if c.dtype.kind == "c" else (c,):      # inf times beta + 0i would be nan
                part *= part.dtype.type(beta)


def _remember(key: tuple, a: Matrix, b: Matrix, c: Matrix, threads: int, plan: CpuPlan | None,
              target: CpuTarget | None, tiles: str = "", conj: str = "") -> tuple[Recipe, bool]:
    """Choose a plan and make its recipe; whether it takes the operands in exchanged roles: as B^T and A^T."""
    target = amx.permitted(target or detect())
    shape, strides = _describe(a, b, c, threads)
    sums = _sums(c.dtype)
    result, sources = _stored_as(c.dtype, sums), (_packed_from(a.dtype, sums), _packed_from(b.dtype, sums))
    turned = strides.csc != 1 and strides.rsc == 1          # C lies by columns: compute its transpose, by rows
    if turned:
        shape, strides, sources = shape.swapped, strides.swapped, sources[::-1]
        conj = conj.translate(EXCHANGED)
    shape, strides, sources, depth, target = meant = as_multiplied(
        shape, strides, sources, target, "" if plan else tiles or None)
    converting = any(sources) or bool(result)
    chosen = plan or choose_for(meant, converting)
    if chosen.copy:
        shape, strides = _with_copy(shape, strides, chosen)
    recipe = Recipe(shape, strides, _with_team(chosen), target, sources=sources, depth=depth, result=result, conj=conj)
    if plan is None and not converting and target is detect() and not turned and shape.dtype in small.DTYPES:
        small.offer(shape, chosen, target)
    if len(_recipes) >= MOST_RECIPES:
        _recipes.clear()
    _recipes[key] = found = recipe, turned != chosen.swap
    return found


class Meant(NamedTuple):
    """A product as it is multiplied: of real numbers, or of words, of which `depth` steps of k make up shape.k (0: of
    elements); sources are the formats that packing converts."""
    shape: Shape
    strides: Strides
    sources: tuple[str, str]
    depth: int
    target: CpuTarget


def as_multiplied(shape: Shape, strides: Strides, sources: tuple[str, str], target: CpuTarget,
                  name: str | None = None) -> Meant:
    """What to multiply for operands of these formats; `name` of a word (plans.words, plans.amx), "" for none, None for
    the one that suits the target."""
    if shape.dtype in COMPLEX:
        sources = shape.dtype, shape.dtype
        shape, strides = _as_reals(shape, strides)
    named = sources[0] or shape.dtype, sources[1] or shape.dtype
    if name is None:
        found = word(shape.dtype, named, target, min(shape.m, shape.n, shape.k) >= LEAST_TILES)
        name = found.name if found else ""
    if not name:
        return Meant(shape, strides, sources, 0, target)
    if name in TILE_WORDS:
        sources, k = named, TILE_WORDS[name].depth(shape.k)
    else:
        k = -(-shape.k // BY_NAME[name].steps)
    return Meant(shape._replace(dtype=name, k=k), strides, sources, shape.k, target.extended)


def choose_for(meant: Meant, converting: bool) -> CpuPlan:
    """The plan that the engine takes unless it is told one."""
    shape, target = meant.shape, meant.target
    if shape.tiles:
        return choose_tiles(shape, target)
    if meant.sources[0] in COMPLEX:
        return choose_complex(shape, target)
    if converting:
        return choose_converting(shape, target)
    return tuned(shape, target) or choose(shape, target)


def _sums(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """In which a C of this dtype is added up."""
    return next((wide for wide in _NAMES if _stored_as(dtype, wide)), dtype)


def _as_reals(shape: Shape, strides: Strides) -> tuple[Shape, Strides]:
    """The real product that complex operands are packed for, and their strides in reals; C's columns are contiguous."""
    doubled = Strides(*(2*stride for stride in strides))
    shape = shape._replace(dtype={"c64": "f32", "c128": "f64"}[shape.dtype], n=2*shape.n, k=2*shape.k)
    return shape, doubled._replace(csc=doubled.csc if strides.csc != 1 else 1)


def _with_team(plan: CpuPlan) -> CpuPlan:
    """The plan for as many threads as there can be, if all members of a team must come."""
    if plan.algorithm != "packed" or plan.threads == 1:
        return plan
    team = pool.pool().reserve(plan.threads)
    return plan if team == plan.threads else replace(plan, jc_ways=1, ic_ways=team, jr_ways=1)


def _with_copy(shape: Shape, strides: Strides, plan: CpuPlan) -> tuple[Shape, Strides]:
    """What the plan meets once B is copied, or A^T if it takes the operands in exchanged roles."""
    if plan.swap:
        shape, strides = _with_copy(shape.swapped, strides.swapped, replace(plan, swap=False))
        return shape.swapped, strides.swapped
    by_rows = plan.reads_b == "rows"
    strides = strides._replace(rsb=shape.n if by_rows else 1, csb=1 if by_rows else shape.k)
    return shape._replace(b=plan.reads_b), strides


def tuned(shape: Shape, target: CpuTarget) -> CpuPlan | None:
    """What the tuner has measured to be best, if it has."""
    return store.best(shape, target)


def forget() -> None:
    """Choose plans anew: the tuner has learnt something."""
    _recipes.clear()
    small.relimit()


def _describe(a: Matrix, b: Matrix, c: Matrix, threads: int) -> tuple[Shape, Strides]:
    (m, k), n = a.shape, b.shape[1]
    rsa, csa = _strides(a, a.itemsize)
    rsb, csb = _strides(b, b.itemsize)
    rsc, csc = _strides(c, c.itemsize)
    shape = Shape(_NAMES[_sums(c.dtype)], m, n, k, order(rsa, csa), order(rsb, csb), threads)
    return shape, Strides(rsa, csa, rsb, csb, rsc, csc)


def _strides(x: Matrix, itemsize: int) -> tuple[int, int]:
    """In elements. An axis of length 1 has no stride of its own: it is taken to be whatever makes x contiguous."""
    rows, cols = x.shape
    rs, cs = (stride // itemsize for stride in x.strides)
    if cols == 1:
        cs = 1
    if rows == 1:
        rs = 1 if cs != 1 else cols
    return rs, cs


def _run(recipe: Recipe, swapped: bool, a: Matrix, b: Matrix, c: Matrix, alpha: float, beta: float) -> bool:
    """One product, or a batch of them along a leading axis; what Recipe.run says."""
    if not recipe.takes_c:
        return _through_temporary(recipe, swapped, a, b, c, alpha, beta)
    x, y = (b.swapaxes(-1, -2), a.swapaxes(-1, -2)) if swapped else (a, b)
    if recipe.plan.copy:
        y = _copied(y, recipe.plan.reads_b == "rows")
    if c.ndim == 2:
        return recipe.run(address(x), address(y), address(c), alpha, beta)
    steps = x.strides[0], y.strides[0], c.strides[0]
    recipe.run_batch(c.shape[0], steps, address(x), address(y), address(c), alpha, beta)
    return False


def _copied(y: Matrix, by_rows: bool) -> Matrix:
    """Contiguous rows, or columns. What a batch shares is copied once."""
    shared = y.ndim == 3 and y.strides[0] == 0
    one = y[0] if shared else y
    one = np.ascontiguousarray(one) if by_rows else np.ascontiguousarray(one.swapaxes(-1, -2)).swapaxes(-1, -2)
    return np.broadcast_to(one, y.shape) if shared else one


def _through_temporary(recipe: Recipe, swapped: bool, a: Matrix, b: Matrix, c: Matrix, alpha: float,
                       beta: float) -> bool:
    """C's rows are not contiguous in the roles that the recipe wants: multiply into matrices whose rows are."""
    shape = recipe.shape
    rows, cols = c.shape[:-3:-1] if swapped else c.shape[-2:]
    if shape.tiles:                         # their C lies by columns
        whole = np.empty((*c.shape[:-2], cols, rows), c.dtype).swapaxes(-1, -2)
    else:
        whole = np.empty((*c.shape[:-2], rows, cols), c.dtype)
    inner = _recipes.get((recipe, "temporary"))
    if inner is None:
        rsc, csc = (1, shape.m) if shape.tiles else (shape.n, 1)
        ours = recipe.strides._replace(rsc=rsc, csc=csc)
        _recipes[recipe, "temporary"] = inner = Recipe(
            shape, ours, recipe.plan, recipe.target, sources=recipe.sources, depth=recipe.depth,
            result=recipe.result, conj=recipe.conj, prepacked=recipe.prepacked), swapped
    if beta:
        whole[...] = c.swapaxes(-1, -2) if swapped else c
    special = _run(*inner, a, b, whole, alpha, beta)
    c[...] = whole.swapaxes(-1, -2) if swapped else whole
    return special
