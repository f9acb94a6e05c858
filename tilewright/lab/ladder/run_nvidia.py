"""Runs the steps of the GPU ladder on a CUDA device: compile, lay out a launch, bind A and B to textures or tensor maps
if need be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.lab.ladder import gpu_tensor
from tilewright.lab.ladder.gpu11_texture import aligned, texels
from tilewright.lab.ladder.gpu13_dispatch import choose
from tilewright.lab.ladder.run import compiled
from tilewright.lab.ladder.steps import DISPATCH, GpuStep, TensorStep, step as find
from tilewright.lab.ladder.texture import TEXEL, LinearTexture
from tilewright.runtime.cuda import module
from tilewright.runtime.cuda.module import Device
from tilewright.targets.tensor_maps import TiledMap


def prepare(
    step: str, m: int, n: int, k: int, a: int, lda: int, b: int, ldb: int, c: int, ldc: int,
    alpha: float = 1.0, beta: float = 0.0, on: Device | None = None,
) -> Callable[[int], None]:
    """`launch(stream)`, which does C[m, n] = alpha A[m, k] @ B[k, n] + beta C on the stream with that handle.

    a, b and c are addresses of row-major matrices in the memory of the device `on` (default: the first), which must
    outlive the launch; lda, ldb and ldc are elements from row to row. They are f32; of the steps on tensor cores bf16,
    and b is B^T [n, k]. Matrices stored by columns are the transposed ones by rows: C^T = B^T A^T. ValueError for an
    unknown step, and for matrices that the step "texture", or one on tensor cores, cannot read.
    """
    device = on or module.device()
    if step == DISPATCH:
        step = choose(device.target, m, n, k, a, lda, b, ldb)
    chosen: GpuStep | TensorStep = find(step, device.target)
    if 0 in (m, n):
        return lambda stream: None
    code: Any = compiled(step, device.target)
    kernel = module.load(code.loadable.image, device).function(code.loadable.manifest)
    keep, operands = [], [a, b]  # type: list[LinearTexture], list[Any]
    if isinstance(chosen, TensorStep):
        if why := gpu_tensor.refused(m, n, k, a, lda, b, ldb, c, ldc):
            raise ValueError(f"step {chosen.title}: {why}")
        if chosen.boxes:
            operands = [module.TensorMaps(TiledMap.of_matrices(gpu_tensor.box(rows).tile, extent, k, ld), device)(x)
                        for x, rows, extent, ld in zip(operands, chosen.boxes, (m, n), (lda, ldb))]
        grid = chosen.grid(m, n, device.target.sms)
    else:
        grid = chosen.grid(m, n)
    if isinstance(chosen, GpuStep) and chosen.textures:
        if not aligned(m, n, k, a, lda, b, ldb):
            raise ValueError(f"the step {step!r} reads A and B 16 bytes at a time, and these matrices are not aligned")
        sizes = texels(m, k, lda), texels(k, n, ldb)
        keep = [LinearTexture(device, x, TEXEL * size) for x, size in zip(operands, sizes)]
        operands = [texture.handle for texture in keep]
    args = m, n, k, float(alpha), operands[0], lda, operands[1], ldb, float(beta), c, ldc
    launch = module.Prepared(kernel, grid, args)

    def run(stream: int = 0, _keep: object = keep) -> None:
        launch(stream)

    return run
