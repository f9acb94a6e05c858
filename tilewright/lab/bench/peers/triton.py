"""Kernels in Triton (_triton_kernel.py), autotuned: a peer that is emitted from Python too."""

from __future__ import annotations

import importlib.metadata
from functools import partial

from tilewright.lab.bench.cases import GPU
from tilewright.lab.bench.peer import Library, Peer, Setting, Unfit, single
from tilewright.lab.measure.measure import Call
from tilewright.lab.measure.operands import Operands

SUPPORTED = {("f32", "f32"), ("i8", "i32")} | {  # formats of A and B, and of the result
    (x, out) for x in ("f16", "bf16", "e4m3fn", "e5m2") for out in ("f16", "bf16", "f32")}


def load(setting: Setting) -> Peer:
    from tilewright.lab.bench.peers import _triton_kernel

    assert setting.on is not None
    sms = setting.on.on.target.sms

    def bind(o: Operands) -> Call:
        p = o.problem
        if p.a != p.b or (p.a, p.out) not in SUPPORTED or p.batch != 1 or p.scales:
            raise Unfit("the Triton kernel is for f32, f16, bf16, fp8 and int8, one matrix at a time")
        return partial(_triton_kernel.matmul, o.a, o.b, o.c, sms), ()

    version = importlib.metadata.version("triton")
    return single("triton", version, "kernels of ours (bench/peers/_triton_kernel.py), autotuned", bind)


PEER = Library("triton", load, "triton", device=GPU, order=10)
