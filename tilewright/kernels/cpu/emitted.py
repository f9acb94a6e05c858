"""How Python calls a recorded CPU function on NumPy's arrays: a CPython builtin in front of it, and its division over
the worker pool.

    NAME_range(params ..., part, parts)     the function, of whose independent rounds (kernels/elementwise.py) it does
                                            a share: all of them as part 0 of 1
    NAME_part(job, part)                    the same, as the pool calls it; a job is `parts`, then the arguments
    NAME_rounds(params ...)                 about how many elements it handles
    NAME_entry(owner, args, nargs, kwnames)         METH_FASTCALL | METH_KEYWORDS; an int, the context's address

The builtin takes exact ndarrays of the native dtypes of the parameters, contiguous and where needed writeable, and
exact Python ints and floats. Every other call goes to the Python function in the context, with the same arguments.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.ir import Function, Kernel, Pointer, Value, f32, f64, i1, i8, i32, i64, ptr
from tilewright.ir.fma import fused
from tilewright.ir.ops import core as ops
from tilewright.ir.program import Call, Loop, Op, Return, Store, written
from tilewright.ir.rounds import Vectorised, begin
from tilewright.ir.vectors import Width, divided, vectorised
from tilewright.ir.widened import Scalar, Widened
from tilewright.kernels.cpu.abi import DATA, DESCR, FLAGS
from tilewright.kernels.cpu.pool import LIMIT
from tilewright.kernels.cpu.repeat import ALIGNED, WARN_ON_WRITE, WRITEABLE

# The context: 8 bytes each; from DTYPES on, for each parameter, the dtype objects that its arrays may have
PYTHON, VECTORCALL, NDARRAY, INT, FLOAT, NONE, POOL, RUN_PARTS, PART = range(0, 9*8, 8)
DTYPES, KINDS = 9*8, 3

CONTIGUOUS = 1
LARGEST_F32 = float.fromhex("0x1.fffffep127")
ALONE = 1 << 16                 # elements up to which one thread does them
GRAIN = 1 << 14                 # elements of a part, at least
SHARES = 4                      # parts for each thread, so that a slow one delays the others little
HELD = 1 << 18                  # elements up to which the GIL is held
ROUND = 64                      # parts begin at multiples of so many elements
UNKNOWN = 256                   # elements of a row that says nothing of its length


def shared_loop(function: Function, width: Width) -> Loop | None:
    """The loop that threads can divide, if the function does nothing else that would be done twice."""
    loops = [node for node in function.walk() if isinstance(node, Loop) and node.rounds and node.rounds.threads]
    if len(loops) != 1 or loops[0] not in function.body or vectorised(function, width).scalar:
        return None
    loop, = loops
    inside = set(map(id, function.walk(loop.body)))
    for node in function.walk():
        if id(node) not in inside and (isinstance(node, (Store, Call, Return)) or (
                isinstance(node, Op) and node.operation.role != "thread")):
            return None
    try:
        Vectorised(loop.index.k, function, width, loop, [])
    except Scalar:
        return None
    return loop


def emit_range(function: Function, width: Width) -> Function:
    """The function with a share of its rounds, and two more parameters."""
    part, parts = Kernel("share", part=i64, parts=i64).args
    loop = shared_loop(function, width)

    def bounds(w: Widened, stop: Value) -> tuple[Value, Value]:
        """Equal shares of whole ROUNDs, of rows of one."""
        def constant(x: int) -> Value: return w.constant(i64, x)
        unit = ROUND if loop and loop.rounds and loop.rounds.vectors else 1
        stop = w.op(ops.SELECT, i64, w.op(ops.LT, i1, stop, constant(0)), constant(0), stop)
        units = w.op(ops.MUL, i64, parts, constant(unit))
        most = w.op(ops.ADD, i64, stop, w.op(ops.SUB, i64, units, constant(1)))
        share = w.op(ops.MUL, i64, w.op(ops.DIV, i64, most, units), constant(unit))
        ends = [w.op(ops.MUL, i64, share, x) for x in (part, w.op(ops.ADD, i64, part, constant(1)))]
        first, last = (w.op(ops.SELECT, i64, w.op(ops.LT, i1, x, stop), x, stop) for x in ends)
        return first, last
    body = divided(function, width, bounds if loop else None)
    return replace(body, name=f"{function.name}_range", params=[*function.params, ("part", part), ("parts", parts)],
                   independent=False)


def emit_rounds(function: Function, width: Width) -> Function:
    """About how many elements the shared loop handles; 0 if there is none."""
    loop = shared_loop(function, width)
    k = Kernel(f"{function.name}_rounds", result=i64)
    if loop is None:
        k.ret(0)
        return replace(k.function, params=function.params)
    before = function.body[:function.body.index(loop)]
    nodes = list(before)
    w = begin(loop.index.k, nodes, loop)
    count = loop.stop
    if not loop.rounds.vectors:                                             # type: ignore[union-attr]
        made = {x.id for node in function.walk(loop.body) for x in node.defines} | {loop.index.id}
        rows = [node.stop for node in loop.body if isinstance(node, Loop) and node.rounds and node.stop.id not in made]
        count = w.op(ops.MUL, i64, count, rows[0] if rows else w.constant(i64, UNKNOWN))
    nodes.append(Return(count, loop.line))
    return replace(k.function, params=function.params, body=nodes, independent=False)


def emit_part(function: Function, range_: Function) -> Function:
    k = Kernel(f"{function.name}_part", job=ptr(i8), part=i64, noalias=False)
    job, part = k.args
    values = [k.field(job, 8*e + 8, value.type) for e, (_, value) in enumerate(function.params)]
    k.call(range_, *values, part, k.field(job, 0, i64))
    return k.function


def emit_entry(function: Function, range_: Function, rounds: Function, header: int) -> Function:
    """`header`: the size of PyObject, whose last member is the type."""
    k = Kernel(f"{function.name}_entry", owner=ptr(i8), args=ptr(i64), nargs=i64, kwnames=ptr(i8), result=ptr(i8),
               noalias=False)
    owner, args, nargs, kwnames = k.args
    context = k.call_external("PyLong_AsVoidPtr", ptr(i8), owner)

    def fallback_when(bad: Value) -> None:
        with k.when(bad):
            python, vectorcall = k.field(context, PYTHON, ptr(i8)), k.field(context, VECTORCALL, ptr(i8))
            k.ret(k.call(vectorcall, python, args, nargs, kwnames, result=ptr(i8)))

    fallback_when((nargs != len(function.params)) | (kwnames != 0))
    values = [_converted(k, context, k.load(args + e, ptr(i8)), e, value.type, name in written(function), header,
                         fallback_when) for e, (name, value) in enumerate(function.params)]
    count = k.call(rounds, *values)
    with k.when(count <= HELD):
        with k.when(count <= ALONE):
            k.call(range_, *values, 0, 1)
            _return_none(k, context)
    pool = k.field(context, POOL, ptr(i8))
    threads = k.field(pool, LIMIT, i64)
    fallback_when(threads == 0)
    job = k.local("job", (len(values) + 1,), i64)
    parts = k.max(k.min(threads * SHARES, count // GRAIN), 1)
    job[0] = parts
    for e, x in enumerate(values):
        number = k.address(x) if isinstance(x.type, Pointer) else x
        k.store((job + (e + 1)).as_(number.type), number)
    state = k.variable(ptr(i8), 0)
    with k.when(count > HELD):
        state.set(k.call_external("PyEval_SaveThread", ptr(i8)))
    k.call(k.field(context, RUN_PARTS, ptr(i8)), pool, k.field(context, PART, ptr(i8)), job.as_(i8), parts, threads,
           threads, result=i64)
    with k.when(count > HELD):
        k.call_external("PyEval_RestoreThread", None, state.get())
    _return_none(k, context)
    return k.function


def _return_none(k: Kernel, context: Value) -> None:
    none = k.field(context, NONE, ptr(i8))
    k.call_external("Py_IncRef", None, none)
    k.ret(none)


def _converted(k: Kernel, context: Value, o: Value, e: int, t: Any, writes: bool, header: int,
               fallback_when: Any) -> Value:
    """What an argument is to the function."""
    kind = k.field(o, header - 8, i64)
    if isinstance(t, Pointer):
        fallback_when(kind != k.field(context, NDARRAY, i64))
        dtype, flags = k.field(o, header + DESCR, i64), k.field(o, header + FLAGS, i32)
        wrong = dtype != k.field(context, DTYPES + 8*KINDS*e, i64)
        for other in range(1, KINDS):
            wrong = wrong & (dtype != k.field(context, DTYPES + 8*(KINDS*e + other), i64))
        needed = ALIGNED | (0 if t.strided else CONTIGUOUS) | (WRITEABLE if writes else 0)
        seen = needed | (WARN_ON_WRITE - (1 << 32) if writes else 0)
        fallback_when(wrong | ((flags & seen) != needed))
        return k.field(o, header + DATA, ptr(t.element))
    if t.is_float:
        fallback_when(kind != k.field(context, FLOAT, i64))
        x = k.field(o, header, f64)
        if t == f64:
            return x
        fallback_when((abs(x) <= LARGEST_F32) ^ -1)
        return k.cast(x, f32)
    fallback_when(kind != k.field(context, INT, i64))
    x = k.call_external("PyLong_AsLongLong", i64, o)
    with k.when(x == -1):                           # or there is an error; the Python function says which
        k.call_external("PyErr_Clear", None)
    narrow = x if t.bits == 64 else k.cast(x, t)
    fallback_when((x == -1) | (k.cast(narrow, i64) != x))
    return narrow


def emit_calls(function: Function, width: Width, header: int) -> list[Function]:
    """All of them, and the function itself."""
    function = fused(function)
    range_, rounds = emit_range(function, width), emit_rounds(function, width)
    wrapper = Kernel(function.name, **{name: value.type for name, value in function.params})
    wrapper.call(range_, *wrapper.args, 0, 1)
    entry = emit_entry(function, range_, rounds, header)
    return [wrapper.function, emit_part(function, range_), rounds, entry]
