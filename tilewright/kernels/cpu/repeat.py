"""Calls of the builtin that are like an earlier one: made without Python, whatever their formats and layouts are.

    repeat(context, args, nargs, kwnames) → the result, or 0: this call is not known, or cannot be made so now

api/builtin_repeats.py writes a record (abi.RECORD) of a call that came down to one run of a recipe. Another call is
like it if its key has the same words:

    of a, of b          the address of its dtype, the number of its axes, and the size and the stride of each
    of each keyword     but out: the addresses of its name and of its value; of an epilogue's function what called.py
                        says of it; of its operands their number, and of each the address of its name and the same as
                        of a, or 1 for a float
    of out              1 and the same as of a; 0 if there is none
    of operands, if any, which of them begin where out does, a bit for each
    threads             that a product may use now

The objects behind these addresses are kept as long as the record, so that no others can be there. A call that matches
fills in the addresses of its arrays, and goes, if the names that an epilogue looks up have the values that they had.
Panels are in one workspace, which one call at a time may use: another one leaves its product to Python, and so does one
whose `out` overlaps an operand, but for an epilogue's that it is.
"""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilewright.ir import Function, Kernel, Value, i8, i32, i64, ptr
from tilewright.kernels.cpu.abi import (
    DATA,
    DESCR,
    DICT,
    DIMS,
    EPILOGUE,
    FACTOR,
    FLAGS,
    FLOAT,
    FUNCTION,
    IS_FLOAT,
    KEY,
    MOST_FIELDS,
    MOST_KEYWORDS,
    MOST_OPERANDS,
    NAMED,
    ND,
    NDARRAY,
    NEW,
    NONE,
    OPERANDS,
    OUT,
    POOL,
    RECORD,
    ROW,
    RUN_PARTS,
    RUN_TEAM,
    RUNNING,
    SCALAR,
    SHIFT,
    SLOTS,
    SPACE_TAKEN,
    STRIDES,
    TABLE,
)
from tilewright.kernels.cpu.called import add_function
from tilewright.kernels.cpu.jobs import OPERAND, offsets
from tilewright.kernels.cpu.pool import THREADS

ALIGNED, WRITEABLE, WARN_ON_WRITE = 0x100, 0x400, 1 << 31
LARGEST_NUMBER = 16         # bytes, of a complex128


def emit_repeat(header: int) -> Function:
    """`header` is the size of PyObject, whose last member is the type."""
    k = Kernel("matmul_repeat", context=ptr(i8), args=ptr(i64), nargs=i64, kwnames=ptr(i8), result=ptr(i8),
               noalias=False)
    context, args, nargs, kwnames = k.args
    ndarray, table = k.field(context, NDARRAY, i64), k.field(context, TABLE, ptr(i64))

    def leave_when(condition: Value) -> None:
        with k.when(condition):
            k.ret(k.constant(ptr(i8), 0))

    leave_when((table == 0) | (nargs < 2) | (nargs > 3))
    key, words, hash = k.local("key", (KEY,), i64), k.variable(i64, 0), k.variable(i64, 0)

    def add(word: Any) -> None:
        k.store(key + words.get(), word)
        hash.set((hash.get() ^ word) * FACTOR)
        words.set(words.get() + 1)

    def add_array(o: Value, least: int = 0) -> SimpleNamespace:
        """Its address, and the first and the last element's."""
        leave_when(k.field(o, header - 8, i64) != ndarray)
        axes = k.cast(k.field(o, header + ND, i32), i64)
        leave_when((axes < least) | (axes > 3) | ((k.field(o, header + FLAGS, i32) & ALIGNED) == 0))
        add(k.field(o, header + DESCR, i64))
        add(axes)
        data = k.field(o, header + DATA, i64)
        sizes, strides = (k.field(o, header + offset, ptr(i64)) for offset in (DIMS, STRIDES))
        low, high, zero = k.variable(i64, data), k.variable(i64, data), k.constant(i64, 0)
        with k.loop(axes) as axis:
            size, stride = sizes[axis], strides[axis]
            add(size)
            add(stride)
            low.set(low.get() + k.min((size - 1) * stride, zero))
            high.set(high.get() + k.max((size - 1) * stride, zero))
        return SimpleNamespace(data=data, low=low.get(), high=high.get())

    a, b = (add_array(k.load(args + i, ptr(i8)), least=1) for i in range(2))
    at, lows, highs, numbers = (k.local(x, (MOST_OPERANDS,), i64) for x in ("at", "lows", "highs", "numbers"))

    def add_operands(operands: Value) -> None:
        """Add the arrays and floats of a dict. Floats are read as doubles in place."""
        count = k.call_external("PyDict_Size", i64, operands)
        leave_when(count > MOST_OPERANDS)
        add(count)
        beside.set(count)
        place, name, value = k.local("place", (1,), i64), k.local("name", (1,), i64), k.local("value", (1,), i64)
        place[0] = 0
        with k.loop(count) as i:
            k.call_external("PyDict_Next", i32, operands, place, name, value)
            add(name[0])
            o = k.load(value, ptr(i8))
            with k.when(k.field(o, header - 8, i64) == k.field(context, FLOAT, i64)):
                add(k.constant(i64, IS_FLOAT))
                k.store(numbers + i, k.field(o, header, i64))
                for array in at, lows, highs:
                    k.store(array + i, k.address(numbers + i))
            with k.otherwise():
                x = add_array(o)
                for array, place in (at, x.data), (lows, x.low), (highs, x.high):
                    k.store(array + i, place)
    out, beside, same = k.variable(ptr(i8), 0), k.variable(i64, 0), k.variable(i64, 0)

    def take_out(given: Value) -> None:
        with k.when(k.address(given) != k.field(context, NONE, i64)):
            out.set(given)
    with k.when(nargs == 3):
        take_out(k.load(args + 2, ptr(i8)))
    with k.when(kwnames != 0):
        named = k.call_external("PyTuple_Size", i64, kwnames)
        leave_when(named > MOST_KEYWORDS)
        with k.loop(named) as i:
            name = k.address(k.call_external("PyTuple_GetItem", ptr(i8), kwnames, i))
            with k.when(name == k.field(context, OUT, i64)):
                leave_when(out.get() != 0)
                take_out(k.load(args + (nargs + i), ptr(i8)))
            with k.otherwise():
                add(name)
                value = k.load(args + (nargs + i), ptr(i8))
                kind = k.field(value, header - 8, i64)
                is_function = (name == k.field(context, EPILOGUE, i64)) & (kind == k.field(context, FUNCTION, i64))
                is_dict = (name == k.field(context, OPERANDS, i64)) & (kind == k.field(context, DICT, i64))
                with k.when(is_function):
                    add_function(k, value, add, leave_when, k.field(context, FLOAT, i64), header)
                with k.when(is_dict):
                    add_operands(value)
                with k.when((is_function | is_dict) == 0):
                    add(k.address(value))
    c_data, c_low, c_high = (k.variable(i64, 0) for _ in range(3))
    with k.when(out.get() != 0):
        add(k.constant(i64, 1))
        given = add_array(out.get())
        flags = k.field(out.get(), header + FLAGS, i32) & (WRITEABLE | WARN_ON_WRITE - (1 << 32))
        leave_when(flags != WRITEABLE)
        for variable, value in (c_data, given.data), (c_low, given.low), (c_high, given.high):
            variable.set(value)
    with k.otherwise():
        add(k.constant(i64, 0))
    with k.when(beside.get() > 0):
        with k.loop(beside.get()) as i:
            same.set(same.get() | k.select(at[i] == c_data.get(), k.constant(i64, 1) << i, 0))
        add(same.get())
    pool = k.field(context, POOL, ptr(i8))
    threads = k.field(pool, THREADS, i64)
    leave_when(threads == 0)                            # it depends on the caller
    add(threads)

    record = k.load(table + ((hash.get() >> SHIFT) & (SLOTS - 1)), ptr(i64))
    leave_when(record == 0)
    r = SimpleNamespace(**{name: k.field(record.as_(i8), at, ptr(i8) if name in ("function", "barriers") else i64)
                           for name, at in offsets(RECORD).items()})
    leave_when((r.words != words.get()) | ((r.symmetric != 0) & (a.data == b.data)))
    other = k.variable(i64, 0)
    with k.loop(words.get()) as i:
        other.set(other.get() | (record[i + len(RECORD)] ^ key[i]))
    leave_when(other.get() != 0)
    rows = record + (len(RECORD) + KEY) + r.fields
    names = rows + r.rows*len(ROW)
    with k.loop(r.named) as i:
        space, name = (k.load(names + (i*len(NAMED) + word), ptr(i8)) for word in range(2))
        leave_when(k.call_external("PyDict_GetItem", i64, space, name) != k.load(names + (i*len(NAMED) + 2)))

    result = k.variable(ptr(i8), 0)
    with k.when(out.get() != 0):
        for x, size in (a, r.size_a), (b, r.size_b):
            leave_when((c_low.get() < x.high + size) & (x.low < c_high.get() + r.size_c))
        with k.loop(r.rows) as i:
            which, size = (k.load(rows + (i*len(ROW) + word)) for word in range(2))
            leave_when((c_low.get() < highs[which] + size) & (lows[which] < c_high.get() + r.size_c)
                       & ((same.get() >> which & 1) == 0))
        result.set(out.get())
        k.call_external("Py_IncRef", None, out.get())
    only = k.local("only", (LARGEST_NUMBER // 8,), i64)
    scalar = (out.get() == 0) & (r.axes == 0)
    with k.when(scalar):
        c_data.set(k.address(only))
    with k.when((out.get() == 0) & (r.axes > 0)):
        sizes = k.local("sizes", (3,), i64)
        for axis in range(3):
            sizes[axis] = getattr(r, f"dim_{axis}")
        nothing, zero = k.constant(ptr(i8), 0), k.constant(i32, 0)
        new = k.call(k.field(context, NEW, ptr(i8)), ndarray, k.cast(r.axes, i32), sizes, k.cast(r.type, i32), nothing,
                     nothing, zero, zero, nothing, result=ptr(i8))
        with k.when(new == 0):
            k.call_external("PyErr_Clear", None)        # Python tries again, and says so
            k.ret(nothing)
        result.set(new)
        c_data.set(k.field(new, header + DATA, i64))

    job, template = k.local("job", (MOST_FIELDS + 1,), i64), record + (len(RECORD) + KEY)
    with k.loop(r.fields) as i:
        k.store(job + i, template[i])
    table = k.local("table", (MOST_OPERANDS*len(OPERAND),), i64)
    with k.loop(r.rows) as i:
        which, _, *strides = (k.load(rows + (i*len(ROW) + word)) for word in range(len(ROW)))
        for word, number in enumerate((at[which], *strides)):
            k.store(table + (i*len(OPERAND) + word), number)
    for place, address in ((r.at_table, k.address(table)), (r.at_a, a.data), (r.at_b, b.data), (r.at_c, c_data.get()),
                           (r.fields, 0)):
        k.store(job + place, address)
    taken, done = (context + SPACE_TAKEN).as_(i64), k.variable(i64, 1)
    with k.when(r.spaced != 0):
        done.set(k.select(k.atomic_replace(taken, 0, 1), k.constant(i64, 1), 0))
    with k.when(done.get() != 0):
        _run(k, context, pool, r, job, done)
        with k.when(r.spaced != 0):
            k.atomic_store(taken, 0)
    with k.when((done.get() == 0) | (job[r.special] != 0)):
        with k.when(result.get() != 0):
            k.call_external("Py_DecRef", None, result.get())
        k.ret(k.constant(ptr(i8), 0))
    with k.when(scalar):
        result.set(new_scalar(k, context, only, r.descr))
    k.ret(result.get())
    return k.function


def new_scalar(k: Kernel, context: Value, number: Value, descr: Value) -> Value:
    """Record: NumPy's scalar of the dtype at this address; 0 with an error set."""
    made: Value = k.call(k.field(context, SCALAR, ptr(i8)), number.as_(i8), descr, k.constant(ptr(i8), 0),
                         result=ptr(i8))
    return made


def _run(k: Kernel, context: Value, pool: Value, r: SimpleNamespace, job: Value, done: Any) -> None:
    """Record: the product of a record, without the GIL if it is long. RUNNING counts those, with the GIL held."""
    state, running = k.variable(ptr(i8), 0), (context + RUNNING).as_(i64)
    with k.when(r.long != 0):
        k.store(running, k.load(running) + 1)
        state.set(k.call_external("PyEval_SaveThread", ptr(i8)))
    with k.loop(r.zeroed) as i:
        k.store(r.barriers.as_(i64) + i, 0)
    with k.when(r.parts == 1):
        k.call(r.function, job.as_(i8), k.constant(i64, 0))
    with k.otherwise():
        with k.when(r.team != 0):
            run_team = k.field(context, RUN_TEAM, ptr(i8))
            done.set(k.call(run_team, pool, r.function, job.as_(i8), r.parts, result=i64))
        with k.otherwise():
            run_parts = k.field(context, RUN_PARTS, ptr(i8))
            k.call(run_parts, pool, r.function, job.as_(i8), r.parts, r.threads, r.wake, result=i64)
    with k.when(r.long != 0):
        k.call_external("PyEval_RestoreThread", None, state.get())
        k.store(running, k.load(running) - 1)
