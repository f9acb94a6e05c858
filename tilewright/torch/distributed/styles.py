"""torch's styles of tensor parallelism, for tilewright's narrow layers too: parallelize_module(model, mesh, {"up":
ColwiseParallel(), "down": RowwiseParallel()}).

Weights of narrow layers are buffers, which torch's own styles refuse. Each rank keeps its part of the stored bytes and
scales; nothing is quantised again, and no weight is gathered. With overlap=True a layer's product takes the rows of all
ranks, or gives each rank its rows of the sum, by all_gather_matmul, matmul_reduce_scatter or matmul_all_reduce.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel as TorchColwise,
    RowwiseParallel as TorchRowwise,
)

from tilewright import formats
from tilewright.formats.scaled import HALVES
from tilewright.torch.distributed.functions import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from tilewright.torch.modules import Fp8Linear, WeightLinear
from tilewright.torch.ops import ACTIVATIONS

NARROW = Fp8Linear, WeightLinear


class ColwiseParallel(TorchColwise):
    """torch's ColwiseParallel, which also takes narrow layers: outputs are split.

    overlap     rows that input_layouts=Shard(axis) says each rank has a part of are gathered while they are multiplied:
                of torch.nn.Linear and twt.Linear, and for outputs that stay split
    """

    def __init__(self, *, overlap: bool = False, **layouts: Any) -> None:
        super().__init__(**layouts)
        self.overlap = overlap

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        narrow = isinstance(module, NARROW)
        if self.overlap:
            axis = _axis(self.input_layouts[0], "input_layouts")
            if narrow or not isinstance(module, nn.Linear) or self.output_layouts != (Shard(-1),):
                raise ValueError("overlap=True must be of a Linear layer whose output_layouts are Shard(-1)")
            distribute_module(module, device_mesh, self._partition_linear_fn)
            return _replaced(module, device_mesh, self.use_local_output, Shard(-1), partial(_columns, axis))
        if not narrow:
            return super()._apply(module, device_mesh)
        return distribute_module(
            module, device_mesh, partial(_split, axis=0, source=self.src_data_rank),
            partial(self._prepare_input_fn, self.input_layouts, self.desired_input_layouts),
            partial(self._prepare_output_fn, self.output_layouts, self.use_local_output))


class RowwiseParallel(TorchRowwise):
    """torch's RowwiseParallel, which also takes narrow layers: inputs are split between groups and blocks.

    overlap     partial sums leave while others are multiplied: with output_layouts=Shard(axis) each rank gets its part
                of the rows, with Replicate() all; of torch.nn.Linear and twt.Linear, and for inputs that are split
    """

    def __init__(self, *, overlap: bool = False, **layouts: Any) -> None:
        super().__init__(**layouts)
        self.overlap = overlap

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        narrow = isinstance(module, NARROW)
        if self.overlap:
            to = self.output_layouts[0]
            axis = None if isinstance(to, Replicate) else _axis(to, "output_layouts")
            if narrow or not isinstance(module, nn.Linear) or self.input_layouts != (Shard(-1),):
                raise ValueError("overlap=True must be of a Linear layer whose input_layouts are Shard(-1)")
            if getattr(module, "activation", "none") != "none":
                raise ValueError(f"a layer with activation={module.activation!r} cannot split its inputs")
            distribute_module(module, device_mesh, self._partition_linear_fn)
            return _replaced(module, device_mesh, self.use_local_output, to, partial(_rows, axis))
        if not narrow:
            return super()._apply(module, device_mesh)
        self.desired_input_layouts = (Shard(-1),)
        if getattr(module, "order", None) is not None:
            raise ValueError("RowwiseParallel cannot split the inputs of a layer that takes them in another order "
                             "(GPTQ's act-order)")
        unit, ranks = _unit(module), device_mesh.size()
        if module.in_features % (unit*ranks):
            raise ValueError(f"RowwiseParallel splits the {module.in_features} inputs of a layer over {ranks} ranks at "
                             f"multiples of {unit}, which share a scale or a byte: they must be a multiple of "
                             f"{unit*ranks}")
        return distribute_module(
            module, device_mesh, partial(_split, axis=1, source=self.src_data_rank),
            partial(self._prepare_input_fn, self.input_layouts, self.desired_input_layouts),
            partial(self._prepare_output_fn, self.output_layouts, self.use_local_output))


# ---- with overlap


def _axis(placement: Any, name: str) -> int:
    if not isinstance(placement, Shard):
        raise ValueError(f"overlap=True needs {name}=Shard(axis) of rows, not {placement}")
    return placement.dim


def _replaced(module: nn.Module, mesh: DeviceMesh, local: bool, placement: Any, function: Any) -> nn.Module:
    """A layer whose forward takes this rank's part of its input."""
    group = mesh.get_group()

    def forward(x: Tensor) -> Tensor:
        x = x.to_local() if isinstance(x, DTensor) else x
        y: Tensor = function(module, x, group)
        return y if local else DTensor.from_local(y, mesh, [placement], run_check=False)
    module.forward = forward
    return module


def _columns(axis: int, layer: Any, x: Tensor, group: Any) -> Tensor:
    weight = layer.weight.to_local()
    y = all_gather_matmul(x.movedim(axis, 0), weight.t(), group=group).movedim(0, axis)
    y = y if layer.bias is None else y + layer.bias.to_local()
    result: Tensor = ACTIVATIONS[getattr(layer, "activation", "none")](y)
    return result


def _rows(axis: int | None, layer: Any, x: Tensor, group: Any) -> Tensor:
    weight = layer.weight.to_local().t()
    if axis is None:
        y = matmul_all_reduce(x, weight, group=group)
    else:
        y = matmul_reduce_scatter(x.movedim(axis, 0), weight, group=group).movedim(0, axis)
    if layer.bias is not None:          # of rows that ranks have a part of, so is the gradient
        y = y + layer.bias.to_local(grad_placements=[Replicate() if axis is None else Partial()])
    return y


# ---- narrow layers


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
        along = name != "order" and (axis == 0 or (x.dim() == 2 and x.shape[1] > 1))
        module.register_buffer(name, _distributed(x, mesh, Shard(axis) if along else Replicate(), source))


def _distributed(x: Tensor, mesh: DeviceMesh, placement: Any, source: int | None) -> Tensor:
    """distribute_tensor, of float8, too, which collectives do not know."""
    if x.itemsize > 1 or not x.dtype.is_floating_point:
        return distribute_tensor(x, mesh, [placement], src_data_rank=source)
    part = distribute_tensor(x.view(torch.uint8), mesh, [placement], src_data_rank=source).to_local()
    return DTensor.from_local(part.view(x.dtype), mesh, [placement], run_check=False, shape=x.shape, stride=x.stride())
