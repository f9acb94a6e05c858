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
Arrays are all NumPy's, or all torch's tensors on the CPU, of which a key has DLPack's word for the dtype. A function of
the record asks torch whether the tensors and the state of this thread are as they were.

Panels are in one workspace, which one call at a time may use: another one leaves its product to Python, and so does one
whose `out` overlaps an operand, but for an epilogue's that it is.
"""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilewright.ir import Function, Kernel, Value, i8, i32, i64, ptr
from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.called import add_function
from tilewright.kernels.cpu.jobs import OPERAND, offsets
from tilewright.kernels.cpu.pool import THREADS

ALIGNED, WRITEABLE, WARN_ON_WRITE = 0x100, 0x400, 1 << 31
LARGEST_NUMBER = 16         # bytes, of a complex128


def emit_repeat(header: int) -> Function:
    """`header` is the size of PyObject, whose last member is the type."""
    k = Kernel("matmul_repeat", context=ptr(i8), args=ptr(i64), nargs=i64, kwnames=ptr(i8), result=ptr(i8),
               noalias=False)
    return _Repeat(k, header).emit()


class _Repeat:
    """Records the function: the key of a call, the record that it matches, and its run."""

    def __init__(self, k: Kernel, header: int) -> None:
        self.k, self.header = k, header
        self.context, self.args, self.nargs, self.kwnames = k.args
        self.ndarray, self.table = self.field(abi.NDARRAY), self.field(abi.TABLE, ptr(i64))

    def field(self, at: int, type: Any = i64) -> Value:
        """A field of the context."""
        return self.k.field(self.context, at, type)

    def leave_when(self, condition: Value) -> None:
        with self.k.when(condition):
            self.k.ret(self.k.constant(ptr(i8), 0))

    def emit(self) -> Function:
        k = self.k
        self.leave_when((self.table == 0) | (self.nargs < 2) | (self.nargs > 3))
        self.tensors, self.arrays = k.variable(i64, 0), k.variable(i64, 0)
        self.met = k.local("met", (3 + abi.MOST_OPERANDS,), i64)          # tensors
        self.said = k.local("said", (abi.DL_SIZE // 8,), i64).as_(i8)
        self.key, self.words, self.hash = k.local("key", (abi.KEY,), i64), k.variable(i64, 0), k.variable(i64, 0)
        self.a, self.b = (self.add_array(k.load(self.args + i, ptr(i8)), least=1) for i in range(2))
        self.at, self.lows, self.highs, self.numbers = (
            k.local(x, (abi.MOST_OPERANDS,), i64) for x in ("at", "lows", "highs", "numbers"))
        self.out, self.beside, self.same = k.variable(ptr(i8), 0), k.variable(i64, 0), k.variable(i64, 0)
        with k.when(self.nargs == 3):
            self.take_out(k.load(self.args + 2, ptr(i8)))
        with k.when(self.kwnames != 0):
            self.add_keywords()
        self.add_out()
        self.pool = self.field(abi.POOL, ptr(i8))
        threads = k.field(self.pool, THREADS, i64)
        self.leave_when(threads == 0)                       # it depends on the caller
        self.add(threads)
        self.look_up()
        self.take_result()
        return self.run()

    # ---- the key

    def add(self, word: Any) -> None:
        self.k.store(self.key + self.words.get(), word)
        self.hash.set((self.hash.get() ^ word) * abi.FACTOR)
        self.words.set(self.words.get() + 1)

    def add_array(self, o: Value, least: int = 0) -> SimpleNamespace:
        """Its address, and the first and the last element's."""
        k = self.k
        names = "data", "type", "axes", "sizes", "strides", "unit"
        x = SimpleNamespace(**{name: k.variable(i64, 1) for name in names})
        with k.when(k.field(o, self.header - 8, i64) == self.ndarray):
            self.read_array(o, x)
        with k.otherwise():
            self.read_tensor(o, x)
        axes = x.axes.get()
        self.leave_when((axes < least) | (axes > 3))
        self.add(x.type.get())
        self.add(axes)
        data = x.data.get()
        sizes, strides = k.pointer(x.sizes.get(), i64), k.pointer(x.strides.get(), i64)
        low, high, zero = k.variable(i64, data), k.variable(i64, data), k.constant(i64, 0)
        with k.loop(axes) as axis:
            size, stride = sizes[axis], strides[axis] * x.unit.get()
            self.add(size)
            self.add(stride)
            low.set(low.get() + k.min((size - 1) * stride, zero))
            high.set(high.get() + k.max((size - 1) * stride, zero))
        return SimpleNamespace(data=data, low=low.get(), high=high.get())

    def read_array(self, o: Value, x: SimpleNamespace) -> None:
        k, header = self.k, self.header
        self.leave_when((k.field(o, header + abi.FLAGS, i32) & ALIGNED) == 0)
        self.arrays.set(self.arrays.get() + 1)
        x.axes.set(k.cast(k.field(o, header + abi.ND, i32), i64))
        for variable, offset in ((x.data, abi.DATA), (x.type, abi.DESCR), (x.sizes, abi.DIMS),
                                 (x.strides, abi.STRIDES)):
            variable.set(k.field(o, header + offset, i64))

    def read_tensor(self, o: Value, x: SimpleNamespace) -> None:
        """Its strides are in elements."""
        k = self.k
        self.leave_when(k.field(o, self.header - 8, i64) != self.field(abi.TENSOR))
        said = self.said
        self.leave_when(read_tensor(k, self.context, o, said) != abi.ON_CPU)
        k.store(self.met + self.tensors.get(), k.address(o))
        self.tensors.set(self.tensors.get() + 1)
        kind = k.cast(k.field(said, abi.DL_TYPE, i32), i64)
        unit = ((kind >> 8 & 255) * (kind >> 16) + 7) >> 3
        data = k.field(said, abi.DL_DATA, i64) + k.field(said, abi.DL_OFFSET, i64)
        self.leave_when((data & (unit - 1)) != 0)           # its elements are not aligned
        for variable, value in (
                (x.data, data), (x.type, kind), (x.axes, k.cast(k.field(said, abi.DL_AXES, i32), i64)), (x.unit, unit),
                (x.sizes, k.field(said, abi.DL_SIZES, i64)), (x.strides, k.field(said, abi.DL_STRIDES, i64))):
            variable.set(value)

    def take_out(self, given: Value) -> None:
        with self.k.when(self.k.address(given) != self.field(abi.NONE)):
            self.out.set(given)

    def add_keywords(self) -> None:
        k = self.k
        named = k.call_external("PyTuple_Size", i64, self.kwnames)
        self.leave_when(named > abi.MOST_KEYWORDS)
        with k.loop(named) as i:
            name = k.address(k.call_external("PyTuple_GetItem", ptr(i8), self.kwnames, i))
            with k.when(name == self.field(abi.OUT)):
                self.leave_when(self.out.get() != 0)
                self.take_out(k.load(self.args + (self.nargs + i), ptr(i8)))
            with k.otherwise():
                self.add(name)
                value = k.load(self.args + (self.nargs + i), ptr(i8))
                kind = k.field(value, self.header - 8, i64)
                is_function = (name == self.field(abi.EPILOGUE)) & (kind == self.field(abi.FUNCTION))
                is_dict = (name == self.field(abi.OPERANDS)) & (kind == self.field(abi.DICT))
                with k.when(is_function):
                    add_function(k, value, self.add, self.leave_when, self.field(abi.FLOAT), self.header)
                with k.when(is_dict):
                    self.add_operands(value)
                with k.when((is_function | is_dict) == 0):
                    self.add(k.address(value))

    def add_operands(self, operands: Value) -> None:
        """Add the arrays and floats of a dict. Floats are read as doubles in place."""
        k = self.k
        count = k.call_external("PyDict_Size", i64, operands)
        self.leave_when(count > abi.MOST_OPERANDS)
        self.add(count)
        self.beside.set(count)
        place, name, value = k.local("place", (1,), i64), k.local("name", (1,), i64), k.local("value", (1,), i64)
        place[0] = 0
        with k.loop(count) as i:
            k.call_external("PyDict_Next", i32, operands, place, name, value)
            self.add(name[0])
            o = k.load(value, ptr(i8))
            with k.when(k.field(o, self.header - 8, i64) == self.field(abi.FLOAT)):
                self.add(k.constant(i64, abi.IS_FLOAT))
                k.store(self.numbers + i, k.field(o, self.header, i64))
                for array in self.at, self.lows, self.highs:
                    k.store(array + i, k.address(self.numbers + i))
            with k.otherwise():
                x = self.add_array(o)
                for array, place in (self.at, x.data), (self.lows, x.low), (self.highs, x.high):
                    k.store(array + i, place)

    def add_out(self) -> None:
        k = self.k
        self.c_data, self.c_low, self.c_high = (k.variable(i64, 0) for _ in range(3))
        with k.when(self.out.get() != 0):
            self.add(k.constant(i64, 1))
            given = self.add_array(self.out.get())
            with k.when(self.tensors.get() == 0):
                flags = k.field(self.out.get(), self.header + abi.FLAGS, i32) & (WRITEABLE | WARN_ON_WRITE - (1 << 32))
                self.leave_when(flags != WRITEABLE)
            for variable, value in (self.c_data, given.data), (self.c_low, given.low), (self.c_high, given.high):
                variable.set(value)
        with k.otherwise():
            self.add(k.constant(i64, 0))
        with k.when(self.beside.get() > 0):
            with k.loop(self.beside.get()) as i:
                begins = k.select(self.at[i] == self.c_data.get(), k.constant(i64, 1) << i, 0)
                self.same.set(self.same.get() | begins)
            self.add(self.same.get())

    # ---- the record and the run

    def look_up(self) -> None:
        """`r`: the record with this key, whose names have the values that they had."""
        k = self.k
        self.record = k.load(self.table + ((self.hash.get() >> abi.SHIFT) & (abi.SLOTS - 1)), ptr(i64))
        self.leave_when(self.record == 0)
        pointers = dict.fromkeys(("function", "barriers", "check", "new", "made"), ptr(i8))
        self.r = r = SimpleNamespace(**{name: k.field(self.record.as_(i8), at, pointers.get(name, i64))
                                        for name, at in offsets(abi.RECORD).items()})
        self.leave_when((r.words != self.words.get()) | ((r.symmetric != 0) & (self.a.data == self.b.data)))
        other = k.variable(i64, 0)
        with k.loop(self.words.get()) as i:
            other.set(other.get() | (self.record[i + len(abi.RECORD)] ^ self.key[i]))
        self.leave_when(other.get() != 0)
        self.rows = self.record + (len(abi.RECORD) + abi.KEY) + r.fields
        names = self.rows + r.rows*len(abi.ROW)
        with k.loop(r.named) as i:
            space, name = (k.load(names + (i*len(abi.NAMED) + word), ptr(i8)) for word in range(2))
            value = k.call_external("PyDict_GetItem", i64, space, name)
            self.leave_when(value != k.load(names + (i*len(abi.NAMED) + 2)))
        with k.when(self.tensors.get() != 0):
            self.ask_torch()

    def ask_torch(self) -> None:
        """Leave if these tensors, or the state of this thread, are not like those of the record."""
        k, r = self.k, self.r
        self.leave_when((self.arrays.get() != 0) | (r.check == 0))
        modes = self.called(self.field(abi.MODES, ptr(i8)), k.call_external("PyTuple_New", ptr(i8), k.constant(i64, 0)))
        given = k.call_external("PyTuple_New", ptr(i8), self.tensors.get())
        with k.loop(self.tensors.get()) as i:
            x = k.load(self.met + i, ptr(i8))
            k.call_external("Py_IncRef", None, x)
            k.call_external("PyTuple_SetItem", i32, given, i, x)
        alike = self.called(r.check, given)
        self.leave_when((k.address(modes) != self.field(abi.ZERO)) | (k.address(alike) != self.field(abi.TRUE)))

    def called(self, function: Value, arguments: Value) -> Value:
        """The result of a Python function, which is an object that lives for ever: a small number, True or False. The
        reference to the tuple of its arguments is given up. Leave if it raises."""
        k = self.k
        result = k.call_external("PyObject_Call", ptr(i8), function, arguments, k.constant(ptr(i8), 0))
        k.call_external("Py_DecRef", None, arguments)
        with k.when(result == 0):
            k.call_external("PyErr_Clear", None)
            k.ret(k.constant(ptr(i8), 0))
        k.call_external("Py_DecRef", None, result)
        return result

    def take_result(self) -> None:
        """`out`, if it overlaps no operand, or a new array, or room for one number."""
        k, r = self.k, self.r
        self.result = k.variable(ptr(i8), 0)
        with k.when(self.out.get() != 0):
            for x, size in (self.a, r.size_a), (self.b, r.size_b):
                self.leave_when((self.c_low.get() < x.high + size) & (x.low < self.c_high.get() + r.size_c))
            with k.loop(r.rows) as i:
                which, size = (k.load(self.rows + (i*len(abi.ROW) + word)) for word in range(2))
                self.leave_when((self.c_low.get() < self.highs[which] + size)
                                & (self.lows[which] < self.c_high.get() + r.size_c)
                                & ((self.same.get() >> which & 1) == 0))
            self.result.set(self.out.get())
            k.call_external("Py_IncRef", None, self.out.get())
        self.only = k.local("only", (LARGEST_NUMBER // 8,), i64)
        self.scalar = (self.out.get() == 0) & (r.axes == 0) & (self.tensors.get() == 0)
        with k.when(self.scalar):
            self.c_data.set(k.address(self.only))
        with k.when((self.out.get() == 0) & (self.scalar == 0)):
            sizes = k.local("sizes", (3,), i64)
            for axis in range(3):
                sizes[axis] = getattr(r, f"dim_{axis}")
            with k.when(self.tensors.get() == 0):
                self.result.set(new_array(k, self.context, r.axes, sizes, k.cast(r.type, i32)))
            with k.otherwise():
                self.result.set(k.call_external("PyObject_Call", ptr(i8), r.new, r.made, k.constant(ptr(i8), 0)))
            with k.when(self.result.get() == 0):
                k.call_external("PyErr_Clear", None)        # Python tries again, and says so
                k.ret(k.constant(ptr(i8), 0))
            with k.when(self.tensors.get() == 0):
                self.c_data.set(k.field(self.result.get(), self.header + abi.DATA, i64))
            with k.otherwise():
                read_tensor(k, self.context, self.result.get(), self.said)
                self.c_data.set(k.field(self.said, abi.DL_DATA, i64) + k.field(self.said, abi.DL_OFFSET, i64))

    def job(self) -> Value:
        """The record's job with the addresses of this call."""
        k, r = self.k, self.r
        job, template = k.local("job", (abi.MOST_FIELDS + 1,), i64), self.record + (len(abi.RECORD) + abi.KEY)
        with k.loop(r.fields) as i:
            k.store(job + i, template[i])
        table = k.local("table", (abi.MOST_OPERANDS*len(OPERAND),), i64)
        with k.loop(r.rows) as i:
            which, _, *strides = (k.load(self.rows + (i*len(abi.ROW) + word)) for word in range(len(abi.ROW)))
            for word, number in enumerate((self.at[which], *strides)):
                k.store(table + (i*len(OPERAND) + word), number)
        for place, address in ((r.at_table, k.address(table)), (r.at_a, self.a.data), (r.at_b, self.b.data),
                               (r.at_c, self.c_data.get()), (r.fields, 0)):
            k.store(job + place, address)
        return job

    def run(self) -> Function:
        k, r, job, result = self.k, self.r, self.job(), self.result
        taken, done = (self.context + abi.SPACE_TAKEN).as_(i64), k.variable(i64, 1)
        with k.when(r.spaced != 0):
            done.set(k.select(k.atomic_replace(taken, 0, 1), k.constant(i64, 1), 0))
        with k.when(done.get() != 0):
            _run(k, self.context, self.pool, r, job, done)
            with k.when(r.spaced != 0):
                k.atomic_store(taken, 0)
        with k.when((done.get() == 0) | (job[r.special] != 0)):
            with k.when(result.get() != 0):
                k.call_external("Py_DecRef", None, result.get())
            k.ret(k.constant(ptr(i8), 0))
        with k.when(self.scalar):
            result.set(new_scalar(k, self.context, self.only, r.descr))
        k.ret(result.get())
        return k.function


def read_tensor(k: Kernel, context: Value, o: Value, said: Value) -> Value:
    """Record: torch describes one of its tensors in `said`, a DLTensor. The kind of its device; -1 if it cannot."""
    device = k.variable(i32, -1)
    failed = k.call(k.field(context, abi.READ, ptr(i8)), o, said, result=i32)
    with k.when(failed != 0):
        k.call_external("PyErr_Clear", None)
    with k.otherwise():
        device.set(k.field(said, abi.DL_DEVICE, i32))
    return device.get()


def new_array(k: Kernel, context: Value, axes: Value, sizes: Value, type: Value) -> Value:
    """Record: a new array of NumPy's type with this number; 0 with an error set."""
    nothing, zero = k.constant(ptr(i8), 0), k.constant(i32, 0)
    new, ndarray = k.field(context, abi.NEW, ptr(i8)), k.field(context, abi.NDARRAY, i64)
    return k.call(new, ndarray, k.cast(axes, i32), sizes, type, nothing, nothing, zero, zero, nothing,
                  result=ptr(i8))


def new_scalar(k: Kernel, context: Value, number: Value, descr: Value) -> Value:
    """Record: NumPy's scalar of the dtype at this address; 0 with an error set."""
    return k.call(k.field(context, abi.SCALAR, ptr(i8)), number.as_(i8), descr, k.constant(ptr(i8), 0),
                  result=ptr(i8))


def _run(k: Kernel, context: Value, pool: Value, r: SimpleNamespace, job: Value, done: Any) -> None:
    """Record: the product of a record, without the GIL if it is long. RUNNING counts those, with the GIL held."""
    state, running = k.variable(ptr(i8), 0), (context + abi.RUNNING).as_(i64)
    with k.when(r.long != 0):
        k.store(running, k.load(running) + 1)
        state.set(k.call_external("PyEval_SaveThread", ptr(i8)))
    with k.loop(r.zeroed) as i:
        k.store(r.barriers.as_(i64) + i, 0)
    with k.when(r.parts == 1):
        k.call(r.function, job.as_(i8), k.constant(i64, 0))
    with k.otherwise():
        with k.when(r.team != 0):
            run_team = k.field(context, abi.RUN_TEAM, ptr(i8))
            done.set(k.call(run_team, pool, r.function, job.as_(i8), r.parts, result=i64))
        with k.otherwise():
            run_parts = k.field(context, abi.RUN_PARTS, ptr(i8))
            k.call(run_parts, pool, r.function, job.as_(i8), r.parts, r.threads, r.wake, result=i64)
    with k.when(r.long != 0):
        k.call_external("PyEval_RestoreThread", None, state.get())
        k.store(running, k.load(running) - 1)
