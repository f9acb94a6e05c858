"""A kernel in Triton (_triton_kernel.py), autotuned: a peer that is emitted from Python too."""

from __future__ import annotations

import importlib.metadata
from functools import partial

from tilewright.bench.cases import GPU
from tilewright.bench.peer import Library, Peer, Setting, Unfit, single
from tilewright.measure.measure import Call
from tilewright.measure.operands import Operands


def load(setting: Setting) -> Peer:
    from tilewright.bench.peers import _triton_kernel

    def bind(o: Operands) -> Call:
        if {o.problem.a, o.problem.b, o.problem.out} != {"f32"} or o.problem.batch != 1:
            raise Unfit("the Triton kernel is for f32, one matrix at a time")
        return partial(_triton_kernel.matmul, o.a, o.b, o.c), ()

    version = importlib.metadata.version("triton")
    return single("triton", version, "a kernel of ours (bench/peers/_triton_kernel.py), autotuned", bind)


PEER = Library("triton", load, "triton", device=GPU, order=10)
