"""Every store of a finished sum goes through kernels/cpu/out: nothing else stores, an expression there is met once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import tilewright as tw
from tilewright import simulator
from tilewright.ir.program import Op, Store
from tilewright.kernels.cpu import amx, microkernel, out, skinny
from tilewright.kernels.cpu.out import Out, Place

AVX512 = tw.target("x86-avx512")
AMX = replace(AVX512, extensions=("amx-tile", "amx-bf16", "amx-int8")).extended
KERNELS = {
    "micro-kernel": lambda: microkernel.emit_microkernel(AVX512, "f32", 3, 2),
    "words": lambda: microkernel.emit_microkernel(AVX512, "i16x2", 2, 1),
    "in place": lambda: microkernel.emit_microkernel(AVX512, "f64", 2, 2, "rows", "masked"),
    "dots": lambda: skinny.emit_dots(AVX512, "f32", 2, 3),
    "finish": lambda: out.emit_finish(AVX512, 32, "bf16"),
    "scale": lambda: skinny.emit_scale(AVX512, "f64"),
    "amx": lambda: amx.emit_amx(AMX, "amx_bf16"),
    "amx, in passes": lambda: amx.emit_amx(AMX, "amx_i32"),
}


def doubled(k, x, i, j, mask):
    """2 x + 100 i + j: of a number, or of a vector of them."""
    first = k.cast(k.constant(tw.ir.i64, 0) + j + i*100, x.type.scalar)
    if x.type.length == 1:
        return x*2 + first
    columns = k.pack(*(k.constant(x.type.scalar, e) for e in range(x.type.length)))
    return x*2 + k.broadcast(first, x.type.length) + columns


def stores(function):
    return sum(isinstance(node, Store) for node in function.walk())


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_else_stores(monkeypatch, name):
    assert stores(KERNELS[name]()) > 0
    monkeypatch.setattr(Place, "put", lambda self, x, read_c=False, mask=None: None)
    assert stores(KERNELS[name]()) == 0


def test_tiles_are_stored_straight_only_where_sums_are_c(monkeypatch):
    def tiles_stored():
        nodes = amx.emit_amx(AMX, "amx_bf16").walk()
        return sum(isinstance(node, Op) and "tilestored" in node.operation.name for node in nodes)
    assert tiles_stored() == 8
    monkeypatch.setattr(amx, "Out", partial(Out, fused=doubled))
    assert tiles_stored() == 4


@pytest.mark.parametrize("beta", [0, 3])
@pytest.mark.parametrize("cols", [32, 21])
def test_an_expression_in_a_micro_kernel(monkeypatch, beta, cols):
    monkeypatch.setattr(microkernel, "Out", partial(Out, fused=doubled))
    rng = np.random.default_rng(cols)
    a, b, c = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((7, 3), (7, 32), (3, 32)))
    wanted = 2*(2*(a.T @ b) + beta*c) + 100*np.arange(3)[:, None] + np.arange(32)
    wanted[:, cols:] = c[:, cols:]
    kernel = microkernel.emit_microkernel(AVX512, "f32", 3, 2)
    simulator.run(kernel, 7, a.ravel(), 3, aligned(b), 32, c, 32, cols, 2, beta, b.ravel().view(np.int8), 0)
    np.testing.assert_array_equal(c, wanted)


@pytest.mark.parametrize("whole", [True, False])
def test_an_expression_of_sums_that_may_not_be_finished(monkeypatch, whole):
    """A kernel that learns at run time whether its sums are over all of k."""
    monkeypatch.setattr(out, "Out", lambda k, c, alpha, RESULT: Out(
        k, c, alpha, RESULT=RESULT, fused=doubled, finished=k.args[5] == (2 if whole else 3)))
    tile, c = np.arange(64, dtype=np.float32).reshape(2, 32) / 64, np.zeros((2, 32), np.float16)
    simulator.run(out.emit_finish(AVX512, 32, "f16"), aligned(tile), c, 32, 0, 0, 2, 32, 0.5)
    x = tile * np.float32(0.5)
    wanted = 2*x + 100*np.arange(2)[:, None] + np.arange(32) if whole else x
    np.testing.assert_array_equal(c, wanted.astype(np.float16))


def aligned(x):
    """The same numbers from a multiple of 64 bytes on."""
    space = np.empty(x.size + 64 // x.itemsize, x.dtype)
    found = space[-space.ctypes.data % 64 // x.itemsize:][:x.size]
    found[:] = x.ravel()
    return found
