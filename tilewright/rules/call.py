"""One call of matmul or gemm as one frozen object, and what NumPy's rules make of it.

    Call        the caller's arguments; those that need no operands to be checked are checked when it is made
    Product     the operands as matrices, the formats of sums and result, alpha and beta as factors, and the shape

`decide` makes a Product from a Call. It reads dtypes, shapes and strides only, so that the arrays may be NumPy's own,
shadows of arrays in a GPU's memory (runtime/gpu/arrays.py), or stand-ins for packed and quantized operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tilewright.plans import asked, invariant
from tilewright.rules import arguments, shapes
from tilewright.rules.arguments import Array


class Call(NamedTuple):
    """The arguments of one call. `api.products.matmul` says what each may be."""

    a: Any
    b: Any
    out: Any = None  # of gemm: c
    out_dtype: Any = None
    alpha: Any = 1
    beta: Any = 0
    c: Any = None
    trans_a: str = "n"  # "n", "t" or "c", as for trans_b
    trans_b: str = "n"
    scale_a: Any = None
    scale_b: Any = None
    epilogue: Any = None
    operands: Any = None
    algorithm: str | None = None
    deterministic: bool = False
    batch_invariant: bool = False
    threads: int | None = None
    plan: Any = None  # a plan or None, not its text
    prologue_a: Any = None
    prologue_b: Any = None
    semiring: Any = None  # instead of multiplication and addition: an expressions.semiring.Semiring
    updates: bool = False  # gemm: `out` is `c`, and c is what messages call it
    # of einsum's last product:
    among: Any = ()  # arrays whose dtypes count in place of a's, b's and c's
    scattered: Any = None  # rules.contraction.Operands, of several axes each, for which a and b stand

    @classmethod
    def checked(cls, a: Any, b: Any, out: Any = None, *, trans_a: Any = False, trans_b: Any = False,
                deterministic: Any = False, batch_invariant: Any = False, threads: Any = None, plan: Any = None,
                updates: bool = False, epilogue: Any = None, operands: Any = None, prologue_a: Any = None,
                prologue_b: Any = None,
                **others: Any) -> Call:
        """The call with these arguments. TypeError or ValueError for options that no operands could make right."""
        arguments.check_flag(deterministic, "deterministic")
        arguments.check_flag(batch_invariant, "batch_invariant")
        if epilogue is prologue_a is prologue_b is None and operands is not None:
            raise ValueError("operands must be None without an epilogue or a prologue")
        for name in operands if isinstance(operands, Mapping) else ():
            if isinstance(name, str) and not name.isidentifier():
                raise ValueError(f"operands must have the names of the functions' parameters, not {name!r}")
        return cls(
            a, b, out if updates or epilogue is not None else arguments.single(out, "out"),
            trans_a=arguments.layout(trans_a, "a"), trans_b=arguments.layout(trans_b, "b"), deterministic=deterministic,
            batch_invariant=batch_invariant, threads=arguments.thread_count(threads), plan=asked.plan(plan),
            updates=updates, epilogue=epilogue, operands=operands, prologue_a=prologue_a, prologue_b=prologue_b,
            **others,
        )

    @property
    def fused(self) -> bool:
        """Has it an epilogue or a prologue?"""
        return not (self.epilogue is self.prologue_a is self.prologue_b is None)

    @property
    def scaled(self) -> bool:
        """Are there alpha, beta, c or an epilogue?"""
        return not (self.c is self.epilogue is None and arguments.number(self.alpha, "alpha") == 1
                    and arguments.number(self.beta, "beta") == 0)

    @property
    def invariant(self) -> str:
        """What must not change an element's bits: see plans/invariant.py."""
        return invariant.asked(self.deterministic, self.batch_invariant)

    @property
    def out_name(self) -> str:
        """What the caller knows `out` as."""
        return "c" if self.updates else "out"

    @property
    def plain(self) -> bool:
        """Is it alpha * (a @ b), with no option but out and plan?"""
        optional = (self.out_dtype, self.c, self.scale_a, self.scale_b, self.algorithm, self.threads, self.semiring)
        return (all(x is None for x in optional) and not self.fused and not self.invariant
                and self.trans_a == self.trans_b == "n")


class Arithmetic(NamedTuple):
    """Which formats sums and result have, by arguments.dtypes' parameters; and alpha or beta as a factor of sums."""

    dtypes: Callable[..., tuple[np.dtype[Any], np.dtype[Any]]]
    factor: Callable[[Any, str, np.dtype[Any]], Any]


KERNELS = Arithmetic(arguments.dtypes, arguments.factor)


class Product(NamedTuple):
    """alpha * (a @ b) + beta * c, added up in `sums` and brought to `result`.

    a, b, c and out have two axes or more; `vectors` are the axes, -2 or -1, that `user_shape` lacks because a or b is a
    vector. Leading axes of a and b are those of the operands, not yet broadcast to those of `shape`.
    """

    a: Array
    b: Array
    c: Any  # an array that is broadcast to `shape`; one without axes if it is a number; None
    out: Array | None
    alpha: Any
    beta: Any
    sums: np.dtype[Any]
    result: np.dtype[Any]
    shape: tuple[int, ...]
    user_shape: tuple[int, ...]
    vectors: tuple[int, ...]
    semiring: str = ""  # what stands for multiplication and addition: Semiring's text

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n, k of each matrix product."""
        return self.a.shape[-2], self.b.shape[-1], self.a.shape[-1]

    def broadcast(self, *operands: Array) -> tuple[Array, ...]:
        """Operands with the leading axes of the result."""
        return tuple(shapes.broadcast(x, self.shape[:-2]) for x in operands)


def decide(call: Call, a: Array, b: Array, c: Any, out: Array | None, arithmetic: Arithmetic = KERNELS) -> Product:
    """What to compute for these operands, transposed already. c is an array, a number or None.

    Where alpha is 0, k is 0: as in BLAS, not even a nan in a or b is read. TypeError and ValueError as matmul raises.
    """
    if call.semiring is not None and call.out_dtype is None:
        sums = result = arguments.combined_in(a, b)
    else:
        sums, result = arithmetic.dtypes(*(call.among or (a, b, c)), call.out_dtype, out, call.updates)
    alpha, beta = arithmetic.factor(call.alpha, "alpha", sums), arithmetic.factor(call.beta, "beta", sums)
    if c is None and beta:
        raise ValueError(f"c must be given if beta is not 0, and beta is {call.beta}")
    if out is not None:
        arguments.check_cast(result, out.dtype, call.out_name)
        if call.out_dtype is not None and out.dtype.newbyteorder("=") != result:
            raise TypeError(f"{call.out_name} has dtype {out.dtype}, but out_dtype asks for {result}")

    vectors = tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1)
    a, b = (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    shape = shapes.result_shape(a, b, out, vectors, call.out_name)
    user_shape = shapes.without(vectors, shape)
    if c is not None:
        c = shapes.added(c, user_shape, vectors) if isinstance(c, np.ndarray) else arguments.added(c, sums)
    if out is not None and vectors:
        out = shapes.as_matrices(out, vectors)
    if not alpha:
        a, b, alpha = a[..., :0], b[..., :0, :], 1
    return Product(a, b, c, out, alpha, beta, sums, result, shape, user_shape, vectors,
                   call.semiring.text if call.semiring is not None else "")
