"""What stands in front of a function of NumPy while tilewright is installed: emitted code that hands a call on, to
NumPy's function or to ours, in about 10 ns.

    gate(callable, args, nargsf, kwnames, context)

A function of NumPy keeps the pointer by which CPython calls it in the object itself. `thunk` makes code that adds the
context to such a call's arguments, so that the gate is one piece of code without addresses, kept in the cache.

Ours are calls of two exact ndarrays of one native dtype, aligned, with sizes of which the rules (rules.py) say that we
win. Plans are made for sizes that come for the first time, which takes about a millisecond: beyond `at_once` elements
sizes are taken when the multiplications that came with them add up to `after`. If ours raises an Exception, NumPy's
function is called, which says in its own words what is wrong.
"""
from __future__ import annotations

import ctypes
import mmap
import platform
import struct
from typing import Any

from tilewright.ir import Function, Kernel, Value, i8, i32, i64, ptr
from tilewright.kernels.cpu.abi import DESCR, DIMS, FLAGS, KIND, ND, STRIDES, TYPE_NUM
from tilewright.kernels.cpu.entry import LONGEST
from tilewright.kernels.cpu.repeat import ALIGNED
from tilewright.targets.cpu import CpuTarget

# The context, 8 bytes each. DIRECT is a function of emitted code for products, PYTHON an object for all others; ROWS
# has the rules, SEEN the sizes that came; TAKEN counts calls. ERRORS is np.errstate's variable (0: unknown), NO_ERRORS
# its default, NAME what its capsules are called. From USERS on there are numbers of dtypes that are not NumPy's.
(ORIGINAL, ORIGINAL_SELF, DIRECT, DIRECT_SELF, PYTHON, VECTORCALL, NDARRAY, EXCEPTION, OUT, ROWS, SEEN, TAKEN,
 ERRORS, NO_ERRORS, NAME, USERS) = range(0, 16*8, 8)
BUILTIN, MOST_USERS = 24, 8             # dtypes: NumPy's own numbers, and others
CONTEXT = USERS + 8*MOST_USERS
# Of a rule: multiplications, multiplications, elements, multiplications; and the stride that rows must have, or 0.
ROW = ("least", "most", "at_once", "after", "row_stride")
KINDS = ("matrices", "vectors", "stacks")      # a rule for each: no vector, no batch; with a vector; with a batch
LEAST_COUNTED = 500                             # multiplications: what calling NumPy takes
SLOTS = 512                                     # of SEEN, two words each
FACTOR, SHIFT = 0x2545F4914F6CDD1D, 40
MOST_VOLUME = 1 << 42
INTEGERS = 10                                   # dtypes up to this number have no errors of floats
RAISES = 0o6666                                 # of an errstate: more than a warning for one of the four errors
NOT_FLAG = (1 << 63) - 1                        # PY_VECTORCALL_ARGUMENTS_OFFSET is the last bit of nargsf


class _Gate:
    def __init__(self, name: str, header: int, first: int) -> None:
        self.k = Kernel(name, callable=ptr(i8), args=ptr(i64), nargsf=i64, kwnames=ptr(i8), context=ptr(i8),
                        result=ptr(i8), noalias=False)
        _, self.args, self.nargsf, self.kwnames, self.context = self.k.args
        self.header, self.first, self.count = header, first, self.nargsf & NOT_FLAG

    def word(self, offset: int, type: Any = i64) -> Value:
        return self.k.field(self.context, offset, type)

    def original(self) -> None:
        """Return what NumPy's function says."""
        function, own = self.word(ORIGINAL, ptr(i8)), self.word(ORIGINAL_SELF, ptr(i8))
        self.k.ret(self.k.call(function, own, self.args, self.nargsf, self.kwnames, result=ptr(i8)))

    def original_when(self, refused: Value) -> None:
        with self.k.when(refused):
            self.original()

    def operands(self) -> tuple[Value, Value, Value]:
        """Two arrays that could be taken, and the row of their dtype."""
        k, header = self.k, self.header
        a, b = (k.load(self.args + (self.first + i), ptr(i8)) for i in range(2))
        for x in (a, b):
            self.original_when(k.field(x, header - 8, i64) != self.word(NDARRAY))
        types = [k.field(k.field(x, header + DESCR, ptr(i8)), header + KIND, i64) for x in (a, b)]
        mask = (0xffff_ffff << 8 * (TYPE_NUM - KIND) | 0xff << 16) - (1 << 64)      # the number and the order of bytes
        flags = k.field(a, header + FLAGS, i32) & k.field(b, header + FLAGS, i32)
        self.original_when(((types[0] & mask) != (types[1] & mask)) | ((flags & ALIGNED) == 0)
                           | (((types[0] >> 16) & 0xff) == ord(">"))
                           | (k.min(*(k.field(x, header + ND, i32) for x in (a, b))) < 1))
        return a, b, self.row(k.cast(k.field(k.field(a, header + DESCR, ptr(i8)), header + TYPE_NUM, i32), i64))

    def row(self, number: Value) -> Value:
        k = self.k
        row = k.variable(i64, number)
        with k.when((number >= BUILTIN) | (number < 0)):
            row.set(-1)
            for i in range(MOST_USERS):
                with k.when(number == self.word(USERS + 8*i)):
                    row.set(BUILTIN + i)
            self.original_when(row.get() < 0)
        return row.get()

    def heed_errors(self, row: Value) -> None:
        """Where errors of floats are to be raised or told to a function, the call is NumPy's."""
        k = self.k
        variable = self.word(ERRORS, ptr(i8))
        with k.when((row > INTEGERS) & (k.address(variable) != 0)):
            value, mask = k.local("value", (1,), i64), k.variable(i32, 0)
            value[0] = 0
            k.call_external("PyContextVar_Get", i32, variable, k.constant(ptr(i8), 0), value)
            with k.when((value[0] != 0) & (value[0] != self.word(NO_ERRORS))):
                capsule = k.pointer(value[0], i8)
                said = k.call_external("PyCapsule_GetPointer", ptr(i8), capsule, self.word(NAME, ptr(i8)))
                mask.set(k.load(said.as_(i32)))
            with k.when(value[0] != 0):
                k.call_external("Py_DecRef", None, k.pointer(value[0], i8))
            self.original_when((mask.get() & RAISES) != 0)

    def rule(self, row: Value, kind: Value | int) -> list[Value]:
        rules = self.word(ROWS, ptr(i64)) + (row * len(KINDS) + kind) * len(ROW)
        return [rules[i] for i in range(len(ROW))]

    def hand_over(self, function: Value, own: Value, count: Value) -> None:
        k = self.k
        result = k.call(function, own, self.args, count, self.kwnames, result=ptr(i8))
        with k.when(k.address(result) == 0):
            with k.when(k.call_external("PyErr_ExceptionMatches", i32, self.word(EXCEPTION, ptr(i8))) != 0):
                k.call_external("PyErr_Clear", None)
                self.original()
        taken = (self.context + TAKEN).as_(i64)
        k.store(taken, k.load(taken) + 1)
        k.ret(result)


def _dim(g: _Gate, x: Value, back: int) -> Value:
    """The size of the axis that is `back` from the last; 1 if there is none."""
    k, dims, axes = g.k, g.k.field(x, g.header + DIMS, ptr(i64)), _axes(g, x)
    return k.select(axes > back, dims[k.max(axes - (back + 1), 0)], 1)


def _axes(g: _Gate, x: Value) -> Value:
    return g.k.cast(g.k.field(x, g.header + ND, i32), i64)


def emit_product(target: CpuTarget, header: int, most_axes: int, strict: bool) -> Function:
    """In front of matmul and dot: two operands of at most so many axes, and out, which must be C-contiguous and have
    the result's number of axes if this is `strict`."""
    g = _Gate("numpy_product", header, 0)
    k = g.k
    g.original_when((g.count < 2) | (g.count > 3))
    a, b, row = g.operands()
    _heed_out(g, a, _axes(g, a) + _axes(g, b) - 2 if strict else None)
    refused = k.max(_axes(g, a), _axes(g, b)) > most_axes
    m, steps = _dim(g, a, 1), _dim(g, a, 0)
    n, rows = k.select(_axes(g, b) > 1, _dim(g, b, 0), 1), k.select(_axes(g, b) > 1, _dim(g, b, 1), _dim(g, b, 0))
    batch = k.max(_dim(g, a, 2), _dim(g, b, 2))
    g.original_when(refused | (steps != rows) | ((m | n | steps | batch) >= LONGEST)
                    | (k.min(k.min(m, n), k.min(steps, batch)) < 1))
    with_vector = k.select((m == 1) | (n == 1), k.constant(i64, 1), 0)
    kind = k.select(k.max(_axes(g, a), _axes(g, b)) > 2, k.constant(i64, 2), with_vector)
    volume = k.min(m * n * steps, MOST_VOLUME) * batch
    least, most, at_once, after, row_stride = g.rule(row, kind)
    g.original_when((volume < least) | (volume > most))
    with k.when(row_stride != 0):
        for x in a, b:
            g.original_when(k.field(x, header + STRIDES, ptr(i64))[_axes(g, x) - 1] != row_stride)
    with k.when(k.max(k.max(m * steps, n * steps), m * n) > at_once):
        key = k.constant(i64, 1)
        for x in (m, n, steps, batch, row):
            key = (key ^ x) * FACTOR
        seen = g.word(SEEN, ptr(i64)) + ((key >> SHIFT) & (SLOTS - 1)) * 2
        with k.when(seen[0] != key):
            seen[0] = key
            seen[1] = 0
        seen[1] = k.min(seen[1] + k.max(volume, LEAST_COUNTED), 1 << 62)
        g.original_when(seen[1] < after)
    g.heed_errors(row)
    g.hand_over(g.word(DIRECT, ptr(i8)), g.word(DIRECT_SELF, ptr(i8)), g.count)
    return k.function


def _heed_out(g: _Gate, a: Value, axes: Value | None) -> None:
    """Other keywords than out are NumPy's, and so is an out that is no array of the operands' dtype object."""
    k = g.k
    out = k.variable(ptr(i8), 0)
    with k.when(g.count == 3):
        out.set(k.load(g.args + 2, ptr(i8)))
    with k.when(g.kwnames != 0):
        g.original_when((g.count == 3) | (k.call_external("PyTuple_Size", i64, g.kwnames) != 1))
        name = k.call_external("PyTuple_GetItem", ptr(i8), g.kwnames, k.constant(i64, 0))
        g.original_when(k.address(name) != g.word(OUT))
        out.set(k.load(g.args + g.count, ptr(i8)))
    with k.when(out.get() != 0):
        g.original_when(k.field(out.get(), g.header - 8, i64) != g.word(NDARRAY))
        g.original_when(k.field(out.get(), g.header + DESCR, i64) != k.field(a, g.header + DESCR, i64))
        if axes is not None:
            contiguous = k.field(out.get(), g.header + FLAGS, i32) & 1
            g.original_when((contiguous == 0) | (_axes(g, out.get()) != axes))


def emit_sizes(target: CpuTarget, header: int, first: int, most: int) -> Function:
    """In front of a function whose arrays are its arguments from `first` on, at most so many in all, and what Python
    says of the larger array's elements."""
    g = _Gate("numpy_sizes", header, first)
    k = g.k
    g.original_when((g.count < first + 2) | (g.count > most) | (g.kwnames != 0))
    *arrays, row = g.operands()
    largest = k.variable(i64, 0)
    for x in arrays:
        size = k.variable(i64, 1)
        with k.loop(_axes(g, x)) as i:
            size.set(size.get() * k.field(x, header + DIMS, ptr(i64))[i])
        largest.set(k.max(largest.get(), size.get()))
    least, biggest, *_ = g.rule(row, 0)
    g.original_when((largest.get() < least) | (largest.get() > biggest))
    g.heed_errors(row)
    g.hand_over(g.word(VECTORCALL, ptr(i8)), g.word(PYTHON, ptr(i8)), g.count)
    return k.function


# ---- the context of a call

X86 = bytes.fromhex("49b8") + b"%b" + bytes.fromhex("48b8") + b"%b" + bytes.fromhex("ffe0")  # r8, rax: jmp rax


def thunk(gate: int, context: int) -> tuple[int, Any] | None:
    """(the address of code that calls gate with its own four arguments and context, what keeps it); None on a processor
    for which it is not written."""
    if platform.machine() != "x86_64":
        return None
    code = X86 % (struct.pack("<Q", context), struct.pack("<Q", gate))
    memory = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:len(code)] = code
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    if protect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "memory for code cannot be made executable")
    return address, memory
