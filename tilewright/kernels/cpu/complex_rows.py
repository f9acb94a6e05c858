"""Complex products with one row of C, or one column if operands change places: the matrix is read once, where it is.

    emit_complex_stream     rows of B, which are contiguous, pass by
    emit_complex_dots       dot products along k, several at once, of operands with any strides

A vector has the parts of its numbers side by side. One sum has its products by themselves and another one those with
the parts of one operand exchanged, or by its real and its imaginary parts: they meet, with the signs of conjugated
operands, when all of k has passed.
"""
from __future__ import annotations

from functools import partial

from tilewright.ir import Function, Kernel, Type, Value, vec
from tilewright.kernels.cpu.jobs import COMPLEX_ROW, offsets
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.cpu.out import Out, Place
from tilewright.kernels.cpu.pool import job_kernel, split
from tilewright.kernels.cpu.skinny import COLUMNS, in_tree
from tilewright.plans.cpu import complex_dot_sums
from tilewright.targets.cpu import CpuTarget

# Rows of B that pass before sums leave their registers, if a row takes more of these than there are. On a Xeon with
# AVX-512 1000 x 1000 of c64 ran at 0.88, 0.92 and 0.96 of OpenBLAS with 4, 8 and 16, at 0.93 with 32.
DEPTH = 16


def signs(k: Kernel, job: Value, type: Type) -> list[Value]:
    """Record: what imaginary parts of A and of B are multiplied by: -1 of conjugated operands."""
    return [k.field(job, offsets(COMPLEX_ROW)[name], type) for name in ("sign_a", "sign_b")]


def in_turns(k: Kernel, length: int, even: Value, odd: Value) -> Value:
    """Record: a vector of these two numbers in turns."""
    return k.pack(*((even, odd)[e % 2] for e in range(length)))


def exchanged(k: Kernel, x: Value) -> Value:
    """Record: neighbours in each other's places."""
    return k.shuffle(x, x, [e ^ 1 for e in range(x.type.length)])


def emit_complex_stream(target: CpuTarget, dtype: str, TOGETHER: int) -> Function:
    """complex_stream(job, part): a run of columns of C[1, n] = alpha * A[1, k] @ B[k, n] + beta * C; n and k count
    numbers, strides reals. TOGETHER: vectors of a row of B at a time.

    Columns are dealt out in whole blocks of so many vectors, so that sums do not depend on the number of parts. They
    are on the stack until all of k has passed, in runs that stay in L1.
    """
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    VT, BLOCK, RUN = vec(T, V), TOGETHER * V, COLUMNS // T.bytes
    k, g, part = job_kernel(f"complex_stream_{dtype}_{TOGETHER}", COMPLEX_ROW, T)
    reals = g.n * 2
    a, b, out = g.a.view(g.csa, 1), g.b.view(g.rsb, 1), Out(k, g.c.view(g.csc, 1), g.alpha, g.beta)
    sums = k.local("sums", (RUN,), T)
    lo, hi = (x*BLOCK for x in split(k.ceil_div(reals, BLOCK), g.parts, part))
    hi = k.min(hi, reals)
    sign_a, sign_b = signs(k, k.args[0], T)
    of_real, of_imaginary = in_turns(k, V, k.constant(T, 1.0), sign_b), in_turns(k, V, -sign_a*sign_b, sign_a)
    deep = k.select(reals <= BLOCK, g.k, k.min(g.k, DEPTH))
    groups = k.ceil_div(g.k, deep)

    def add(begin: Value, j: Value, first: Value, last: Value, COUNT: int, mask: Value | None) -> None:
        """A[first ... last] @ B[first ... last, j ...] to its sums; mask: of the last vector."""
        masks, SUMS = [*[None] * (COUNT - 1), mask], 1 << max(TOGETHER // COUNT, 1).bit_length() - 1
        real, imaginary = ([k.tile(1, COUNT, VT) for _ in range(SUMS)] for _ in range(2))

        def multiply(p: Value, SUM: int) -> None:
            re, im = (k.broadcast(a[p, half], V) for half in range(2))
            for v in range(COUNT if mask is None else 0):       # the next block
                k.prefetch(b.at(p, j + (TOGETHER + v)*V))
            for v in range(COUNT):
                row = k.load(b.at(p, j + v*V), VT, T.bytes, masks[v])
                real[SUM][0, v] = k.fma(re, row, real[SUM][0, v])
                imaginary[SUM][0, v] = k.fma(im, row, imaginary[SUM][0, v])
        together = first + (last - first) // SUMS * SUMS
        with k.loop(together, first, SUMS) as p:
            for SUM in range(SUMS):
                multiply(p + SUM if SUM else p, SUM)
        if SUMS > 1:
            with k.loop(last, together) as p:
                multiply(p, 0)
        rows = []
        for v in range(COUNT):
            x, y = (in_tree([tile[0, v] for tile in tiles]) for tiles in (real, imaginary))
            rows.append(k.fma(exchanged(k, y), of_imaginary, x * of_real))
        to = sums + (j - begin)
        with k.when(first == 0):
            for v, x in enumerate(rows):
                k.store(to + v*V, x, T.bytes)
        with k.otherwise():
            for v, x in enumerate(rows):
                k.store(to + v*V, k.load(to + v*V, VT, T.bytes) + x, T.bytes)

    def finish(begin: Value, end: Value, read_c: bool) -> None:
        def vectors(j: Value, mask: Value | None = None) -> None:
            x = out.scaled(k.load(sums + (j - begin), VT, T.bytes))
            Place(out, g.c + j).put(x, read_c, mask)
        with k.when(g.csc == 2):
            full_end = begin + (end - begin) // V * V
            with k.loop(full_end, begin, V) as j:
                vectors(j)
            with k.when(full_end < end):
                vectors(full_end, k.lanes_below(end - full_end, V))
        with k.otherwise(), k.loop(end, begin, 2) as j:
            out.place(j // 2, 0).put(out.scaled(k.load(sums + (j - begin), vec(T, 2), T.bytes)), read_c)

    with k.loop(hi, lo, RUN) as begin:
        end = k.min(hi, begin + RUN)
        full_end = begin + (end - begin) // BLOCK * BLOCK
        rest = end - full_end
        with k.loop(groups) as group:
            first = group*deep
            last = k.min(g.k, first + deep)
            with k.loop(full_end, begin, BLOCK) as j:
                add(begin, j, first, last, TOGETHER, None)
            for COUNT in range(1, TOGETHER + 1):
                with k.when((rest > (COUNT - 1)*V) & (rest <= COUNT*V)):
                    add(begin, full_end, first, last, COUNT, k.lanes_below(rest - (COUNT - 1)*V, V))
        out.cases_of_beta(partial(finish, begin, end))
    return k.function


def emit_complex_dots(target: CpuTarget, dtype: str, COLS: int, A: str, B: str) -> Function:
    """complex_dots(job, part): a run of columns of C[1, n] = alpha * A[1, k] @ B[k, n] + beta * C, COLS at a time; n
    and k count numbers, strides reals. A, B: "along" if numbers along k are next to each other, else "any".

    An element's sums are complex_dot_sums pairs of vectors, whatever columns are around it: vector i of k is added to
    pair i % SUMS, but what is left beyond a multiple of SUMS vectors to the first one.
    """
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    VT, HALF, SUMS = vec(T, V), V // 2, complex_dot_sums(COLS)
    k, g, part = job_kernel(f"complex_dots_{dtype}_{COLS}_{A}_{B}", COMPLEX_ROW, T)
    MASKED = A == B == "along"
    a, b = g.a.view(2 if A == "along" else g.csa, 1), g.b.view(2 if B == "along" else g.rsb, g.csb)
    out = Out(k, g.c.view(g.csc, 1), g.alpha, g.beta)
    sign_a, sign_b = signs(k, k.args[0], T)
    of_even, of_odd = in_turns(k, V, k.constant(T, 1.0), sign_a), in_turns(k, V, -sign_a*sign_b, sign_b)
    full_k, together = g.k // HALF * HALF, g.k // (SUMS*HALF) * (SUMS*HALF)
    number, nothing = vec(T, 2), k.constant(vec(T, 2), 0.0)

    def loaded(x: Value, j: Value | int, p: Value, ORDER: str, mask: Value | None, ONE: bool) -> Value:
        """Numbers from p on, or one of them and nothing."""
        if ONE:
            return k.shuffle(k.load(x.at(p, j), number, T.bytes), nothing, [0, 1, *[2] * (V - 2)])
        if ORDER == "along":
            return k.load(x.at(p, j), VT, T.bytes, mask)
        parts = [k.load(x.at(p + e if e else p, j), number, T.bytes) for e in range(HALF)]
        while len(parts) > 1:
            parts = [k.shuffle(x, y, range(2*x.type.length)) for x, y in zip(parts[::2], parts[1::2])]
        return parts[0]

    def columns_at(j: Value, COLS: int) -> None:
        straight, crossed = ([k.tile(1, COLS, VT) for _ in range(SUMS)] for _ in range(2))

        def multiply(p: Value, SUM: int = 0, mask: Value | None = None, ONE: bool = False) -> None:
            x = loaded(a, 0, p, A, mask, ONE)
            across = exchanged(k, x)
            for c in range(COLS):
                y = loaded(b, j + c, p, B, mask, ONE)
                straight[SUM][0, c] = k.fma(x, y, straight[SUM][0, c])
                crossed[SUM][0, c] = k.fma(across, y, crossed[SUM][0, c])
        if SUMS > 1:
            with k.loop(together, step=SUMS*HALF) as p:
                for SUM in range(SUMS):
                    multiply(p + SUM*HALF if SUM else p, SUM)
        with k.loop(full_k, together if SUMS > 1 else 0, HALF) as p:
            multiply(p)
        if MASKED:
            with k.when(full_k < g.k):
                multiply(full_k, mask=k.lanes_below((g.k - full_k) * 2, V))
        else:
            with k.loop(g.k, full_k) as p:
                multiply(p, ONE=True)
        sums = []
        for c in range(COLS):
            x, y = (in_tree([tile[0, c] for tile in tiles]) for tiles in (straight, crossed))
            even, odd = ([e//2*2 + part + (e % 2)*V for e in range(V)] for part in range(2))
            sums.append(k.fma(k.shuffle(x, y, odd), of_odd, k.shuffle(x, y, even) * of_even))
        numbers = added_up(k, sums)

        def put(read_c: bool) -> None:
            for c, x in enumerate(numbers):
                out.place(j + c, 0).put(out.scaled(x), read_c)
        out.cases_of_beta(put)

    lo, hi = split(g.n, g.parts, part)
    for SIZE in sorted({COLS, min(COLS, 4), 1}, reverse=True):
        full = lo + (hi - lo) // SIZE * SIZE
        with k.loop(full, lo, SIZE) as j:
            columns_at(j, SIZE)
        lo = full
    return k.function


def added_up(k: Kernel, sums: list[Value]) -> list[Value]:
    """Record: of each vector the sum of its numbers, by halves, in the same order whatever other vectors there are."""
    if (most := 1 << len(sums).bit_length() - 1) < len(sums):
        return added_up(k, sums[:most]) + added_up(k, sums[most:])
    vectors, EACH, LANES = sums, 1, sums[0].type.length       # vectors, and in each the numbers and the lanes of one
    while LANES > 2:
        LANES //= 2
        low, high = ([one*2*LANES + half*LANES + e for one in range(EACH) for e in range(LANES)] for half in range(2))
        if len(vectors) == 1:
            x = vectors[0]
            vectors = [k.shuffle(x, x, low) + k.shuffle(x, x, high)]
        else:
            W = vectors[0].type.length
            vectors = [k.shuffle(x, y, [*low, *(e + W for e in low)]) + k.shuffle(x, y, [*high, *(e + W for e in high)])
                     for x, y in zip(vectors[::2], vectors[1::2])]
            EACH *= 2
    return [k.shuffle(x, x, [2*e, 2*e + 1]) for x in vectors for e in range(EACH)]
