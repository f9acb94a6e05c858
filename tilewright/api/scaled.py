"""Products of operands with scales on CPUs: Quantized and Scaled arrays, and scale_a and scale_b beside plain ones.

Scales of blocks along k are decoded into the operand before it is multiplied. An element times its scale is exactly one
of f32, unless it is 2^128 or more, which is inf; the scale that nvfp4 has for a whole array becomes part of alpha.
Where both operands are block-scaled, or the other one is bf16, a large product takes them as bf16 instead, which is
exact too, takes half the memory and is multiplied at twice f32's rate and more. But that flushes what is below 2^-126;
where a number, a product of two block-scaled ones or a sum of these could be so small, f32 is taken: one contract.

Scales of rows of a, of columns of b, or of all of an operand multiply the sums:

    result = alpha * ((sums of elements' products) * scale_a * scale_b) + beta * c

Sums of integers are exact, in 32 bits, 64 where k times the largest product needs them, or f64 beyond; those of floats
are what matmul adds up without scales. They are brought to f32 (to f64 if floats are added up in f64, or sums of
integers or the result are f64), and each step from there is an operation of that format, in the order written. The last
rounding is to the result's format: out_dtype, or f32 (f64 if floats are added up in f64 or c is f64).

With a plan for a GPU, its kernels take two block-scaled matrices as they are stored.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tilewright import formats
from tilewright.api import dispatch, host
from tilewright.formats.decoding import BF16, decoded, exact_in_bf16, flushed
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import Decodable, Scaled
from tilewright.plans import lowering
from tilewright.rules import arguments, scaling, shapes
from tilewright.rules.arguments import F32, Array
from tilewright.rules.call import Call, decide
from tilewright.runtime.cpu import program
from tilewright.runtime.gpu.arrays import HIP, Platform


class _Operand(NamedTuple):
    x: Any  # a Quantized if it has scales for blocks, which are along k
    factor: float | None = None  # of all numbers, for alpha
    scales: Array | None = None  # of the sums, as if the operand were not transposed


def present(call: Call) -> bool:
    """Does either operand have scales?"""
    a, b = call.a, call.b
    if not (call.scale_a is call.scale_b is None) or isinstance(a, Decodable) or isinstance(b, Decodable):
        return True
    return type(b) is not np.ndarray and (getattr(b, "_scales", None) is not None or getattr(b, "_factor", 1.0) != 1.0)


def product(call: Call) -> Any:
    """The product of operands with scales in the host's memory."""
    platform = None if call.plan is None else dispatch.platform_of(call.plan)
    if platform is HIP or (platform and isinstance(call.a, Quantized) and isinstance(call.b, Quantized)):
        return _on_gpu(call, platform)
    call, scales = without_scales(call)
    if not scales:
        return host.product(call)
    out = arguments.output(call.out, call.out_name)
    a = arguments.transposed(arguments.operand(call.a, "a"), call.trans_a, "a")
    _, b = host.operand_b(call)
    p = decide(call, a, b, arguments.addend(call.c), out, scaling.SCALED)
    elements = call._replace(out=None, out_dtype=scaling.sums_of(a, b), alpha=1, beta=0, c=None, updates=False)
    sums = np.asarray(host.product(elements))
    values = program.empty(sums.shape, p.sums)
    zero = not arguments.factor(call.alpha, "alpha", p.sums)
    program.do(partial(_scale, 0 if zero else p.alpha), values, sums, *() if zero else scales)
    values = shapes.as_matrices(values, p.vectors)
    if p.beta:
        c = p.c if isinstance(call.c, np.ndarray) else program.constant(p.c)
        added = program.empty(np.broadcast_shapes(values.shape, c.shape), p.sums)
        program.do(partial(_add, p.beta), added, values, c)
        values = added
    return host.delivered(call, p, values if p.out is None else np.broadcast_to(values, p.shape))


def _scale(alpha: float, values: Array, sums: Array, *scales: Array) -> None:
    """alpha * sums * scales; 0 whatever they are if alpha is 0."""
    with np.errstate(all="ignore"):
        np.copyto(values, sums if alpha else 0, casting="unsafe")
        for scale in scales:
            np.multiply(values, scale.astype(values.dtype, copy=False), out=values)
        if alpha not in (0, 1):
            values *= values.dtype.type(alpha)


def _add(beta: float, to: Array, values: Array, c: Array) -> None:
    with np.errstate(all="ignore"):
        np.add(values, c.astype(to.dtype) * to.dtype.type(beta), out=to)


def _on_gpu(call: Call, platform: Platform) -> Any:
    """The product of two Quantized matrices on a GPU by the call's plan."""
    arguments.refuse(f"on {platform.name}s", algorithm=call.algorithm, scale_a=call.scale_a, scale_b=call.scale_b)
    for name, x in (("a", call.a), ("b", call.b)):
        if not isinstance(x, Quantized):
            raise TypeError(f"{name} must be Quantized, as the other operand is, not {type(x).__name__}: a plan for "
                            f"{platform.name}s multiplies two block-scaled matrices")
        if x.ndim != 2:
            raise ValueError(f"{name} must have two axes with a plan for {platform.name}s, but its shape is {x.shape}")
        scaling.along_k(x, "n", name)
    if (call.trans_a, call.trans_b) != ("n", "n"):
        raise ValueError(f"trans_a and trans_b must be False with Quantized operands and a plan for {platform.name}s, "
                         "whose kernels read both along k")
    a, b = (np.broadcast_to(F32.type(0), x.shape) for x in (call.a, call.b))
    out = arguments.output(call.out, call.out_name)
    p = decide(call, a, b, arguments.addend(call.c), out, scaling.SCALED)
    from tilewright.plans.gpu_formats import RESULTS

    engine = platform.engine
    stored = formats.get(p.result).name in RESULTS["f32"]
    result = np.empty(p.shape, p.result if stored else F32)
    if p.beta:
        with np.errstate(all="ignore"):
            np.copyto(result, p.c, casting="unsafe")
    alpha = p.alpha if p.a.shape[-1] else 0
    for index in np.ndindex(p.shape[:-2]):
        engine.multiply_scaled(call.a, call.b, result[index], alpha, p.beta, call.plan)
    return host.delivered(call, p, result)


def without_scales(call: Call) -> tuple[Call, tuple[Array, ...]]:
    """The product of arrays without scales, and what its sums are multiplied by: scales of blocks are in the
    numbers, those of whole operands in alpha, and those of rows and columns are returned."""
    side_a = operand(call.a, call.scale_a, call.trans_a, "a")
    side_b = operand(call.b, call.scale_b, call.trans_b, "b")
    alpha = call.alpha
    for factor in (side_a.factor, side_b.factor):
        if factor is not None and factor != 1:
            alpha = scaling.times(arguments.number(alpha, "alpha"), factor)
    a, b, plan = side_a.x, side_b.x, call.plan
    narrow = False
    if isinstance(a, Quantized):
        if isinstance(b, Quantized):  # bf16 may serve unless arithmetic of a certain kind is asked for
            narrow = (call.algorithm is None and not call.batch_invariant and dispatch.platform_of(plan) is None
                      and _large(a, b))
            if narrow and flushed(a, b):
                narrow, plan = False, None  # which is one for products of bf16
        else:  # panels that are multiplied with bf16
            narrow = getattr(b, "a", None) == BF16 and exact_in_bf16(a)
    elif isinstance(b, Quantized):              # by bf16
        narrow = (getattr(a, "dtype", None) == BF16 and plan is call.algorithm is None and not call.batch_invariant
                  and lowering.decoded(a.size // max(b.length, 1), math.prod(b.others[-1:]), b.length) == "bf16"
                  and exact_in_bf16(b))
    if isinstance(a, Quantized) or isinstance(b, Quantized):    # how they are decoded depends on their numbers
        program.not_repeated()
    scales = []
    for side, other, missing in ((side_a, b, -1), (side_b, a, -2)):
        if side.scales is not None:
            dropped = other.ndim == 1 and side.scales.ndim > 1  # the axis that a vector takes from the result
            scales.append(side.scales.squeeze(missing) if dropped else side.scales)
    a, b = (decoded(x, BF16 if narrow else F32) if isinstance(x, Quantized) else x for x in (a, b))
    return call._replace(a=a, b=b, alpha=alpha, plan=plan, scale_a=None, scale_b=None), tuple(scales)


def operand(x: Any, scale: Any, trans: Any, name: str) -> _Operand:
    """An operand without the scales that products do not meet in its numbers."""
    if isinstance(x, Decodable) or getattr(x, "_scales", None) is not None:
        scaling.no_scale_beside(x, scale, name)
    if isinstance(x, Quantized):
        return _Operand(scaling.along_k(x, trans, name), x.tensor_scale)
    if isinstance(x, Scaled):
        return _Operand(x.elements, None, scaling.by_sums(x.scales, x, trans, name, "axis"))
    if type(x) is not np.ndarray and hasattr(x, "_scales"):  # packed
        number_format = x._scales if scale is None else scaling.by_sums(np.asarray(scale), x, trans, name)
        return _Operand(x, x._factor, number_format)
    if scale is None:
        return _Operand(arguments.operand(x, name))
    x, scales = arguments.operand(x, name), np.asarray(scale)
    number_format = formats.find(x.dtype)
    if scales.ndim == 0:
        if isinstance(scale, np.ndarray):       # whose number becomes one of alpha
            program.not_repeated()
        if isinstance(number_format, formats.Float):
            return _Operand(x, arguments.real(scale, f"scale_{name}"))
        return _Operand(x, None, program.constant(np.asarray(arguments.real(scale, f"scale_{name}"))))
    if scales.dtype in scaling.SCALE_DTYPES:
        return _Operand(x, None, scaling.by_sums(scales, x, trans, name))
    axis = scaling.k_axis(x.ndim, trans, name)
    try:
        return _Operand(Quantized.of(x, scales, axis))
    except (TypeError, ValueError) as error:
        raise type(error)(f"scale_{name} must be a number, f32 for each {scaling.SIDES[name]} of {name}, or scales of "
                          f"blocks along k, axis {axis} of {name}: {error}") from None


def _large(a: Quantized, b: Quantized) -> bool:
    """Is the product one whose operands the engine takes as bf16?"""
    rows, columns = (math.prod(q.others[-1:]) for q in (a, b))
    return lowering.decoded(rows, columns, a.length) == "bf16"
