"""torch's styles of tensor parallelism, for tilewright's narrow layers too: parallelize_module(model, mesh, {"up":
ColwiseParallel(), "down": RowwiseParallel()}).

Weights of narrow layers are buffers, which torch's own styles refuse. Each rank keeps its part of the stored bytes and
scales; nothing is quantised again, and no weight is gathered.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel as TorchColwise,
    RowwiseParallel as TorchRowwise,
)

from tilewright import formats
from tilewright.formats.scaled import HALVES
from tilewright.torch.modules import Fp8Linear, WeightLinear

NARROW = Fp8Linear, WeightLinear


class ColwiseParallel(TorchColwise):
    """torch's ColwiseParallel, which also takes narrow layers: outputs are split."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, NARROW):
            return super()._apply(module, device_mesh)
        return distribute_module(
            module, device_mesh, partial(_split, axis=0, source=self.src_data_rank),
            partial(self._prepare_input_fn, self.input_layouts, self.desired_input_layouts),
            partial(self._prepare_output_fn, self.output_layouts, self.use_local_output))


class RowwiseParallel(TorchRowwise):
    """torch's RowwiseParallel, which also takes narrow layers: inputs are split between groups and blocks."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, NARROW):
            return super()._apply(module, device_mesh)
        self.desired_input_layouts = (Shard(-1),)
        unit, ranks = _unit(module), device_mesh.size()
        if module.in_features % (unit*ranks):
            raise ValueError(f"RowwiseParallel splits the {module.in_features} inputs of a layer over {ranks} ranks at "
                             f"multiples of {unit}, which share a scale or a byte: they must be a multiple of "
                             f"{unit*ranks}")
        return distribute_module(
            module, device_mesh, partial(_split, axis=1, source=self.src_data_rank),
            partial(self._prepare_input_fn, self.input_layouts, self.desired_input_layouts),
            partial(self._prepare_output_fn, self.output_layouts, self.use_local_output))


def _unit(module: Any) -> int:
    """Inputs that cannot be split."""
    if isinstance(module, Fp8Linear):
        return 1
    format = module.saved["format"]
    if format in formats.BLOCK_FORMATS:
        return int(formats.block_format(format).block)
    return int(module.saved["group"]) or 2 ** (format in HALVES)


def _split(name: str, module: nn.Module, mesh: DeviceMesh, axis: int, source: int | None) -> None:
    """A layer's buffers along outputs (axis 0) or inputs (1)."""
    for name, x in list(module.named_buffers(recurse=False)):
        along = axis == 0 or (x.dim() == 2 and x.shape[1] > 1)
        module.register_buffer(name, _distributed(x, mesh, Shard(axis) if along else Replicate(), source))


def _distributed(x: Tensor, mesh: DeviceMesh, placement: Any, source: int | None) -> Tensor:
    """distribute_tensor, of float8, too, which collectives do not know."""
    if x.itemsize > 1 or not x.dtype.is_floating_point:
        return distribute_tensor(x, mesh, [placement], src_data_rank=source)
    part = distribute_tensor(x.view(torch.uint8), mesh, [placement], src_data_rank=source).to_local()
    return DTensor.from_local(part.view(x.dtype), mesh, [placement], run_check=False, shape=x.shape, stride=x.stride())
