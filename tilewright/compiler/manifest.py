"""What a program must know to launch a GPU kernel: a dict that JSON can hold, and the same as a record.

    {"symbol": "gemm_f32_nn_...", "target": "sm_90a", "workgroup": 256, "shape": [256, 1, 1], "wave": 32, "grid": None,
     "arguments": [{"name": "m", "offset": 0, "type": "i32", "size": 4}, ...], "argument_bytes": 88,
     "shared": 33792, "dynamic_shared": 0}
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.targets.tensor_maps import ALIGN, BYTES, Tile

if TYPE_CHECKING:
    from tilewright.ir import Function
    from tilewright.targets import Target


# Where the bank of constants of sm_90, the first chip with tensor maps, has a kernel's block of arguments: what is
# aligned to more than 16 bytes is aligned there, not in the block. Seen in machine code and by cuFuncGetParamInfo.
BANK = 0x210


class Parameter(NamedTuple):
    """A kernel's parameter: where a launch's block of arguments has it, in bytes. `type`: "ptr", "i32", "f64" ...; of a
    tensor map `tile` is what its copies move."""
    name: str
    type: str
    offset: int
    size: int
    tile: Tile | None = None


class Entry(NamedTuple):
    """A kernel as a launch sees it."""
    name: str
    threads: tuple[int, int]    # of a CTA, or workgroup
    shared: int                 # bytes of its shared memory, or LDS
    dynamic: int                # of them, those that the launch has to ask for; the others are declared in the code
    parameters: tuple[Parameter, ...] = ()
    overlaps: bool = False      # whether it waits for the stream's last kernel by itself, before whose end it may begin
    early: tuple[str, ...] = ()     # parameters whose memory it reads before that
    writes: tuple[str, ...] | None = None       # those to whose memory it may write; None: unknown


def manifest(function: Function, target: Target, grid: Sequence[int | str] | None = None,
             offsets: Mapping[str, int] | None = None, **more: Any) -> dict[str, Any]:
    """The manifest of a recorded kernel: how to launch it.

    `grid`: workgroups along x, y and z, numbers or Python expressions of the arguments' names, such as
    "(n + 255) // 256"; None: the caller chooses it. `arguments` lie at these bytes of a block of `argument_bytes`, by
    default each at the next multiple of its size (of a tensor map: of 64 in the bank that has the block at `BANK`);
    what a driver adds behind them is not in it.
    `shared` are bytes of a workgroup, of which a launch has to ask for `dynamic_shared`. Code that `overlaps` waits for
    the stream's last kernel by itself. `more`: further fields.
    """
    from tilewright.ir.types import Pointer, TensorMap, Type
    (x, y), arguments, end = function.threads or (1, 1), [], 0
    for name, value in function.params:
        t = value.type
        size = t.bytes if isinstance(t, Type) else BYTES if isinstance(t, TensorMap) else 8     # an address, a handle
        align = min(size, ALIGN)
        bank = BANK % align
        offset = offsets[name] if offsets is not None else -(-(bank + end) // align) * align - bank
        end = max(end, offset + size)
        row: dict[str, Any] = {"name": name, "offset": offset}
        if isinstance(t, Pointer):
            row |= {"type": "ptr", "size": size, "element": str(t.element)}
        elif isinstance(t, TensorMap):
            tile = {name: x for name, x in asdict(t.tile).items() if name != "images" or x}
            row |= {"type": str(t), "size": size, "tile": tile}
        else:
            row |= {"type": str(t), "size": size}
        arguments.append(row)
    return {"symbol": function.name, "target": target.name, "workgroup": x * y, "shape": [x, y, 1],
            "wave": function.warp, "grid": None if grid is None else [*grid, 1, 1][:3], "arguments": arguments,
            "argument_bytes": end, "shared": function.shared_bytes, "dynamic_shared": function.dynamic_bytes,
            **(_overlapping(function) if getattr(target, "overlaps", False) else {})} | more


def _overlapping(function: Function) -> dict[str, Any]:
    """What a launch must know to let the kernel, and the one behind it, begin before another one's end. It writes to
    memory that parameters point to; where else is unknown if it loads pointers, or has tensor maps and no `early`.
    """
    from tilewright.ir.program import Load, Op
    from tilewright.ir.types import Pointer, TensorMap
    pointers = [name for name, x in function.params if isinstance(x.type, Pointer)]
    elsewhere = any(isinstance(x.type, TensorMap) for _, x in function.params) and not function.early
    loaded = any(isinstance(node.result.type, Pointer) if isinstance(node, Load) else
                 isinstance(node, Op) and node.operation.name == "pointer" for node in function.walk())
    early = {"early": [*function.early]} if function.early else {}
    return {"overlaps": True, **early} | (
        {} if elsewhere or loaded else {"writes": [name for name in pointers if name not in function.early]})


def entry(of: Mapping[str, Any]) -> Entry:
    """A manifest as a record."""
    x, y = of["shape"][:2]
    parameters = tuple(Parameter(p["name"], p["type"], p["offset"], p["size"], _tile(p)) for p in of["arguments"])
    return Entry(of["symbol"], (x, y), of["shared"], of["dynamic_shared"], parameters, of.get("overlaps", False),
                 tuple(of.get("early", ())), tuple(of["writes"]) if "writes" in of else None)


def _tile(row: Mapping[str, Any]) -> Tile | None:
    """The tile of a parameter that is a tensor map; JSON has lists for tuples."""
    if "tile" not in row:
        return None
    tile = row["tile"]
    return Tile(tile["element"], tuple(tile["box"]), tile["swizzle"], tuple(tile["steps"]), tile.get("images", False))
