"""matmul and einsum for JAX: primitives with derivatives of any order, batching, and a lowering to XLA's FFI (ffi.py).

A product of two operands is bilinear, so that its derivatives are products, too. One with an epilogue is a primitive of
its own; when it is differentiated, it becomes the product and the epilogue's operations by XLA, which keep the sums.
"""
from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import opt_einsum
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from tilewright.expressions.program import Expression
from tilewright.expressions.tracing import trace
from tilewright.jax import ffi

LETTERS = string.ascii_letters
SUPPORTED = "cpu", "cuda"


def matmul(a: Any, b: Any, *, epilogue: Callable[..., Any] | None = None, operands: Mapping[str, Any] | None = None,
           out_dtype: Any = None, threads: int | None = None) -> Any:
    """a @ b as jax.numpy.matmul computes it, by tilewright: vectors, broadcast batches, any formats.

    epilogue    a function of the result's elements and of `operands`, fused into the kernel, as of tilewright.matmul:
                one result, no reductions and no pairs
    operands    a dict of arrays that broadcast to the result, by the names of the epilogue's parameters
    out_dtype   the result's dtype; default: jax.numpy.result_type of the operands. Sums are in f32, f64 or i32.
    threads     the most threads on a CPU

    Inside jit, grad, jvp, vmap and their compositions; shapes are static.
    """
    a, b = jnp.asarray(a), jnp.asarray(b)
    if not a.ndim or not b.ndim:
        raise ValueError("a and b must have at least 1 axis; to scale a matrix use *")
    rows = b.shape[-min(b.ndim, 2)]
    if a.shape[-1] != rows:
        raise ValueError(f"a's last axis has {a.shape[-1]} elements, and b's rows are {rows}: their shapes are "
                         f"{a.shape} and {b.shape}")
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    labels = LETTERS[3:3 + len(batch)]
    terms = []
    for x, matrix in ((a, "ab"[-min(a.ndim, 2):]), (b, "bc"[:min(b.ndim, 2)])):
        own = x.shape[:-2]
        terms.append("".join(labels[len(batch) - len(own):]) + matrix)
    output = labels + "a" * (a.ndim > 1) + "c" * (b.ndim > 1)
    return einsum(f"{terms[0]},{terms[1]}->{output}", a, b, epilogue=epilogue, operands=operands, out_dtype=out_dtype,
                  threads=threads)


def einsum(subscripts: str, *given: Any, epilogue: Callable[..., Any] | None = None,
           operands: Mapping[str, Any] | None = None, out_dtype: Any = None, threads: int | None = None) -> Any:
    """The sum of products that subscripts name, as jax.numpy.einsum computes it, each pair of operands by tilewright.
    The epilogue, as in matmul, belongs to the last pair. Letters and "..."; axes of size 1 are broadcast.
    """
    arrays = [jnp.asarray(x) for x in given]
    terms, output = _terms(subscripts, [x.ndim for x in arrays])
    common = jnp.result_type(*arrays)
    dtype = np.dtype(common if out_dtype is None else out_dtype)
    if (jnp.issubdtype(common, jnp.inexact) and not jnp.issubdtype(dtype, jnp.inexact)) or (
            jnp.issubdtype(common, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating)):
        raise TypeError(f"out_dtype must not be {dtype}, to which a product in {common} cannot be cast")
    prepared = [_prepared(term, x, [*terms[:i], *terms[i + 1:], output], _sizes(terms, arrays))
                for i, (term, x) in enumerate(zip(terms, arrays))]
    names, arrays = [term for term, _ in prepared], [x for _, x in prepared]
    if len(arrays) < 2 or not {*output} <= {*"".join(names)}:
        if epilogue is not None:
            raise ValueError(f"{subscripts!r} is no product with an epilogue: it has one operand, or a label of size 1")
        return jnp.einsum(",".join(terms) + "->" + output, *given).astype(dtype)
    path, _ = opt_einsum.contract_path(",".join(names) + "->" + output, *[x.shape for x in arrays], shapes=True)
    for number, pair in enumerate(path):
        chosen = [(names[i], arrays[i]) for i in pair]
        names = [x for i, x in enumerate(names) if i not in pair]
        arrays = [x for i, x in enumerate(arrays) if i not in pair]
        last = number == len(path) - 1
        (x, a), (y, b) = chosen
        into = output if last else "".join(sorted(({*x} | {*y}) & {*output, *"".join(names)}))
        text = f"{x},{y}->{into}"
        if last and epilogue is not None:
            return _fused(text, a, b, epilogue, dict(operands or {}), dtype, threads)
        between = dtype if last or not jnp.issubdtype(dtype, jnp.inexact) else np.dtype(
            jnp.promote_types(jnp.result_type(a, b), np.float32))
        names.append(into)
        arrays.append(contract_p.bind(a, b, subscripts=text, dtype=between, threads=threads))
    return arrays[0]


def _terms(subscripts: str, axes: Sequence[int]) -> tuple[list[str], str]:
    """Labels of each operand and of the result, "..." written out."""
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(axes):
        raise ValueError(f"{subscripts!r} names {len(terms)} operands, and {len(axes)} are given")
    free = [x for x in reversed(LETTERS) if x not in subscripts]
    most = max((count - len(term) + 3 for term, count in zip(terms, axes) if "..." in term), default=0)
    dots = "".join(free[:most])
    terms = [term.replace("...", dots[most - (count - len(term) + 3):]) for term, count in zip(terms, axes)]
    if arrow:
        output = output.replace("...", dots)
    else:
        every = "".join(terms)
        output = dots + "".join(sorted(x for x in {*every} if every.count(x) == 1 and x not in dots))
    for term, count in zip(terms, axes):
        if len(term) != count or not (term + "a").isalpha():
            raise ValueError(f"{subscripts!r} has {term!r} for an operand with {count} axes")
    if len({*output}) < len(output) or not {*output} <= {*"".join(terms)}:
        raise ValueError(f"{subscripts!r} has a result with a label twice, or with one that no operand has")
    return terms, output


def _sizes(terms: Sequence[str], arrays: Sequence[Any]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for term, x in zip(terms, arrays):
        for label, size in zip(term, x.shape):
            if sizes.get(label, 1) == 1:
                sizes[label] = size
            elif size not in (1, sizes[label]):
                raise ValueError(f"axes with the label {label!r} have the sizes {sizes[label]} and {size}")
    return sizes


def _prepared(term: str, x: Any, others: Sequence[str], sizes: Mapping[str, int]) -> tuple[str, Any]:
    """An operand of which each label occurs once, and in another operand or the result, and no axis is broadcast: by
    XLA, which does what is left to do and knows its derivatives."""
    elsewhere = {*"".join(others)}
    kept = [label for label in dict.fromkeys(term) if label in elsewhere and not (
        x.shape[term.index(label)] == 1 and (sizes[label] != 1))]
    if kept == [*term]:
        return term, x
    return "".join(kept), jnp.einsum(f"{term}->{''.join(kept)}", x)


# ---- the product of two operands


def _shape(subscripts: str, a: Any, b: Any) -> tuple[int, ...]:
    inputs, _, output = subscripts.partition("->")
    x, y = inputs.split(",")
    sizes = {**dict(zip(x, a.shape)), **dict(zip(y, b.shape))}
    return tuple(sizes[label] for label in output)


def _by_ffi(*arrays: Any, subscripts: str, dtype: Any, threads: int | None, epilogue: str | None = None,
            names: tuple[str, ...] = ()) -> Any:
    shape = _shape(subscripts, *arrays[:2])
    call = jax.ffi.ffi_call(ffi.TARGET, jax.ShapeDtypeStruct(shape, dtype))
    return call(*arrays, call=ffi.describe(subscripts, threads, epilogue, names))


@lru_cache(maxsize=4096)
def _compiled(primitive: Any, params: tuple[tuple[str, Any], ...]) -> Any:
    return jax.jit(partial(primitive.bind, **dict(params)))


def _primitive(name: str) -> Any:
    primitive = Primitive(name)
    primitive.def_impl(lambda *arrays, **params: _compiled(primitive, tuple(sorted(params.items())))(*arrays))
    primitive.def_abstract_eval(lambda *arrays, subscripts, dtype, **_: jax.core.ShapedArray(
        _shape(subscripts, *arrays[:2]), dtype))
    for platform in SUPPORTED:
        mlir.register_lowering(primitive, mlir.lower_fun(_by_ffi, multiple_results=False), platform=platform)
    return primitive


contract_p = _primitive("tilewright_contract")
fused_p = _primitive("tilewright_fused")


def _transposed(of: int, ct: Any, a: Any, b: Any, *, subscripts: str, dtype: Any, threads: int | None) -> Any:
    inputs, _, output = subscripts.partition("->")
    x, y = inputs.split(",")
    aval, other = (a.aval, b) if of == 0 else (b.aval, a)
    text = f"{output},{y}->{x}" if of == 0 else f"{output},{x}->{y}"
    return contract_p.bind(ct, other, subscripts=text, dtype=np.dtype(aval.dtype), threads=threads)


ad.defbilinear(contract_p, partial(_transposed, 0), partial(_transposed, 1))


def _batched(primitive: Any, arrays: Sequence[Any], axes: Sequence[Any], *, subscripts: str, **params: Any) -> Any:
    """One label more."""
    inputs, _, output = subscripts.partition("->")
    label = next(x for x in LETTERS if x not in subscripts)
    moved = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(arrays, axes)]
    terms = [term if axis is None else label + term for term, axis in zip(inputs.split(","), axes)]
    if all(axis is None for axis in axes[:2]):      # operands of the epilogue alone
        moved[0] = jnp.broadcast_to(moved[0], (next(x.shape[0] for x, axis in zip(moved, axes) if axis is not None),
                                               *moved[0].shape))
        terms[0] = label + terms[0]
    for i, axis in enumerate(axes[2:], 2):          # which broadcast to the result from the right
        if axis is not None:
            x = moved[i]
            moved[i] = x.reshape(x.shape[0], *[1] * (len(output) + 1 - x.ndim), *x.shape[1:])
    return primitive.bind(*moved, subscripts=f"{terms[0]},{terms[1]}->{label}{output}", **params), 0


for _each in (contract_p, fused_p):
    batching.primitive_batchers[_each] = partial(_batched, _each)


# ---- epilogues


def _fused(subscripts: str, a: Any, b: Any, epilogue: Callable[..., Any], operands: dict[str, Any], dtype: Any,
           threads: int | None) -> Any:
    arrays = {name: jnp.asarray(x) for name, x in operands.items()}
    shape = _shape(subscripts, a, b)
    for name, x in arrays.items():
        own = (1,) * (len(shape) - x.ndim) + x.shape
        if len(own) != len(shape) or any(n not in (1, size) for n, size in zip(own, shape)):
            raise ValueError(f"operands[{name!r}] has the shape {x.shape}, which does not broadcast to the result's "
                             f"{shape}")
    kind = _kind(jnp.result_type(a, b))
    expression = trace(epilogue, {"acc": kind, **{name: _kind(x.dtype) for name, x in arrays.items()}})
    if len(expression.results) > 1 or expression.paired or any(x.reduced for x in expression.results):
        raise ValueError("an epilogue must have one result here, and neither reduce rows or columns nor take pairs")
    return fused_p.bind(a, b, *arrays.values(), subscripts=subscripts, dtype=dtype, threads=threads,
                        epilogue=expression.text, names=tuple(arrays))


def _kind(dtype: Any) -> str:
    return "bool" if dtype == np.bool_ else "float" if jnp.issubdtype(dtype, jnp.floating) else "int"


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "fma": lambda x, y, z: x * y + z, "div": jnp.divide,
    "neg": jnp.negative, "abs": jnp.abs, "min": jnp.minimum, "max": jnp.maximum, "fmin": jnp.fmin, "fmax": jnp.fmax,
    "exp": jnp.exp, "log": jnp.log, "tanh": jnp.tanh, "erf": jax.lax.erf, "sqrt": jnp.sqrt,
    "gelu": partial(jax.nn.gelu, approximate=False), "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "sigmoid": jax.nn.sigmoid, "lt": jnp.less, "le": jnp.less_equal, "eq": jnp.equal, "ne": jnp.not_equal,
    "and": jnp.bitwise_and, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor, "shl": jnp.left_shift,
    "shr": jnp.right_shift, "popcount": jax.lax.population_count, "where": jnp.where,
}


def by_xla(*arrays: Any, subscripts: str, dtype: Any, threads: int | None, epilogue: str, names: tuple[str, ...]
           ) -> Any:
    """The product, and then the epilogue by XLA's operations."""
    a, b, *more = arrays
    common = jnp.result_type(a, b)
    floats = jnp.promote_types(common, np.float32) if jnp.issubdtype(common, jnp.inexact) else np.dtype(np.float32)
    sums = floats if jnp.issubdtype(common, jnp.inexact) else np.dtype(np.int32)
    acc = contract_p.bind(a, b, subscripts=subscripts, dtype=np.dtype(sums), threads=threads)
    expression = Expression.read(epilogue)

    def operation(name: str, *xs: Any) -> Any:
        if name in ("float", "int"):
            return xs[0].astype(floats if name == "float" else np.int32)
        return OPERATIONS[name](*xs)
    wide = [x.astype(floats) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in more]
    (value,) = expression.run(operation, {expression.parameters[0][0]: acc, **dict(zip(names, wide))}, lambda x: x)
    return jnp.broadcast_to(value, acc.shape).astype(dtype)


def _derivative(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    given = [jnp.zeros(x.shape, jax.dtypes.float0 if not jnp.issubdtype(x.dtype, jnp.inexact) else x.dtype)
             if type(t) is ad.Zero else t for x, t in zip(primals, tangents)]
    return jax.jvp(partial(by_xla, **params), tuple(primals), tuple(given))


ad.primitive_jvps[fused_p] = _derivative
