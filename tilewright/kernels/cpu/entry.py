"""tilewright.matmul as CPython sees it: a METH_FASTCALL | METH_KEYWORDS builtin, emitted.

    PyObject *matmul(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)

The common call is done here: (a, b), (a, b, out) or (a, b, out=out) with exact ndarrays of one or two dimensions, one
native dtype, float32 or float64, strides in whole elements, shapes that agree, an `out` that can be written row by row
and does not share its range of bytes with a or b, and sizes that the small kernel takes; with `algorithm=` too, up to
the size where that is another than the native product. A call like an earlier one is repeated (repeat.py). Every other
call goes to the Python function with the same arguments, which does the rest of the work or raises.

Arrays are read in NumPy's structure itself, whose layout api/builtin.py verifies first.

What depends on the process is not in the code but in the context, the state of the module that is the builtin's
`self`: so the code can be cached on disk.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tilewright.ir import Function, Kernel, Value, i8, i32, i64, ptr
from tilewright.ir.values import Variable
from tilewright.kernels.cpu import abi, repeat
from tilewright.targets.cpu import CpuTarget

KIND_MASK = 0xffff_ffff_00ff_0000               # of the word that holds byteorder and type_num
NATIVE_F32, NATIVE_F64 = (number << 32 | ord("=") << 16 for number in (11, 12))

LONGEST = 1 << 20           # of m, n, k: their product stays below 2**63


@dataclass
class Matrix:
    """data and strides in bytes, as integers"""
    data: Value
    rows: Value
    cols: Value
    row_stride: Value
    col_stride: Value


@cache
def _general(header: int) -> Function:
    """Repeat an earlier call like this one, or hand it to the Python function."""
    k = Kernel("matmul_general", context=ptr(i8), args=ptr(i64), nargs=i64, kwnames=ptr(i8), result=ptr(i8),
               noalias=False)
    context, args, nargs, kwnames = k.args
    # A record that is replaced lives on while RUNNING: torch may collect garbage, and other threads run meanwhile.
    running = (context + abi.RUNNING).as_(i64)
    k.store(running, k.load(running) + 1)
    repeated = k.call(repeat.emit_repeat(header), context, args, nargs, kwnames)
    k.store(running, k.load(running) - 1)
    with k.when(repeated != 0):
        k.ret(repeated)
    vectorcall = k.field(context, abi.VECTORCALL, ptr(i8))
    said = k.local("said", (abi.DL_SIZE // 8,), i64).as_(i8)
    function = k.variable(ptr(i8), k.field(context, abi.PYTHON, ptr(i8)))
    with k.when(nargs > 0):
        a = k.load(args, ptr(i8))
        kind = k.field(a, header - 8, i64)
        with k.when(kind == k.field(context, abi.NDARRAY, i64)):
            function.set(k.field(context, abi.WATCHING, ptr(i8)))
        with k.when(kind == k.field(context, abi.TENSOR, i64)), k.when(
                repeat.read_tensor(k, context, a, said) == abi.ON_CPU):
            function.set(k.field(context, abi.WATCHING, ptr(i8)))
    k.ret(k.call(vectorcall, function.get(), args, nargs, kwnames, result=ptr(i8)))
    return k.function


def _decline() -> Function:
    """What stands where there is no small kernel: it takes no call."""
    k = Kernel("matmul_decline", result=i64)
    k.ret(0)
    return k.function


def _begin(k: Kernel, header: int) -> tuple[Value, Callable[[Value], None], Variable, Value]:
    """Record what a call starts with: (context, refuse_when, out or 0, the largest m*n*k for f32 and f64, as two
    numbers)."""
    module, args, nargs, kwnames = k.args
    context = k.call_external("PyModule_GetState", ptr(i8), module)
    general = _general(header)

    def refuse_when(bad: Value) -> None:
        with k.when(bad):
            k.ret(k.call(general, context, args, nargs, kwnames))

    refuse_when((nargs < 2) | (nargs > 3))
    out, native = k.variable(ptr(i8), 0), k.variable(i64, 0)
    with k.when(nargs == 3):
        out.set(k.load(args + 2, ptr(i8)))
    with k.when(kwnames != 0):
        named = k.call_external("PyTuple_Size", i64, kwnames)
        refuse_when(named > 2)
        with k.loop(named) as i:
            name = k.address(k.call_external("PyTuple_GetItem", ptr(i8), kwnames, i))
            with k.when(name == k.field(context, abi.OUT, i64)):          # keyword names are interned
                refuse_when(out.get() != 0)
                out.set(k.load(args + (nargs + i), ptr(i8)))
            with k.otherwise():
                refuse_when(name != k.field(context, abi.ALGORITHM, i64))
                for row in range(1, abi.NATIVE_ROWS):
                    with k.when(args[nargs + i] == k.field(context, abi.NATIVE + 24*row, i64)):
                        native.set(24 * row)
                refuse_when(native.get() == 0)
    return context, refuse_when, out, (context + (native.get() + (abi.NATIVE + 8))).as_(i64)


def _shapes(k: Kernel, context: Value, a: Matrix, b: Matrix, most: Value) -> tuple[Value, Value]:
    """(they do not fit or are not for the small kernel, m * n * k)"""
    m, n, p = a.rows, b.cols, a.cols
    volume = m * n * p
    most = k.min(k.field(context, abi.LARGEST, i64), most)
    return (b.rows != p) | ((m | n | p) >= LONGEST) | (volume <= 0) | (volume > most), volume


def _range(k: Kernel, x: Matrix, itemsize: Value) -> tuple[Value, Value]:
    """The bytes from the first that x may touch to beyond the last."""
    zero = k.constant(i64, 0)
    steps = [(x.rows - 1) * x.row_stride, (x.cols - 1) * x.col_stride]
    low, high = (x.data + pick(steps[0], zero) + pick(steps[1], zero) for pick in (k.min, k.max))
    return low, high + itemsize


def _unsuitable_out(k: Kernel, out: Matrix, a: Matrix, b: Matrix, itemsize: Value) -> Value:
    """Its shape is wrong, its rows are not consecutive elements or overlap each other, or it overlaps a or b."""
    bad = (out.rows != a.rows) | (out.cols != b.cols) | (out.col_stride != itemsize)
    bad = bad | (out.row_stride < out.cols * itemsize)
    low, high = _range(k, out, itemsize)
    for x in (a, b):
        x_low, x_high = _range(k, x, itemsize)
        bad = bad | ((low < x_high) & (x_low < high))
    return bad


def _broken_elements(itemsize: Value, *matrices: Matrix) -> Value:
    """A stride is not a whole number of elements."""
    strides = [stride for x in matrices for stride in (x.row_stride, x.col_stride)]
    both = strides[0]
    for stride in strides[1:]:
        both = both | stride
    return (both & (itemsize - 1)) != 0


def _multiply(k: Kernel, context: Value, double: Value, volume: Value, a: Matrix, b: Matrix, c_data: Value,
              c_row_stride: Value) -> Value:
    """Call the small kernel, without the GIL if it takes long; 0 if it declines."""
    size = double + 2
    small = context + (double * 16 + abi.SMALL)
    operands = [k.field(small, 8, ptr(i8)), a.rows, b.cols, a.cols,
                *(x for y in (a, b) for x in (y.data, y.row_stride >> size, y.col_stride >> size)),
                c_data, c_row_stride >> size]
    gemm, done = k.field(small, 0, ptr(i8)), k.variable(i64, 0)
    long = volume >= k.field(context, abi.RELEASE_ABOVE, i64)
    with k.when(long):
        state = k.call_external("PyEval_SaveThread", ptr(i8))
        done.set(k.call(gemm, *operands, result=i64))
        k.call_external("PyEval_RestoreThread", None, state)
    with k.otherwise():
        done.set(k.call(gemm, *operands, result=i64))
    return done.get()


# ---- reading NumPy's structure

def _array(k: Kernel, o: Value, header: int, vector: Value, column: Value | int, itemsize: Value) -> Matrix:
    """The fields of an ndarray known to have two dimensions, or one if it is a `vector`: a column, or a row."""
    dims, strides = (k.field(o, header + offset, ptr(i64)) for offset in (abi.DIMS, abi.STRIDES))
    one, last = k.constant(i64, 1), k.select(vector, k.constant(i64, 0), 1)
    size, stride = dims[last], strides[last]
    is_row, is_column = vector & (column == 0), vector & (column != 0)
    return Matrix(k.field(o, header + abi.DATA, i64), k.select(is_row, one, dims[0]), k.select(is_column, one, size),
                  k.select(is_row, size * itemsize, strides[0]), k.select(is_column, itemsize, stride))


def _kind(k: Kernel, o: Value, header: int) -> Value:
    return k.field(k.field(o, header + abi.DESCR, ptr(i8)), header + abi.KIND, i64) & (KIND_MASK - (1 << 64))


def emit_entry(target: CpuTarget, header: int) -> list[Function]:
    """`header` is the size of PyObject, whose last member is the type."""
    k = Kernel("matmul_entry", module=ptr(i8), args=ptr(i64), nargs=i64, kwnames=ptr(i8), result=ptr(i8), noalias=False)
    _, args, nargs, kwnames = k.args
    context, refuse_when, given, most = _begin(k, header)
    ndarray = k.field(context, abi.NDARRAY, i64)
    a_object, b_object = (k.load(args + i, ptr(i8)) for i in range(2))

    def foreign(o: Value) -> Value: return k.field(o, header - 8, i64) != ndarray
    refuse_when(foreign(a_object) | foreign(b_object))
    kind = _kind(k, a_object, header)
    double = k.cast(kind == NATIVE_F64, i64)
    bad = ((kind != NATIVE_F32) & (kind != NATIVE_F64)) | (_kind(k, b_object, header) != kind)
    for o in (a_object, b_object):
        axes = k.field(o, header + abi.ND, i32)
        bad = bad | (axes < 1) | (axes > 2) | ((k.field(o, header + abi.FLAGS, i32) & repeat.ALIGNED) == 0)
    refuse_when(bad)
    itemsize, no, yes = k.constant(i64, 4) << double, k.constant(i64, 0), k.constant(i64, 1)
    row, column = (k.field(o, header + abi.ND, i32) == 1 for o in (a_object, b_object))
    a, b = _array(k, a_object, header, row, no, itemsize), _array(k, b_object, header, column, yes, itemsize)
    axes = 2 - k.select(row, yes, 0) - k.select(column, yes, 0)
    bad, volume = _shapes(k, context, a, b, most[double])
    refuse_when(bad | _broken_elements(itemsize, a, b))

    result, c_data, c_row_stride = k.variable(ptr(i8), 0), k.variable(i64), k.variable(i64)
    with k.when(given.get() != 0):
        out = given.get()
        refuse_when(foreign(out) | (axes == 0))
        wanted = repeat.ALIGNED | repeat.WRITEABLE
        flags = k.field(out, header + abi.FLAGS, i32) & (wanted | repeat.WARN_ON_WRITE - (1 << 32))
        refuse_when((_kind(k, out, header) != kind) | (k.cast(k.field(out, header + abi.ND, i32), i64) != axes)
                    | (flags != wanted))
        c = _array(k, out, header, axes == 1, k.select(column, yes, 0), itemsize)
        refuse_when(_unsuitable_out(k, c, a, b, itemsize) | _broken_elements(itemsize, c))
        result.set(out)
        c_data.set(c.data)
        c_row_stride.set(c.row_stride)
        k.call_external("Py_IncRef", None, out)
    only = k.local("only", (1,), i64)
    scalar = axes == 0                              # `out` is 0 then
    with k.when(scalar):
        c_data.set(k.address(only))
        c_row_stride.set(itemsize)
    with k.when((axes > 0) & (given.get() == 0)):
        dims = k.local("dims", (2,), i64)
        dims[0], dims[1] = k.select(row, b.cols, a.rows), b.cols
        new = repeat.new_array(k, context, axes, dims, k.cast(double, i32) + 11)
        with k.when(new == 0):
            k.ret(new)                              # MemoryError is set
        result.set(new)
        c_data.set(k.field(new, header + abi.DATA, i64))
        c_row_stride.set(b.cols * itemsize)

    done = _multiply(k, context, double, volume, a, b, c_data.get(), c_row_stride.get())
    with k.when(done == 0):
        with k.when(scalar == 0):
            k.call_external("Py_DecRef", None, result.get())
        k.ret(k.call(_general(header), context, args, nargs, kwnames))
    with k.when(scalar):
        result.set(repeat.new_scalar(k, context, only, k.field(a_object, header + abi.DESCR, i64)))
    k.ret(result.get())
    return [k.function, _decline()]
