"""Names of recorded functions: equal for equal code, in every process, and different where the code is."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.helpers.block_programs import matmul
from tests.helpers.processes import printed
from tilewright.ir import Kernel, f16, f32, i64, ptr, vec
from tilewright.ir.digest import digest
from tilewright.ir.types import Pointer
from tilewright.kernels.elementwise import each


def shuffled(lanes):
    k = Kernel("shuffled", x=ptr(f32))
    v = k.load(k.args[0], vec(f32, 4))
    k.store(k.args[0], k.shuffle(v, v, lanes))
    return k.function


def prefetched(write):
    k = Kernel("prefetched", x=ptr(f32))
    k.prefetch(k.args[0], write=write)
    return k.function


def scaled(by, strided=False):
    k = Kernel("scaled", n=i64, x=Pointer(f32, "global", strided))
    n, x = k.args
    with each(k, n) as i:
        x[i] = x[i] * by
    return k.function


def program():
    return matmul("sm_90a", BLOCK_M=64, BLOCK_N=64, NUM_WARPS=4, NUM_STAGES=3, EVEN=8, T=f16)


@pytest.mark.parametrize(("emit", "one", "other"), [
    (shuffled, [0, 1, 2, 3], [3, 2, 1, 0]), (prefetched, True, False), (scaled, 0.0, -0.0), (scaled, 2.0, 3.0)])
def test_another_constant_is_another_function(emit, one, other):
    assert digest(emit(one)) == digest(emit(one)) != digest(emit(other))


def test_operations_apart_are_another_function():
    def emit(apart):
        k = Kernel("sum", a=f32, x=ptr(f32))
        a, x = k.args
        with k.exact() if apart else nullcontext():
            x[0] = a * a + x[0]
        return k.function
    assert digest(emit(False)) == digest(emit(False)) != digest(emit(True))


def test_a_parameter_of_any_strides_is_another_function():
    assert digest(scaled(2.0)) != digest(scaled(2.0, strided=True))


def test_every_process_has_the_same_names():
    code = ("from tests.ir import test_digest as t\n"
            "print(*(t.digest(f) for f in (t.shuffled([1, 0, 3, 2]), t.program())))")
    assert printed(code).split() == [digest(shuffled([1, 0, 3, 2])), digest(program())]
