"""Passes over a matrix of any strides: copied from one format to another, times a factor, a real or a complex one, or
prepared as a prologue of an operand says.

Lanes go along the columns. The caller names rows and columns so that the destination's columns have the smaller stride.
"""
from __future__ import annotations

from typing import Any
from zlib import crc32

from tilewright import formats
from tilewright.expressions import HALVES
from tilewright.expressions.program import Expression
from tilewright.ir import Function, Kernel, Type, Value, f32, f64, i1, i8, i32, i64, ptr, vec
from tilewright.kernels.expression import recorded
from tilewright.kernels.gpu.fused import rounded
from tilewright.kernels.narrow import memory_type, narrowed, number, scaled, widened

COLUMNS, ROWS = 32, 8       # of a workgroup
WORDS = "f64", "f32", "i32", "i64"          # formats that are a kernel's own types


def computed_in(SOURCE: str, TARGET: str) -> Type:
    """The type of the scale, and of its product."""
    if "f64" in (SOURCE, TARGET):
        return f64
    if isinstance(formats.FORMATS[TARGET], formats.Integer):
        return i64 if "i64" in (SOURCE, TARGET) else i32
    return f32


def emit_copy(SOURCE: str = "f32", TARGET: str = "f32", WARP: int = 32) -> Function:
    """target[z, i, j] = scale * source[z, i, j], in TARGET's format; scale = 0 writes zeros and never reads the source.

    Floats become the nearest one, ties to even, integers their lowest bits; from f64 to formats of 16 bits and fewer
    by way of f32. Strides in elements, of any sign, from matrix to matrix (mss, mst), row to row and column to column.
    Source and target may be the same matrices. The grid covers the columns along x and the matrices along z; rows are
    dealt out to as many workgroups as it has along y. WARP: lanes of a warp on the target.
    """
    C = computed_in(SOURCE, TARGET)
    k = Kernel(f"copy_{SOURCE}_{TARGET}", threads=(COLUMNS, ROWS), warp=WARP, noalias=False, rows=i64, columns=i64,
               scale=C, source=ptr(memory_type(SOURCE)), rss=i64, css=i64, target=ptr(memory_type(TARGET)), rst=i64,
               cst=i64, mss=i64, mst=i64)
    rows, columns, scale, source, rss, css, target, rst, cst, mss, mst = k.args
    (x, y), (block_x, block_y) = k.thread, k.block
    source, target = (at + k.cast(k.block_z, i64)*apart for at, apart in ((source, mss), (target, mst)))
    j = k.cast(block_x, i64)*COLUMNS + x
    value = k.variable(C, 0)                                    # which stays unless something is read
    with k.when(j < columns):
        with k.loop(rows, start=k.cast(block_y*ROWS + y, i64), step=k.cast(k.grid[1]*ROWS, i64)) as i:
            with k.when(scale != 0):
                value.set(scaled(k, _wide(k, source[i*rss + j*css], SOURCE, C), scale))
            target[i*rst + j*cst] = _narrow(k, value.get(), TARGET)
    return k.function


def _wide(k: Kernel, x: Value, SOURCE: str, C: Type) -> Value:
    if SOURCE in WORDS:
        return k.cast(x, C)
    return k.cast(widened(k, x, SOURCE, f32 if C == f64 else C), C)


def _narrow(k: Kernel, x: Value, TARGET: str) -> Value:
    if TARGET in WORDS:
        return k.cast(x, memory_type(TARGET))
    x = k.cast(x, f32) if x.type == f64 else x
    return narrowed(k, k.pack(x, x), TARGET)[0]                 # elements of vectors are bits, not indices


def grid(rows: int, columns: int) -> tuple[int, int]:
    """Workgroups for a matrix of this size."""
    return -(-columns // COLUMNS), min(-(-rows // ROWS), 65535)


PARTS = {"c64": f32, "c128": f64}


def emit_complex(FORMAT: str = "c64", EXPANDED: bool = False, WARP: int = 32) -> Function:
    """target[g, i, j] = factor * source[g, i, j], or of its conjugate, as complex numbers, or EXPANDED, each as the two
    rows and two columns by which a real product multiplies by it: re im, and below them -im re.

    Strides in real numbers, of any sign. `sign`: 1, or -1 for the conjugate. Source and target may be the same
    matrices, unless EXPANDED. The grid covers the columns along x; rows are dealt out along y, matrices along z, as
    many as it has there (`depth`)."""
    R = PARTS[FORMAT]
    k = Kernel(f"complex_{FORMAT}{'_expanded'*EXPANDED}", threads=(COLUMNS, ROWS), warp=WARP, noalias=False,
               batch=i64, depth=i64, rows=i64, columns=i64, real=R, imaginary=R, sign=R, source=ptr(R), sss=i64,
               rss=i64, css=i64, target=ptr(R), sst=i64, rst=i64, cst=i64)
    batch, depth, rows, columns, real, imaginary, sign, source, sss, rss, css, target, sst, rst, cst = k.args
    (x, y), (block_x, block_y) = k.thread, k.block
    j = k.cast(block_x*COLUMNS + x, i64)
    with (k.when(j < columns), k.loop(batch, start=k.cast(k.block_z, i64), step=depth) as g,
          k.loop(rows, start=k.cast(block_y*ROWS + y, i64), step=k.cast(k.grid[1]*ROWS, i64)) as i):
        number = k.load(source + (g*sss + i*rss + j*css), vec(R, 2), align=R.bytes)
        re, im = number[0], number[1]*sign
        # a real factor meets each part alone: inf times 1 has no nan in it
        turned_re, turned_im = k.fma(re, real, -(im*imaginary)), k.fma(im, real, re*imaginary)
        alone = imaginary == 0
        re, im = k.select(alone, re*real, turned_re), k.select(alone, im*real, turned_im)
        at = target + (g*sst + i*rst*(1 + EXPANDED) + j*cst)
        k.store(at, k.pack(re, im), align=R.bytes)
        if EXPANDED:
            k.store(at + rst, k.pack(-im, re), align=R.bytes)
    return k.function


WIDEST = 16                 # bytes of an access


def emit_prepare(SOURCE: str = "i8", EXPRESSION: str = "", READ: tuple[str, ...] = (), RESULT: str = "bf16",
                 STEPS: str = "rows", VECTOR: int = 1, PAIRS: bool = False, WARP: int = 32) -> Function:
    """target[i, j] = EXPRESSION of source[i, j] and of what is beside it, rounded to RESULT.

    READ        of each operand "format:how:group", how being its stride along rows and along columns: 0, n for any,
                along columns v for vectors of numbers that may be read at once. Its parameters are x0, rows_x0,
                columns_x0 ..., strides in elements; `group` steps of k share a number
    STEPS       which of "rows" and "columns" are steps of k
    SOURCE      i4x2, u4x2, e2m1x2: two to a byte along columns, the first one in its lower half; rss counts bytes then
    VECTOR      columns of a thread: source's and target's lie side by side, aligned to as many, and there is a whole
                number of them
    PAIRS       the chip rounds two f32 to f16 or bf16 at once (`Kernel.round_pair`)
    """
    HALF, ELEMENT = SOURCE.endswith(HALVES), SOURCE.removesuffix(HALVES)
    S, R, expression = memory_type(ELEMENT), memory_type(RESULT), Expression.read(EXPRESSION)
    words = [word.split(":") for word in READ]
    more: dict[str, Any] = {}
    for at, (format, _, _) in enumerate(words):
        more |= {f"x{at}": ptr(memory_type(format), strided=True), f"rows_x{at}": i64, f"columns_x{at}": i64}
    k = Kernel(f"prepare_{SOURCE}_{RESULT}_{STEPS}_v{VECTOR}_{crc32(repr((EXPRESSION, READ)).encode()):08x}",
               threads=(COLUMNS, ROWS), warp=WARP, noalias=False, rows=i64, columns=i64,
               source=ptr(S, strided=True), rss=i64, css=i64, target=ptr(R, strided=True), rst=i64, cst=i64, **more)
    g = dict(k.function.params)
    rows, columns, source, rss, css, target, rst, cst = k.args[:8]
    FLOAT = f64 if RESULT == "f64" else f32
    widest = max(FLOAT.bytes, *(memory_type(format).bytes for format in (ELEMENT, *(word[0] for word in words))))
    LANES = min(max(VECTOR, 2), WIDEST // widest)           # at once: elements of vectors are bits, not indices
    types = {"float": FLOAT, "int": i32, "bool": i1}
    kinds = dict(expression.parameters)
    first, *names = kinds
    (x, y), (block_x, block_y) = k.thread, k.block
    j = (k.cast(block_x, i64)*COLUMNS + x)*VECTOR

    def beside(at: int, i: Value) -> list[Value]:
        """An operand's numbers for the thread's columns, or one for all."""
        _, how, group = words[at]
        G, pointer, apart = int(group), g[f"x{at}"], g[f"columns_x{at}"]
        if how[0] != "0":
            pointer = pointer + (i // G if G > 1 and STEPS == "rows" else i)*g[f"rows_x{at}"]
        if how[1] == "0":
            return [k.load(pointer)]
        if G == 1 or STEPS == "rows":
            return _side_by_side(k, pointer + j, VECTOR) if how[1] == "v" else [
                k.load(pointer + (j + e)*apart) for e in range(VECTOR)]
        return [k.load(pointer + (j + e) // G*apart) for e in range(1 if G % VECTOR == 0 else VECTOR)]

    def number_of(values: list[Value], e: int, FORMAT: str, kind: str) -> Value:
        """LANES numbers from column e on."""
        return number(k, k.pack(*(values[(e + lane) % len(values)] for lane in range(LANES))), FORMAT, types[kind])

    with k.when(j < columns):
        with k.loop(rows, start=k.cast(block_y*ROWS + y, i64), step=k.cast(k.grid[1]*ROWS, i64)) as i:
            elements = _of_bytes(k, source + (i*rss + j // 2), j, VECTOR) if HALF else _side_by_side(
                k, source + (i*rss + (j if VECTOR > 1 else j*css)), VECTOR)
            read, kept = [beside(at, i) for at in range(len(words))], list[Value]()
            for e in range(0, VECTOR, LANES):
                inputs = {first: number_of(elements, e, ELEMENT, kinds[first])}
                inputs |= {name: number_of(values, e, word[0], kinds[name])
                           for name, values, word in zip(names, read, words)}
                prepared, = recorded(k, expression, inputs, FLOAT)
                kept += [prepared[lane] if prepared.type.length > 1 else prepared for lane in range(min(LANES, VECTOR))]
            place = target + (i*rst + (j if VECTOR > 1 else j*cst))
            k.store(place, rounded(k, kept, RESULT, PAIRS))
    return k.function


def _of_bytes(k: Kernel, at: Value, j: Value, count: int) -> list[Value]:
    """Numbers j ... of two to a byte, each in the lower half of one."""
    elements = list[Value]()
    for x in _side_by_side(k, at, max(count // 2, 1)):
        pair = k.cast(k.pack(x, x), vec(i32, 2))                    # elements of vectors are bits, not indices
        upper = k.cast(pair >> 4, vec(i8, 2))[0]
        elements += [x, upper] if count > 1 else [k.select(j % 2 == 0, x, upper)]
    return elements


def _side_by_side(k: Kernel, at: Value, count: int) -> list[Value]:
    """Numbers that are read at once as far as accesses reach."""
    T = at.type.element
    if count == 1:
        return [k.load(at)]
    most = min(count, WIDEST // T.bytes)
    parts = [k.load(at + e, vec(T, most)) for e in range(0, count, most)]
    return [part[e] for part in parts for e in range(most)]
