"""Runs the steps of the GPU ladder on a CUDA device: compile, lay out a launch, bind A and B to textures if need be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ladder.gpu11_texture import aligned, texels
from tilewright.ladder.gpu13_dispatch import choose
from tilewright.ladder.run import compiled
from tilewright.ladder.steps import DISPATCH, GpuStep
from tilewright.ladder.steps import step as find
from tilewright.runtime.cuda import module
from tilewright.runtime.cuda.module import TEXEL, Device, LinearTexture


def prepare(
    step: str, m: int, n: int, k: int, a: int, lda: int, b: int, ldb: int, c: int, ldc: int,
    alpha: float = 1.0, beta: float = 0.0, on: Device | None = None,
) -> Callable[[int], None]:
    """`launch(stream)`, which does C[m, n] = alpha A[m, k] @ B[k, n] + beta C on the stream with that handle.

    a, b and c are addresses of row-major f32 matrices in the memory of the device `on` (default: the first), which must
    outlive the launch; lda, ldb and ldc are elements from row to row. Matrices stored by columns are the transposed
    ones by rows: C^T = B^T A^T. ValueError for an unknown step, or for matrices that the step "texture" cannot read.
    """
    device = on or module.device()
    if step == DISPATCH:
        step = choose(device.target, m, n, k, a, lda, b, ldb)
    chosen: GpuStep = find(step, device.target)
    if 0 in (m, n):
        return lambda stream: None
    code: Any = compiled(step, device.target)
    kernel = module.load(code.loadable.image, device).function(code.loadable.manifest)
    keep, operands = [], [a, b]
    if chosen.textures:
        if not aligned(m, n, k, a, lda, b, ldb):
            raise ValueError(f"the step {step!r} reads A and B 16 bytes at a time, and these matrices are not aligned")
        sizes = texels(m, k, lda), texels(k, n, ldb)
        keep = [LinearTexture(device, x, TEXEL * size) for x, size in zip(operands, sizes)]
        operands = [texture.handle for texture in keep]
    args = m, n, k, float(alpha), operands[0], lda, operands[1], ldb, float(beta), c, ldc
    launch = module.Prepared(kernel, chosen.grid(m, n), args)

    def run(stream: int = 0, _keep: object = keep) -> None:
        launch(stream)

    return run
