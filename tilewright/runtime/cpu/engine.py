"""The strided engine: C = alpha * A @ B + beta * C on this CPU, for checked operands of any strides.

A call looks up a `Recipe` by shape, strides and thread count; the first call of its kind chooses the plan and compiles.
"""
from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np

from tilewright import forks, formats
from tilewright.expressions.numerics import PLAIN, Numerics
from tilewright.kernels.cpu.jobs import NOTHING, Beside, Finish
from tilewright.plans import choose, few_rows, lowering
from tilewright.plans.builtin import BUILTIN
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.cpu_shape import Shape, Strides
from tilewright.plans.lowering import Lowered, Product
from tilewright.plans.measured import choice
from tilewright.problem import Gemm
from tilewright.rules.arguments import Array
from tilewright.runtime import repeats
from tilewright.runtime.cpu import amx, batches, pool, program, small, symmetric
from tilewright.runtime.cpu.host import SWAPPED, Host, host
from tilewright.runtime.cpu.layout import address
from tilewright.runtime.cpu.recipe import Prepares, Recipe
from tilewright.targets import CpuTarget, detect

prepared: dict[tuple, Any] = {}         # what follows from plans: recipes, ways of epilogues and of groups


def gemm(a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0, *, threads: int | None = None,
         plan: CpuPlan | None = None, target: CpuTarget | None = None, word: str | None = None,
         conj: str = "", semiring: str = "", invariant: str = "", packed: Any = None) -> bool:
    """a [m, k], b [k, n], c [m, n] of one dtype, float32, float64, int32, int64, complex64 or complex128, with strides
    that are multiples of its size; a and b may be narrower where `converts` says so, and c where `finishes` does, with
    beta = 0. Integers are multiplied modulo 2^bits; alpha and beta are whole then. conj: which of complex operands are
    conjugated, "", "a", "b" or "ab"; a plan for these has no `swap`, and is one for the real m x 2n x 2k.

    All may have a leading axis, with any stride, of a and b also 0: each product has the bits that it has alone.

    c is writeable and shares nothing with a and b. beta == 0 never reads c.

    invariant: what must not change the bits of an element, of plans/invariant.py; "": nothing in particular.

    semiring: what stands for multiplication and addition, where alpha is 1, beta 0 and k not 0: Semiring's text.

    word: of plans.words, "" for none; by default the one that suits the target. Where it stands for
    elements by several terms c means nothing if the result is true: some element has no such terms. Of a batch it is
    never true.

    packed: the runtime.cpu.packed.Packed of whose stand-in b is a view; its plan and target are taken.
    """
    (m, n), k = c.shape[-2:], a.shape[-1]
    if c.size == 0:
        return False
    if k == 0 or alpha == 0:
        program.do(partial(scale, beta=beta), c)
        return False
    threads = threads or pool.get_num_threads()
    x, y, z = (a, b, c) if c.ndim == 2 else (a[0], b[0], c[0])
    if packed is not None:
        recipe = packed._recipe(x, z, threads)
        return run(recipe, packed.plan.swap, a, b, c, alpha, beta)
    key = (m, n, k, a.strides[-2:], b.strides[-2:], c.strides[-2:], a.dtype, b.dtype, c.dtype, threads, plan, target,
           word, conj, semiring, invariant)
    recipe, swapped = forks.looked_up(prepared, key, lambda: _chosen(
        x, y, z, threads, plan, target, word, conj, semiring, invariant))
    if m == n and not beta and address(a) == address(b) and symmetric.applies(recipe, a, b, c, alpha):
        note(recipe, swapped, *((b.T, a.T) if swapped else (a, b)), c, alpha, beta)
        symmetric.multiply(recipe, address(a), address(c), alpha)
        return False
    return run(recipe, swapped, a, b, c, alpha, beta)


def gemm_by(algorithm: str, a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0, *,
            threads: int | None = None, target: CpuTarget | None = None, invariant: str = "") -> None:
    """What `gemm` computes, for operands f32 or f16 and a float32 c, by the declared algorithm of that name:

        bf16_bf16_f32_x3    f32, two terms of an element, three products: error up to 3 * 2^-16 of |A| |B|
        bf16_bf16_f32_x6    f32, three terms, the six largest products: 2^-23, less than f32's own rounding from k = 32
        bf16_bf16_f32_x9    f32, three terms, all products: those of exact elements
        bf16_bf16_f32_x4    f16, two terms, which hold an element exactly, all four products
        fastest             x6 of f32, x4 of f16, or none: taken by one thread, where the gain is large and sure

    Where AMX is missing, or a product is too small for it to pay, the native product is computed: it is as accurate. So
    it is where an element is infinite, no number, or so large that it is infinite as a bf16: packing notices.
    """
    if c.ndim == 3:
        for part in zip(a, b, c):
            gemm_by(algorithm, *part, alpha, beta, threads=threads, target=target, invariant=invariant)
        return
    target = amx.permitted(target or detect())
    m, n, k = *c.shape, a.shape[1]
    if alpha and c.size and k:
        word = lowering.algorithm_word(algorithm, format_of(a.dtype), format_of(b.dtype), m, n, k,
                                       1 if invariant else threads or pool.get_num_threads(), target)
        product = program.empty(c.shape, c.dtype) if beta else c
        if word and not gemm(a, b, product, alpha, threads=threads, target=target, word=word, invariant=invariant):
            if beta:
                program.do(partial(_add, beta), c, product)
            return
    a, b = (x if x.dtype == c.dtype or converts(x.dtype, c.dtype, m, n, k) else
            program.copied(x.astype(c.dtype), x) for x in (a, b))
    gemm(a, b, c, alpha, beta, threads=threads, target=target, invariant=invariant)


def _add(beta: float, c: Array, product: Array) -> None:
    with np.errstate(all="ignore"):
        c[...] = np.multiply(c, beta, dtype=np.float64) + product


# ---- formats

@cache      # NumPy makes the name of a dtype anew each time, and takes microseconds
def format_of(dtype: np.dtype[Any]) -> str:
    """The number format of a dtype; "" for what is none, and for numbers in another order of bytes."""
    number_format = formats.find(dtype) if dtype.isnative else None
    return number_format.name if number_format else ""


@cache
def packs(dtype: np.dtype[Any], sums: np.dtype[Any]) -> bool:
    """Whether packing converts operands of this dtype, for products that are added up in another."""
    return bool(lowering.packs(format_of(dtype), format_of(sums)))


@cache
def _rounds(result: np.dtype[Any], sums: np.dtype[Any]) -> bool:
    return lowering.rounds(format_of(result), format_of(sums))


def converts(source: np.dtype[Any], sums: np.dtype[Any], m: int, n: int, k: int, alike: bool = True) -> bool:
    """Whether `gemm` takes operands of this dtype for an m x n x k product added up in another, and should."""
    return lowering.converting_pays(m, n, k, alike) and packs(source, sums)


def finishes(sums: np.dtype[Any], result: np.dtype[Any], m: int, n: int, k: int, alike: bool = True) -> bool:
    """Whether `gemm` takes a C of this dtype for an m x n x k product added up in another, and rounds as it stores."""
    return lowering.converting_pays(m, n, k, alike) and _rounds(result, sums)


def scale(c: Array, beta: float) -> None:
    """C = beta * C, without reading it if beta is 0."""
    if beta == 0:
        c[...] = 0
    elif beta != 1:
        with np.errstate(all="ignore"):
            for part in (c.real, c.imag) if c.dtype.kind == "c" else (c,):      # inf times beta + 0i would be nan
                part *= part.dtype.type(beta)


# ---- what is multiplied, and by which plan

def product(a: Array, b: Array, c: Array, threads: int, numerics: Numerics = PLAIN) -> Product:
    """Operands as the planner sees them."""
    (m, k), n = a.shape, b.shape[1]
    return Product(m, n, k, format_of(a.dtype), format_of(b.dtype), format_of(c.dtype),
                   Strides(*strides(a), *strides(b), *strides(c)), threads, numerics)


def strides(x: Array) -> tuple[int, int]:
    """In elements, of a matrix."""
    (rows, cols), (row_stride, col_stride) = x.shape, x.strides
    return lowering.strides_of(rows, cols, row_stride // x.itemsize, col_stride // x.itemsize)


def lowered(a: Array, b: Array, c: Array, threads: int, target: CpuTarget, word: str | None,
            conj: str = "", numerics: Numerics = PLAIN) -> tuple[Lowered, bool, str]:
    """What to multiply for these operands; whether that is C^T = B^T @ A^T; and which of its operands are conjugated.
    """
    problem = product(a, b, c, threads, numerics)
    transposed = lowering.exchanges(problem)
    if transposed:
        problem, conj = problem.swapped, conj.translate(SWAPPED)
    return lowering.lower(problem, target, word), transposed, conj


class Planned(NamedTuple):
    """A product as it is multiplied, and the plan."""
    shape: Shape
    strides: Strides
    target: CpuTarget
    plan: CpuPlan
    origin: str = ""            # of the plan: see plans.measured.choice.chosen


def planned(lowered: Lowered) -> Planned:
    """By the plan that the tuner has measured to be the fastest, here or nearby, else the model's choice."""
    return Planned(*lowered, *choice.chosen(lowered.shape, lowered.target))


def decoding(planned: Planned, beside: list[few_rows.Aside]) -> Planned:
    """The plan, or the next one if its kernel does not decode weights with numbers that are stored so beside them."""
    if few_rows.decodes(planned.plan, planned.shape.source_b, beside):
        return planned
    return planned._replace(plan=next(p for p in choose.ranked(planned.shape, planned.target) if not p.word), origin="")


def plan_problem(problem: Gemm, target: CpuTarget, threads: int | None = None, algorithm: str | None = None,
                 invariant: str = "") -> Planned:
    """What tilewright.matmul multiplies for contiguous operands, and by which plan; by default with all threads."""
    threads = default_threads(target) if threads is None else threads
    return planned(lowering.lower_problem(problem, amx.permitted(target), threads, algorithm, invariant))


def default_threads(target: CpuTarget) -> int:
    """The threads that matmul would use; for a target that does not run here, its cores."""
    return pool.get_num_threads() if target.runnable else target.cores


def _chosen(a: Array, b: Array, c: Array, threads: int, plan: CpuPlan | None, target: CpuTarget | None,
            word: str | None, conj: str, semiring: str, invariant: str) -> tuple[Recipe, bool]:
    """The recipe of the plan that is chosen; whether it takes the operands in exchanged roles: as B^T and A^T."""
    chip = amx.permitted(target or detect())
    what, transposed, conj = lowered(a, b, c, threads, chip, word, conj,
                                     Numerics(semiring=semiring, invariant=invariant))
    chosen = Planned(*what, plan) if plan else planned(what)
    recipe = ready(chosen, conj)
    other = transposed or semiring or invariant or chosen.shape.converts
    if plan is None and not other and chosen.shape.dtype in BUILTIN and what.target is detect():
        small.offer(chosen.shape, chosen.plan, what.target)
    return recipe, transposed != chosen.plan.swap


def ready(planned: Planned, conj: str = "", prepacked: str = "", make: type[Recipe] = Recipe,
          host: Host = host, finish: Finish | None = None, prepare: Prepares = (None, None)) -> Recipe:
    """The recipe of a plan on a host, for as many threads as there can be; `finish`: of an epilogue; `prepare`: of the
    prologues of a and b."""
    shape, strides, target, plan, _ = planned
    if plan.copy:
        shape, strides = with_copy(shape, strides, plan)
    return make(shape, strides, team(plan, host), target, host, conj, prepacked, None, finish, prepare)


def team(plan: CpuPlan, host: Host = host) -> CpuPlan:
    """The plan for as many threads as there can be, if all members of a team must come."""
    if not plan.meets:
        return plan
    members = host.reserve(plan.threads)
    return plan if members == plan.threads else replace(plan, jc_ways=1, ic_ways=members, jr_ways=1)


def with_copy(shape: Shape, strides: Strides, plan: CpuPlan) -> tuple[Shape, Strides]:
    """What the plan meets once B is copied, or A^T if it takes the operands in exchanged roles."""
    if plan.swap:
        shape, strides = with_copy(shape.swapped, strides.swapped, replace(plan, swap=False))
        return shape.swapped, strides.swapped
    by_rows = plan.reads_b == "rows"
    strides = strides._replace(rsb=shape.n if by_rows else 1, csb=1 if by_rows else shape.k)
    return shape._replace(b=plan.reads_b), strides


def forget() -> None:
    """Choose plans anew: the tuner has learnt something."""
    prepared.clear()
    repeats.forget()
    small.publish()


# ---- running

class Run(NamedTuple):
    """One run of a recipe that a call came down to: operands as it reads them."""
    recipe: Recipe
    swapped: bool               # whether a is the product's B^T
    a: Array
    b: Array
    c: Array
    alpha: float
    beta: float
    batched: bool = False
    given: Array | None = None         # what b is a copy of, by a plan with `copy`
    table: tuple[tuple[int, ...], ...] = ()     # of its epilogue's operands (jobs.OPERAND)
    names: tuple[str, ...] = ()                 # of these

    @property
    def batch(self) -> int:
        """How many products; 0 if there is no leading axis."""
        return self.c.shape[0] if self.batched else 0

    @property
    def steps(self) -> tuple[int, int, int]:
        """Bytes from one product's operands to the next one's."""
        return (self.a.strides[0], self.b.strides[0], self.c.strides[0]) if self.batched else (0, 0, 0)


def run(recipe: Recipe, swapped: bool, a: Array, b: Array, c: Array, alpha: float, beta: float,
        beside: Beside = NOTHING) -> bool:
    """One product, or a batch of them along a leading axis; what Recipe.run says."""
    if not recipe.takes_c:
        return _through_temporary(recipe, swapped, a, b, c, alpha, beta, beside)
    if recipe.rows and not recipe.rounds(c):
        return _rounded(recipe, swapped, a, b, c, alpha, beta, beside)
    x, y = (b.swapaxes(-1, -2), a.swapaxes(-1, -2)) if swapped else (a, b)
    if recipe.rows and recipe.plan.algorithm == "stream":
        x = _read(recipe, x)
    elif recipe.rows:
        y = _read(recipe, y.swapaxes(-1, -2)).swapaxes(-1, -2)
    given, y = y, batches.copied_b(y, recipe.plan) if recipe.plan.copy else y
    steps = steps_of(x, y, c)
    note(recipe, swapped, x, given, c, alpha, beta, steps)
    at = recipe.address(x), recipe.address(y), recipe.address(c)
    if not steps:
        special = recipe.run(*at, alpha, beta, beside)
        if special:
            program.not_repeated()
        return special
    batches.run(recipe, c.shape[0], steps, *at, alpha, beta, beside)
    return False


def few(recipe: Recipe, x: Array, y: Array) -> Array:
    """The operand of few rows, as they lie along k."""
    return x if recipe.plan.algorithm == "stream" else y.swapaxes(-1, -2)


def _read(recipe: Recipe, x: Array) -> Array:
    """Rows as the recipe reads them; what is done for that is a step of the call."""
    return x if recipe.reads(x) else program.computed(partial(np.ascontiguousarray, dtype=recipe.rows_dtype), x)


def _rounded(recipe: Recipe, swapped: bool, a: Array, b: Array, c: Array, alpha: float, beta: float, beside: Beside
             ) -> bool:
    """Round the sums in f32 of a recipe that leaves no others."""
    across = swapped != (recipe.plan.algorithm == "dots")               # C^T
    sums = program.empty(c.swapaxes(-1, -2).shape if across else c.shape, np.dtype(np.float32))
    sums = sums.swapaxes(-1, -2) if across else sums
    if beta:
        program.assign(sums, c)
    run(recipe, swapped, a, b, sums, alpha, beta, beside)
    program.assign(c, sums)
    return False


def steps_of(a: Array, b: Array, c: Array) -> tuple[int, ...]:
    """Bytes from one product of a batch to the next; none, if there is no leading axis."""
    return (a.strides[0], b.strides[0], c.strides[0]) if c.ndim == 3 else ()


def note(recipe: Recipe, swapped: bool, a: Array, b: Array, c: Array, alpha: float, beta: float,
         steps: tuple[int, ...] = (), beside: Sequence[Array] = (),
         rows: Mapping[str, Sequence[tuple[int, ...]]] = program.NO_ROWS, names: tuple[str, ...] = ()) -> None:
    """Take a run of a recipe, with operands as it reads them or, of B, copies them, as a step of the call. `rows`: of
    the arrays `beside`, by fields of jobs.Beside, jobs.OPERAND or jobs.BESIDE without addresses."""
    if (recorder := program.preparing.recorder) is None:
        return
    views, batch = [*map(repeats.View.of_array, (a, b, c))], len(c) if steps else 0
    one = b[0] if b.ndim == 3 and not b.strides[0] else b
    one = one if recipe.plan.reads_b == "rows" else one.swapaxes(-1, -2)
    copies = recipe.plan.copy and not one.flags.c_contiguous
    mirrored = not (beta or batch) and symmetric.applies(recipe, a, b, c, alpha)
    every, firsts = [*chain(*rows.values())], dict(zip(rows, accumulate(map(len, rows.values()), initial=0)))
    table = array("q", [word for row in every for word in (0, *row)])

    def again(at: Sequence[int]) -> Run:
        a, b, c = (view.array(place) for view, place in zip(views, at))
        now = tuple((place, *row) for place, row in zip(at[3:], every))
        return Run(recipe, swapped, a, b, c, alpha, beta, batch > 0, b if copies else None, now, names)
    recorder.product = again if firsts.keys() <= {"operands"} else None
    recorder.step(lambda order: program.by_recipe(
        recipe, order[:3], batch, steps, table, order[3:], views[1] if copies else None, alpha, beta, mirrored, firsts),
        (a, b, c, *beside))


def _through_temporary(recipe: Recipe, swapped: bool, a: Array, b: Array, c: Array, alpha: float,
                       beta: float, beside: Beside) -> bool:
    """C's rows are not contiguous in the roles that the recipe wants: multiply into matrices whose rows are."""
    shape = recipe.shape
    rows, cols = c.shape[:-3:-1] if swapped else c.shape[-2:]
    if shape.tiles:                         # their C lies by columns
        temporary = program.empty((*c.shape[:-2], cols, rows), c.dtype).swapaxes(-1, -2)
    else:
        temporary = program.empty((*c.shape[:-2], rows, cols), c.dtype)
    if recipe.onto_temporary is None:
        rsc, csc = (1, shape.m) if shape.tiles else (shape.n, 1)
        recipe.onto_temporary = recipe.onto(recipe.strides._replace(rsc=rsc, csc=csc))
    c = c.swapaxes(-1, -2) if swapped else c
    if beta:
        program.assign(temporary, c)
    special = run(recipe.onto_temporary, swapped, a, b, temporary, alpha, beta, beside)
    program.assign(c, temporary)
    return special
