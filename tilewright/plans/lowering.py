"""What is multiplied on CPUs: from operands of any formats, or a problem, to the shape that a plan is chosen for.

    formats that are converted before       taken, stored: all that packing does not convert, and all small products
    formats that packing converts           CONVERTED; those that sums are rounded to as they are stored: ROUNDED
    several steps of k in a word            word: by the tables of plans/words.py and what the target has, AMX included
    elements as the sum of several terms    algorithm_word: what `algorithm=` asks for, where it pays
    complex numbers                         complex_way: one real product, whose panels or operands hold both parts;
                                            exchanges: with few rows or columns, in place

    lower(product, target)              the product of operands as they come to the engine
    lower_problem(problem, target)      the one that tilewright.matmul makes of a Gemm's contiguous operands
"""
from __future__ import annotations

from math import inf
from typing import Literal, NamedTuple

from tilewright.expressions.numerics import PLAIN, HasNumerics, Numerics
from tilewright.formats.table import NARROW
from tilewright.plans import epilogues, invariant as invariants, prologues, semirings
from tilewright.plans.cpu_shape import COMPLEX, Shape, Strides, few_complex, order, steps
from tilewright.plans.words import DOTS_LARGE, SURE, TILE_WORDS, WORDS, Word, faster, native_words, pays
from tilewright.problem import Gemm, numerics
from tilewright.targets import CpuTarget, coerce
from tilewright.targets.machine import thread_count

_INTEGERS = ("i8", "u8", "i16", "u16")
SUMS = ("f32", "f64", "i32", "i64", "c64", "c128")          # in which products are added up
# What packing converts, by the format of the sums, and as which format it reads it; all of its numbers are numbers of
# that of the sums.
CONVERTED = {"f32": {**{f: f for f in (*NARROW, *_INTEGERS)}, "bool": "i8"},
             "i32": {**{f: f for f in _INTEGERS}, "bool": "i8"}}
# What sums are rounded to as they are stored.
ROUNDED = {"f32": NARROW, "i32": _INTEGERS}
SMALL_WORK = 64**3      # m*n*k from which packing converts two formats: worth kernels that are compiled for them
# Rows and columns of C, words of k, and m*n*k from which AMX is used; rows, columns and k where an element has several
# terms. On a Xeon shapes with little of one took 0.6 (bf16) and 0.85 (i8) of the time of vectors by this rule.
LEAST_TILES, LEAST_WORDS, LEAST_TILED, LEAST_TERMS = 6, 8, 32**3, 64
MOST_DOTS = 16          # rows of bytes by a large matrix, both with k contiguous, which dots read once without AMX

# algorithm= → the format that it splits, and the word that it is multiplied by
ALGORITHMS = {"bf16_bf16_f32_x3": ("f32", "amx_bf16_x3"), "bf16_bf16_f32_x6": ("f32", "amx_bf16_x6"),
              "bf16_bf16_f32_x9": ("f32", "amx_bf16_x9"), "bf16_bf16_f32_x4": ("f16", "amx_f16")}
FASTEST = "fastest"
NO_WORSE = {"f32": "amx_bf16_x6", "f16": "amx_f16"}         # than the native product's error bound


class _Product(NamedTuple):
    """Operands as they come to the engine: each in a format that packing takes, C in one that can be stored."""
    m: int
    n: int
    k: int
    a: str                      # number formats
    b: str
    out: str
    strides: Strides
    threads: int = 1
    numerics: Numerics = PLAIN
    added_in: str = ""          # the format of the sums, if C's does not say it
    beside: bool = False        # whether the epilogue reads C, so that sums are not added up there


class Product(HasNumerics, _Product):
    """A product from which `lower` makes a shape."""

    @property
    def sums(self) -> str:
        """The format in which products for this C are added up."""
        return self.added_in or next((sums for sums, rounded in ROUNDED.items() if self.out in rounded), self.out)

    @property
    def swapped(self) -> Product:
        """C^T = B^T @ A^T."""
        return self._replace(m=self.n, n=self.m, a=self.b, b=self.a, strides=self.strides.swapped,
                             numerics=self.numerics.swapped)


class Lowered(NamedTuple):
    """A product as it is multiplied: of real numbers or of words; strides in elements of C's parts."""
    shape: Shape
    strides: Strides
    target: CpuTarget


# ---- formats

def packs(source: str, sums: str) -> str:
    """The format as which packing reads operands of this one, for products that are added up in `sums`; "" if it does
    not convert them."""
    return CONVERTED.get(sums, {}).get(source, "")


def rounds(out: str, sums: str) -> bool:
    """Whether sums are rounded to this format as they are stored."""
    return out in ROUNDED.get(sums, ())


def converting_pays(m: int, n: int, k: int, alike: bool = True) -> bool:
    """Whether operands and sums are converted while they are packed and stored, not before and after. `alike`: operands
    are in one format."""
    return alike or m*n*k >= SMALL_WORK


def taken(source: str, sums: str, m: int, n: int, k: int, alike: bool = True) -> str:
    """The format in which the engine takes an operand: its own if packing converts it, else that of the sums."""
    return source if converting_pays(m, n, k, alike) and packs(source, sums) else sums


def stored(out: str, sums: str, m: int, n: int, k: int, alike: bool = True) -> str:
    """The format in which the engine leaves C: the result's if sums are rounded to it as they are stored, else that of
    the sums."""
    return out if converting_pays(m, n, k, alike) and rounds(out, sums) else sums


def aside(epilogue: str) -> bool:
    """Whether sums cannot be added up in C even in their format: it has half as many columns, or is no result."""
    return bool(epilogue) and (epilogues.read(epilogue).paired or epilogues.read(epilogue).main is None)


def decoded(m: int, n: int, k: int) -> str:
    """The format in which two block-scaled operands come to the engine, if bf16 holds all of their numbers."""
    return taken("bf16", "f32", m, n, k)


# ---- words

def fills_tiles(word: Word, m: int, n: int, k: int) -> bool:
    """Whether AMX multiplies a product of this size by its word faster than vectors do."""
    if TILE_WORDS[word.name].terms > 1:
        return min(m, n, k) >= LEAST_TERMS
    return min(m, n) >= LEAST_TILES and k >= LEAST_WORDS * word.steps and m*n*k >= LEAST_TILED


def word(sums: str, sources: tuple[str, str], target: CpuTarget, sizes: tuple[int, int, int] = (1024, 1024, 1024)
         ) -> Word | None:
    """The word for operands of these formats that are added up in `sums` on this chip, if there is one, in a product of
    m, n and k: AMX's only if it fills the tiles."""
    a, b = sources
    return next((w for w in WORDS if sums == w.sums and a in w.a and b in w.b and any(map(target.has, w.needs))
                 and (not w.tiles or fills_tiles(w, *sizes))
                 and not (w.slow and target.model.startswith(w.slow))), None)


def algorithm_word(algorithm: str, a: str, b: str, m: int, n: int, k: int, threads: int, target: CpuTarget) -> str:
    """The word by which `algorithm=` multiplies operands of these formats; "" for the native product,
    which is as accurate: where AMX is missing, or splitting elements would not pay."""
    if a != b or "amx-bf16" not in target.extensions:
        return ""
    if algorithm == FASTEST:
        chosen = NO_WORSE.get(a, "")
        return chosen if chosen and faster(chosen, m, n, k, threads) else ""
    split, chosen = ALGORITHMS[algorithm]
    return chosen if a == split and pays(chosen, m, n, k) else ""


def native_up_to(algorithm: str | None, dtype: str, threads: int, target: CpuTarget) -> float:
    """The m*n*k up to which `algorithm_word` finds none for operands of this format, whatever their shape; -1 if the
    algorithm does not take them."""
    if algorithm is None or algorithm == FASTEST:
        word = NO_WORSE.get(dtype, "") if algorithm and threads == 1 else ""
        gain = SURE
    else:
        split, word = ALGORITHMS[algorithm]
        gain = 1.0
        if split != dtype:
            return -1
    return native_words(word, gain) if word and "amx-bf16" in target.extensions else inf


def lower(product: Product, target: CpuTarget, word_name: str | None = None) -> Lowered:
    """What to multiply for these operands. word_name: that of a word of plans.words, "" for none, None for
    the one that suits the target."""
    p, sums = product, product.sums
    out = p.out if p.out != sums or p.beside or aside(p.epilogue) or semirings.state(p.semiring) else ""
    sources = prologues.source(p.prologue_a, packs(p.a, sums)), prologues.source(p.prologue_b, packs(p.b, sums))
    m, n, k, strides = p.m, p.n, p.k, p.strides
    if sums in COMPLEX:
        sources = p.a, p.b
        sums, n, k = COMPLEX[sums], 2*n, 2*k
        doubled = Strides(*(2*stride for stride in strides))
        strides = doubled._replace(csc=doubled.csc if strides.csc != 1 else 1)
    of_b = order(p.strides.rsb, p.strides.csb)
    if m == n == 1 and p.strides.rsb == 1:                  # B is a column without gaps
        of_b = "columns"
    shape = Shape(sums, m, n, k, order(p.strides.rsa, p.strides.csa), of_b, p.threads, *sources, out,
                  numerics=p.numerics)
    if p.semiring and sums == "i32" and sources == ("i8", "i8") and semirings.in_bytes(p.semiring, k):
        return Lowered(shape._replace(dtype="bytes", k=steps("bytes", k), depth=k), strides, target)
    if p.semiring:
        return Lowered(shape, strides, target.extended if semirings.counts_bits(p.semiring) else target)
    if shape.prologues and sums != "f32":
        return Lowered(shape, strides, target)
    named = (prologues.multiplied(sources[0] or sums, p.prologue_a),
             prologues.multiplied(sources[1] or sums, p.prologue_b))
    if word_name is None and shape.prologues and prologues.read_once(
            p.prologue_a, p.prologue_b, *invariants.sizes(m, n, p.invariant), sums):
        word_name = ""                                          # plans/few_rows.py has the instructions
    if word_name is None:
        rows, columns = invariants.sizes(m, n, p.invariant)
        dots = sums == "i32" and (shape.a, of_b) == ("rows", "columns") and rows <= MOST_DOTS and n*k >= DOTS_LARGE
        packed_word = word(sums, named, target, (0 if dots else rows, columns, k))
        word_name = packed_word.name if packed_word else ""
    if not word_name:
        return Lowered(shape, strides, target)
    if word_name in TILE_WORDS:
        sources = sources[0] or sums, sources[1] or sums
    shape = shape._replace(dtype=word_name, k=steps(word_name, k), source_a=sources[0], source_b=sources[1], depth=k)
    return Lowered(shape, strides, target.extended)


# ---- complex products

def exchanges(p: Product) -> bool:
    """Whether the engine computes C^T = B^T @ A^T: because C lies by columns (not where the bits must be the same
    wherever it lies), or, of complex operands that are read in place, because that is a row, or rows of B^T are
    contiguous, or rows of A^T. Then C may lie in any way."""
    if p.invariant in invariants.ROWS:
        return False
    st = p.strides
    if p.a == p.b == p.out and p.out in COMPLEX and not (p.epilogue or p.semiring):
        if 1 in (p.m, p.n):
            return p.m > 1
        if few_complex(p.m, p.n, p.k):
            a, b = order(st.rsa, st.csa), order(st.rsb, st.csb)
            return b == "columns" if p.m < p.n else a == "columns" and (p.m > p.n or b != "rows")
    return st.csc != 1 and st.rsc == 1


class Way(NamedTuple):
    """How a product with complex operands becomes a real one.

        packed      the engine takes both complex operands: it packs them, B as two rows and two columns of reals for
                    each number, or with few rows or columns of C reads them where they are
        expanded    [cr ci] = [ar ai] @ [br bi; -bi br], with B rewritten before, for engines that do neither
        beside      [cr ci] = a @ [br bi], for a real A
        real        of real operands, for a C that is complex
    """
    name: Literal["packed", "expanded", "beside", "real"]
    exchange: bool = False          # C^T = B^T @ A^T is computed


def complex_way(empty: bool, a_complex: bool, b_complex: bool, packs: bool = True) -> Way:
    """The way for operands of which one may be real. empty: there is nothing to multiply; packs: whether the engine
    takes two complex operands."""
    if not (a_complex or b_complex):
        return Way("real")
    if empty or (packs and a_complex and b_complex):
        return Way("packed")
    return Way("expanded") if a_complex and b_complex else Way("beside", exchange=a_complex)


def as_real(product: Product, way: Way) -> Product:
    """The real product of this way, whose rewritten operands have contiguous rows. A packed one stays as it is: `lower`
    takes it."""
    if way.name == "packed":
        return product.swapped if exchanges(product) else product
    p = product.swapped if way.exchange else product
    part, st, m, n, k = COMPLEX[p.out], p.strides, p.m, p.n, p.k
    if way.name == "real":
        return p._replace(a=part, b=part, out=part, strides=st._replace(rsc=n, csc=1))

    def parts(row: int, col: int, cols: int) -> tuple[int, int]:
        return (2*row if col == 1 else 2*cols), 1
    a, b, c = parts(st.rsa, st.csa, k), parts(st.rsb, st.csb, n), parts(st.rsc, st.csc, n)
    if way.name == "expanded":
        k, b = 2*k, (2*n, 1)
    else:
        a = st.rsa, st.csa
    return Product(m, 2*n, k, part, part, part, Strides(*a, *b, *c), p.threads,
                   Numerics(invariant=p.invariant))


# ---- problems

def taken_operands(problem: Gemm, threads: int = 1, invariant: str = "") -> Product:
    """The contiguous operands of a Gemm in the formats in which tilewright.matmul gives them to the engine; of
    block-scaled ones what they are decoded to, along k. ValueError for results that matmul would not give."""
    p, threads, sums = problem, thread_count(threads), problem.sums
    rows, columns = invariants.sizes(p.m, p.n, invariant)
    sizes, alike = (rows, columns, p.k), p.a == p.b or bool(p.prologues)
    if not p.castable:
        raise ValueError(f"{p} has out = {p.out}, to which products of {p.a} and {p.b} cannot be cast (NumPy's rule "
                         "'same_kind')")
    if p.scales:
        raise ValueError(f"CPUs have no kernels that scale sums, and {p} has scales={p.scales!r}: tilewright.matmul "
                         "takes scale_a and scale_b there")
    if p.semiring and p.epilogue and semirings.state(p.semiring):
        raise ValueError(f"{p} has an epilogue of a state of {semirings.state(p.semiring)} fields, which products on "
                         "CPUs make themselves of the results' epilogue: tilewright.contract takes it")
    if p.blocks:
        a = b = "f32" if invariant == "rows" else decoded(*sizes)
    elif sums in COMPLEX:
        a, b = (sums if f in COMPLEX else COMPLEX[sums] for f in (p.a, p.b))
    else:
        a, b = (f if name in p.prologues else taken(f, sums, *sizes, alike) for name, f in (("a", p.a), ("b", p.b)))
    epilogue = p.epilogue
    if once := prologues.read_once(p.prologue_a, p.prologue_b, rows, columns, sums):     # what follows is done after it
        other = "bf16" if p.a == "bf16" and prologues.weights(p.prologue_b) else sums
        a, b, epilogue = a if once == "a" else other, b if once == "b" else sums, ""
    out = sums if sums in COMPLEX or once else stored(p.out, sums, *sizes, bool(p.blocks) or alike)
    if semirings.state(p.semiring):
        epilogue = semirings.finished(p.semiring)
        out = epilogues.kind(epilogue, sums)
    if p.epilogue and sums == "i32" and p.out == "f32" and converting_pays(*sizes, alike):
        out = p.out
    layout = "nt" if p.blocks else p.layout
    strides = Strides(*contiguous(p.m, p.k, layout[0]), *contiguous(p.k, p.n, layout[1]),
                      *contiguous(p.m, p.n, "n"))
    added_in = sums if p.fused or epilogue else ""
    return Product(p.m, p.n, p.k, a, b, out, strides, threads,
                   numerics(p)._replace(epilogue=epilogue, invariant=invariant), added_in)


def of_problem(problem: Gemm, threads: int = 1, invariant: str = "") -> Product:
    """The operands of a problem, as `taken_operands`; of complex ones the real product, unless packing makes it."""
    p = taken_operands(problem, threads, invariant)
    if p.sums not in COMPLEX:
        return p
    return as_real(p, complex_way(not p.m * p.n * p.k, p.a == p.out, p.b == p.out))


def contiguous(rows: int, cols: int, letter: str) -> tuple[int, int]:
    """Strides of a matrix that is stored as this letter of a layout says."""
    return strides_of(rows, cols, *((max(cols, 1), 1) if letter == "n" else (1, max(rows, 1))))


def strides_of(rows: int, cols: int, row_stride: int, col_stride: int) -> tuple[int, int]:
    """In elements. An axis of length 1 has no stride of its own: it is taken to be whatever makes the matrix
    contiguous."""
    if cols == 1:
        col_stride = 1
    if rows == 1:
        row_stride = 1 if col_stride != 1 else cols
    return row_stride, col_stride


def lower_problem(problem: Gemm, target: CpuTarget, threads: int = 1, algorithm: str | None = None,
                  invariant: str = "") -> Lowered:
    """What tilewright.matmul multiplies for a Gemm with contiguous operands."""
    if algorithm is not None and problem.prologues:
        raise ValueError(f"algorithm must be None for products with a prologue, not {algorithm!r}")
    if algorithm in ALGORITHMS and (problem.a, problem.b, problem.sums) != (*(ALGORITHMS[algorithm][0],)*2, "f32"):
        raise ValueError(f"algorithm={algorithm!r} splits operands of {ALGORITHMS[algorithm][0]} whose products are "
                         f"added up in f32; {problem} has a = {problem.a}, b = {problem.b}, added up in {problem.sums}")
    product = of_problem(problem, threads, invariant)
    split = "" if algorithm is None or not problem.flops else algorithm_word(
        algorithm, product.a, product.b, problem.m, problem.n, problem.k, 1 if invariant else product.threads, target)
    return lower(product, target, split or None)


def shape_of(problem: Gemm, threads: int = 1, target: CpuTarget | str | None = None) -> Shape:
    """A Gemm with contiguous operands as the planner sees it, on a target (default: this machine)."""
    return lower_problem(problem, coerce(target, CpuTarget), threads).shape
