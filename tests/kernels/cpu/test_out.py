"""Every store of a finished sum goes through kernels/cpu/out: nothing else stores."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilewright as tw
from tilewright.ir.program import Store
from tilewright.kernels.cpu import amx, finish, microkernel, skinny
from tilewright.kernels.cpu.out import Place

AVX512 = tw.target("x86-avx512")
AMX = replace(AVX512, extensions=("amx-tile", "amx-bf16", "amx-int8")).extended
KERNELS = {
    "micro-kernel": lambda: microkernel.emit_microkernel(AVX512, "f32", 3, 2),
    "words": lambda: microkernel.emit_microkernel(AVX512, "i16x2", 2, 1),
    "in place": lambda: microkernel.emit_microkernel(AVX512, "f64", 2, 2, "rows", "masked"),
    "dots": lambda: skinny.emit_dots(AVX512, "f32", 2, 3),
    "finish": lambda: finish.emit_finish(AVX512, "f32", 32, "bf16"),
    "an epilogue": lambda: finish.emit_finish(AVX512, "f32", 32, "bf16", "acc:float; exp acc; -> %0", (), ("-",)),
    "scale": lambda: skinny.emit_scale(AVX512, "f64"),
    "amx": lambda: amx.emit_amx(AMX, "amx_bf16"),
    "amx, in passes": lambda: amx.emit_amx(AMX, "amx_i32"),
}


def stores(function):
    return sum(isinstance(node, Store) for node in function.walk())


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_else_stores(monkeypatch, name):
    assert stores(KERNELS[name]()) > 0
    monkeypatch.setattr(Place, "put", lambda self, x, read_c=False, mask=None: None)
    assert stores(KERNELS[name]()) == 0
