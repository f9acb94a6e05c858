"""cuBLAS as torch calls it, in full f32: the reference that every ratio on a GPU is against."""

from __future__ import annotations

import importlib.metadata
from functools import partial

from tilewright.bench.peer import GPU, Library, Peer, Setting, single
from tilewright.measure.measure import Call
from tilewright.measure.operands import Operands

NAME = "cuBLAS"


def load(setting: Setting) -> Peer:
    """TorchDevice has turned tf32 off."""
    assert setting.on is not None
    torch = setting.on.torch
    version = f"of torch {torch.__version__}"
    for package in ("nvidia-cublas", "nvidia-cublas-cu12"):
        try:
            version = f"{importlib.metadata.version(package)} ({version})"
        except importlib.metadata.PackageNotFoundError:
            continue

    def bind(o: Operands) -> Call:
        return partial(torch.mm if o.problem.batch == 1 else torch.bmm, o.a, o.b, out=o.c), ()

    return single(NAME, version, "torch.mm(a, b, out=), tf32 off", bind)


PEER = Library(NAME, load, device=GPU, order=0)
