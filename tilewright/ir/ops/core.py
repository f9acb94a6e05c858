"""What an operation is, and those that every target has; the others of this folder have those of GPUs and of one maker.

An instruction is written in one place: its `Operation`, which is its LLVM spelling beside its NumPy meaning and what a
target must have for it, and under that the function `f(k, ...)` by which a kernel records it, with the checks of its
operands. `ir.Kernel` lists these functions as its methods.

`llvm(low, type, *operands)` returns the LLVM value; `low.b` is the instruction builder, `low.call` calls an intrinsic.
`numpy(type, *operands)` returns an array: a scalar is [] when all threads agree on it, else [threads]; a vector has its
elements first, [length, 1] or [length, threads].
`role` says how it acts:
  "thread"    each thread for itself (the default);
  "group"     `scope` threads together, such as a matrix instruction: operands arrive as [..., groups, lanes], so that
              the meaning can move data between lanes;
  "effect"    it touches memory or the CTA: the meaning is called as numpy(gang, node, *operands) and returns what the
              result is, if there is one; None: nothing to see, it is only counted;
  "blocking"  an effect that may make the gang wait, and has no result.
An operation without a NumPy meaning (a system call, say) can be lowered but not simulated. A meaning that needs more
than its operands asks `gang.machine` for the mechanism: `copies` in flight, `atomics`, `mbarriers`, `clusters`.
"""
from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tilewright.expressions.operations import bits_set
from tilewright.ir.exact import silent_multiply_add, some
from tilewright.ir.types import Type


@dataclass(frozen=True)
class Operation:
    name: str
    llvm: Callable
    numpy: Callable | None
    kind: str = "integer"       # what the simulator counts it as
    role: str = "thread"
    scope: int = 1              # threads that execute it together: 1, a wave (32 or 64), a warpgroup (128)
    partial: bool = False       # its meaning raises ArithmeticError for operands that LLVM leaves undefined
    needs: str = ""             # what a target must list among its instructions or features; "a or b": one of them;
                                # "cpu", "gpu": any of these
    writes: bool = False        # memory, through its first operand
    flops: int = 0              # of each thread, where neither name nor type tells: a lane's share of a matrix product
    plain: Callable | None = None       # the meaning, where that does not depend on the type: one call fewer


def by_family(general: Callable | None = None, **spellings: Callable) -> Callable:
    """A spelling for each family of chips, by the architecture in LLVM's triple, and `general` for all others; without
    that the operation needs something that they lack, so that the gate refuses it there."""
    def spelling(low: Any, t: Any, *operands: Any) -> Any:
        chosen = spellings.get(low.dialect.family, general)
        if chosen is None:
            raise NotImplementedError(f"{low.dialect.triple} has no spelling of this operation, only {[*spellings]}")
        return chosen(low, t, *operands)
    return spelling


def by_machine(mechanism: str, method: str, *more: Any) -> Callable:
    """The meaning of an effect for which the simulator has a mechanism: `gang.machine.<mechanism>.<method>`."""
    def meaning(gang: Any, node: Any, *operands: Any) -> Any:
        return getattr(getattr(gang.machine, mechanism), method)(gang, node, *operands, *more)
    return meaning


def calls(intrinsic: str, *numbers: int) -> Callable:
    """The spelling of an effect that is one intrinsic of LLVM: its operands, then these i32 numbers."""
    return lambda low, t, *operands: low.call(intrinsic, None, *operands, *map(low.i32, numbers))


# Meanings use Python's operators where they can: on NumPy scalars these are twenty times faster than ufuncs.

def _arithmetic(name: str, meaning: Callable) -> Operation:
    """fadd or add, by the type of the result."""
    return Operation(name, lambda low, t, x, y: getattr(low.b, "f" * t.is_float + name)(x, y, name=name),
                     lambda t, x, y: meaning(x, y), plain=meaning)


def _bitwise(name: str, meaning: Callable) -> Operation:
    return Operation(name, lambda low, t, x, y: getattr(low.b, meaning.__name__)(x, y, name=name),
                     lambda t, x, y: meaning(x, y), plain=meaning)


def _unsigned(name: str, instruction: str, divide: Callable) -> Operation:
    """Index arithmetic: operands are never negative, so that powers of two become shifts and masks."""
    def meaning(t, x, y):
        for operand in (x, y):
            if some(operand < 0):
                raise ArithmeticError(f"{name} of a negative index, {operand.min()}")
        if some(y == 0):
            raise ArithmeticError(f"{name} by zero")
        return divide(x, y)
    return Operation(name, lambda low, t, x, y: getattr(low.b, instruction)(x, y, name=name), meaning, partial=True)


def _shift(name: str, instruction: str, meaning: Callable) -> Operation:
    def checked(t, x, y):
        if some((y < 0) | (y >= t.bits)):
            raise ArithmeticError(f"a number of {t.bits} bits is shifted by {y.max()}")
        return meaning(x, y)
    return Operation(name, lambda low, t, x, y: getattr(low.b, instruction)(x, y, name=name), checked, partial=True)


def _compare(name: str, symbol: str, meaning: Callable) -> Operation:
    """Floats compare ordered (false with a NaN) except !=, which is true with one, as in IEEE 754 and NumPy."""
    def spelling(low, t, x, y):
        if low.is_float(x):
            compare = low.b.fcmp_unordered if symbol == "!=" else low.b.fcmp_ordered
        else:
            compare = low.b.icmp_signed
        return compare(symbol, x, y, name=name)
    return Operation(name, spelling, lambda t, x, y: meaning(x, y), plain=meaning)


# bf16 is the upper half of an f32. Both ways are spelled in whole numbers: only some targets have instructions, and for
# others LLVM calls a function.

def _from_bf16_llvm(low, t, x):
    half, word = (low.type(Type("i", bits, t.length)) for bits in (16, 32))
    bits = low.b.shl(low.b.zext(low.b.bitcast(x, half), word), low.number(16, t.length))
    return low.b.bitcast(bits, low.type(t), name="cast")


def _to_bf16_llvm(low, t, x):
    """Rounded to nearest, ties to even. A NaN is quiet, with its sign."""
    b, half, word = low.b, *(low.type(Type("i", bits, t.length)) for bits in (16, 32))

    def number(bits): return low.number(bits, t.length)
    bits = b.bitcast(x, word)
    odd = b.and_(b.lshr(bits, number(16)), number(1))
    rounded = b.add(bits, b.add(odd, number(0x7fff)))
    quiet = b.or_(b.and_(bits, number(1 << 31)), number(0x7fc0 << 16))
    upper = b.lshr(b.select(b.fcmp_unordered("uno", x, x), quiet, rounded), number(16))
    return b.bitcast(b.trunc(upper, half), low.type(t), name="cast")


def _least(name: str, symbol: str, intrinsic: str, meaning: Callable) -> Operation:
    """The smaller (larger) of two floats: y if it is less (more) than x. x is no NaN, so that where y is one x stays;
    which of 0 and -0 it is differs between targets."""
    def general(low: Any, t: Any, x: Any, y: Any) -> Any:
        return low.b.select(low.b.fcmp_ordered(symbol, y, x), y, x, name=name)

    def gpu(low: Any, t: Any, x: Any, y: Any) -> Any:
        return low.call(f"llvm.{intrinsic}.{t}", t, x, y, name=name)

    def checked(t: Any, x: Any, y: Any) -> Any:
        if some(x != x):
            raise ArithmeticError(f"{name} of a NaN and another number")
        return np.asarray(np.where(meaning(y, x), y, x))[()]
    return Operation(name, by_family(general, nvptx64=gpu, amdgcn=gpu), checked, partial=True)


def _cast_llvm(low, t, x):
    wider = t.bits > low.bits(x)
    truth = low.bits(x) == 1                # true is 1, not -1
    if low.is_float(x) == t.is_float:
        how = ("fpext" if wider else "fptrunc") if t.is_float else ("zext" if truth else "sext") if wider else "trunc"
    else:
        how = ("uitofp" if truth else "sitofp") if t.is_float else "fptosi"
    return getattr(low.b, how)(x, low.type(t), name="cast")


def _cast_numpy(t, x):
    """Whole numbers keep their lowest bits; a float outside the range of the integer is undefined."""
    if t.bits == 1:
        return (x & 1).astype(bool)
    if not t.is_float and x.dtype.kind == "f":
        limit = 2.0 ** (t.bits - 1)
        if not ((x >= -limit) & (x < limit)).all():         # not all: a NaN fits nowhere
            raise ArithmeticError(f"a float that {t} cannot hold")
    return x.astype(t.numpy)


def _lanes_llvm(low, t, n):
    """Compare in 32 bits: the iota constant is then half as long, and no vector has so many lanes."""
    iota = low.constant([*range(t.length)], 32)
    return low.b.icmp_signed(">", low.splat(low.b.trunc(n, low.integer(32)), t.length), iota, name="mask")


ADD, SUB, MUL = _arithmetic("add", operator.add), _arithmetic("sub", operator.sub), _arithmetic("mul", operator.mul)
DIV, REM = _unsigned("div", "udiv", operator.floordiv), _unsigned("rem", "urem", operator.mod)
DIVIDE = Operation("divide", lambda low, t, x, y: low.b.fdiv(x, y, name="divide"), lambda t, x, y: x / y)


def _reciprocal_nvptx(low, t, x, one):
    """Within an ulp, then a step of Newton's method: what NVIDIA's assembler makes of a correctly rounded one, without
    its branch for numbers whose reciprocal is subnormal."""
    if t.bits != 32:
        return low.b.fdiv(one, x, name="reciprocal")
    lanes = [x] if t.length == 1 else [low.b.extract_element(x, low.i32(e)) for e in range(t.length)]
    approximations = [low.call("llvm.nvvm.rcp.approx.ftz.f", t.scalar, lane, name="near") for lane in lanes]
    near, fma = low.pack(approximations, t) if t.length > 1 else approximations[0], f"llvm.fma.{t}"
    return low.call(fma, t, near, low.call(fma, t, low.b.fneg(x), near, one), near, name="reciprocal")


# 1 / x, correctly rounded, of x from 2^-126 to 2^126; the second operand is 1
RECIPROCAL = Operation("reciprocal", by_family(
    lambda low, t, x, one: low.b.fdiv(one, x, name="reciprocal"), nvptx64=_reciprocal_nvptx),
    lambda t, x, one: one / x)
NEGATE = Operation("neg", lambda low, t, x: low.b.fneg(x, name="neg"), lambda t, x: -x)
ABS = Operation("abs", lambda low, t, x: low.call(f"llvm.fabs.{t}", t, x, name="abs"), lambda t, x: np.abs(x))
POPCOUNT = Operation("popcount", lambda low, t, x: low.call(f"llvm.ctpop.{t}", t, x, name="popcount"),
                     lambda t, x: bits_set(x))
SQRT = Operation("sqrt", lambda low, t, x: low.call(f"llvm.sqrt.{t}", t, x, name="sqrt"), lambda t, x: np.sqrt(x))
LT, LE = _compare("lt", "<", operator.lt), _compare("le", "<=", operator.le)
EQ, NE = _compare("eq", "==", operator.eq), _compare("ne", "!=", operator.ne)
FMIN, FMAX = _least("fmin", "<", "minnum", operator.lt), _least("fmax", ">", "maxnum", operator.gt)
AND, OR, XOR = _bitwise("and", operator.and_), _bitwise("or", operator.or_), _bitwise("xor", operator.xor)
SHL, SHR = _shift("shl", "shl", operator.lshift), _shift("shr", "ashr", operator.rshift)     # right keeps the sign
OFFSET = Operation("offset", lambda low, t, p, i: low.b.gep(p, [i], name="at", source_etype=low.type(t.element)),
                   lambda t, p, i: p + i * t.element.bytes)
ADDRESS = Operation("address", lambda low, t, p: low.b.ptrtoint(p, low.type(t), name="address"), lambda t, p: p)
POINTER = Operation("pointer", lambda low, t, x: low.b.inttoptr(x, low.type(t), name="pointer"), lambda t, x: x)
CAST = Operation("cast", _cast_llvm, _cast_numpy, partial=True)
FROM_BF16, TO_BF16 = (Operation("cast", f, _cast_numpy) for f in (_from_bf16_llvm, _to_bf16_llvm))    # f32
CASTS = CAST, FROM_BF16, TO_BF16
BITCAST = Operation("bitcast", lambda low, t, x: low.b.bitcast(x, low.type(t), name="bits"),
                    lambda t, x: np.asarray(x).view(t.numpy)[()], "move")
REINTERPRET = Operation("reinterpret", lambda low, t, x: low.b.bitcast(x, low.type(t), name="bits"),
                        lambda t, x: reinterpreted(t, x), "move")
SELECT = Operation("select", lambda low, t, c, x, y: low.b.select(c, x, y, name="select"),
                   lambda t, c, x, y: np.asarray(np.where(c, x, y))[()])
FMA = Operation("fma", lambda low, t, *abc: low.call(f"llvm.fma.{t}", t, *abc, name="fma"), silent_multiply_add, "fma")
# a*b - c, c - a*b and -(a*b) - c, rounded once: chips change signs in the instruction, by its name or its operands
FMS = Operation("fms", lambda low, t, a, b, c: FMA.llvm(low, t, a, b, low.b.fneg(c)),
                lambda t, a, b, c: silent_multiply_add(t, a, b, -c), "fma")
FNMA = Operation("fnma", lambda low, t, a, b, c: FMA.llvm(low, t, low.b.fneg(a), b, c),
                 lambda t, a, b, c: silent_multiply_add(t, -a, b, c), "fma")
FNMS = Operation("fnms", lambda low, t, a, b, c: FMS.llvm(low, t, low.b.fneg(a), b, c),
                 lambda t, a, b, c: silent_multiply_add(t, -a, b, -c), "fma")
BROADCAST = Operation("broadcast", lambda low, t, x: low.splat(x, t.length),
                      lambda t, x: np.full((t.length, *(x.shape or (1,))), x), "move")
PACK = Operation("pack", lambda low, t, *xs: low.pack(xs, t),
                 lambda t, *xs: np.stack(np.broadcast_arrays(*(np.atleast_1d(x) for x in xs))), "move")
LANES_BELOW = Operation("lanes", _lanes_llvm, lambda t, n: np.arange(t.length)[:, None] < n)
SUM = Operation("sum", lambda low, t, x: low.horizontal_sum(x, t), lambda t, x: _tree_sum(x), "float")
# x itself, but LLVM cannot see that: it keeps an address in a register instead of recomputing it in a loop
OPAQUE = Operation("opaque", lambda low, t, x: low.hidden(x), lambda t, x: x)
# any number in place of x, so that no register has to keep x
FORGOTTEN = Operation("forgotten", lambda low, t, x: low.undefined(t), lambda t, x: np.full_like(
    x, np.nan if t.is_float else -90)[()])


def _element(x: Any, e: int) -> Any:
    """A scalar again: [] where all threads agree."""
    return x[e] if x.shape[-1] > 1 else x[e, 0]


def reinterpreted(t: Any, x: Any) -> Any:
    """The elements of each thread side by side in memory, looked at as others."""
    x = np.asarray(x)
    scalar = x.ndim < 2
    y = np.ascontiguousarray(np.atleast_1d(x)[:, None] if scalar else x.T).view(t.numpy).T
    if t.length > 1:
        return y
    return y[0] if y.shape[1] > 1 or x.ndim == 1 else y[0, 0]


def _tree_sum(x: Any) -> Any:
    """Halves are added until one element is left: the order of the lowered code."""
    while len(x) > 1:
        half = len(x) // 2
        x = x[:half] + x[half:]
    return _element(x, 0)


@cache
def extract(element: int) -> Operation:
    """x[element] of a vector x."""
    return Operation(f"extract{element}", lambda low, t, x: low.b.extract_element(x, low.i32(element), name="extract"),
                     lambda t, x: _element(x, element), "move")


@cache
def shuffle(indices: tuple[int, ...]) -> Operation:
    """Elements of x (0 ... length - 1) and y (length ...) in this order."""
    def meaning(t, x, y):
        x, y = np.broadcast_arrays(x, y)
        return np.concatenate([x, y])[list(indices)]

    def general(low: Any, t: Any, x: Any, y: Any) -> Any:
        return low.b.shuffle_vector(x, y, low.constant(indices, 32), "shuffle")

    def amd(low: Any, t: Any, x: Any, y: Any) -> Any:
        """A shuffle of four bytes: LLVM 22 takes them apart, and the hardware has one instruction (v_perm_b32)."""
        if not (x.type.count == len(indices) == 4 and x.type.element == low.integer(8)):
            return general(low, t, x, y)
        word = low.integer(32)
        picks = sum(index << 8*e for e, index in enumerate(indices))
        bits = low.call("llvm.amdgcn.perm", word, low.b.bitcast(y, word), low.b.bitcast(x, word), low.i32(picks))
        return low.b.bitcast(bits, x.type, "shuffle")
    return Operation("shuffle", by_family(general, amdgcn=amd), meaning, "move")


@cache
def prefetch(write: bool, locality: int) -> Operation:
    """Ask for the cache line of an address; locality 3: into all levels, 2: from L2 outwards, 1: L3. Never faults."""
    def general(low: Any, t: Any, p: Any) -> None:
        low.call("llvm.prefetch.p0", None, p, low.i32(int(write)), low.i32(locality), low.i32(1))

    def nvidia(low: Any, t: Any, p: Any) -> None:
        """A GPU has two levels, and no difference between lines to be read and to be written."""
        low.asm(f"prefetch.global.L{1 if locality == 3 else 2} [$0];", low.nothing(), "l", p, effects=True)
    return Operation("prefetch", by_family(general, nvptx64=nvidia), None, "prefetch", "effect")


def show(label: str, most: int, conditional: bool) -> Operation:
    """k.print, of the condition, if there is one, and the values: text in the simulator, nothing in compiled code."""
    return Operation("print", lambda low, t, *xs: None, lambda gang, node, *xs: gang.machine.prints.show(
        gang, node, label, most, conditional, xs), kind="", role="effect")


@cache
def mark(name: str) -> Operation:
    """k.mark: nothing, for who observes a simulated run."""
    return Operation(f"mark {name}", lambda low, t, x: None, lambda gang, node, x: None, kind="", role="effect")
