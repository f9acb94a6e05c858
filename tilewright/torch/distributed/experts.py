"""Experts of a mixture on several ranks: rows go to the ranks of their experts, are multiplied there, and come back.

On GPUs of one host rows are copied into the memory of the expert's rank, in one chunk for each source; a chunk is
multiplied while others come, and goes back while the next is multiplied. Elsewhere, and where gradients are needed, two
all-to-alls of the group stand around one call for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from tilewright.torch.distributed import products
from tilewright.torch.distributed.functions import name_of
from tilewright.torch.distributed.peers import ALIGN, Memory, Peers
from tilewright.torch.distributed.products import Group
from tilewright.torch.distributed.run import Buffer, Tensors, run
from tilewright.torch.distributed.schedules import Multiply, Part

Work: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Counts: TypeAlias = Tensor | Sequence[Sequence[int]]


def apply_experts(rows: Tensor, counts: Counts, work: Work, *, group: Group = None, width: int | None = None,
                  plan: str = "") -> Tensor:
    """What the experts make of rows, which are in the order of experts: those of rank 0 first.

    rows        [m, k], floats
    counts      how many rows are for each expert: a tensor [experts] of this rank, which costs an exchange and a wait
                for the device, or what all ranks have, as lists: counts[rank][expert]. Each rank has equally many
                experts
    work        a function of rows that are for this rank's experts and of offs, int32 on their device, where each
                expert's rows end: twd.grouped_mm by weights, and what is between two products. It is called once, or
                once for each source rank, and returns as many rows
    width       columns of what work returns, by default k
    plan        "pair" (all-to-alls) or "pieces" (chunks by source, without gradients); "" takes the second on GPUs
    """
    on = products.group_of(name_of(group))
    wants = torch.is_grad_enabled() and rows.requires_grad
    peers = None if plan == "pair" or wants or on.size() == 1 else products.reach(on, rows.device)
    if peers is None and rows.device.type == "cpu":
        experts = counts.numel() if isinstance(counts, Tensor) else [*map(len, counts)]
        products.agree_on_host(f"apply_experts of {experts} experts, {[*rows.shape[1:]]} {rows.dtype} into {width}", on)
    width = rows.shape[1] if width is None else width
    table = _table(counts, on, rows.device)
    local = len(table[0]) // on.size()
    sent = [[sum(row[rank*local:(rank + 1)*local]) for rank in range(on.size())] for row in table]
    if rows.dim() != 2 or sum(table[on.rank()]) != len(rows):
        raise ValueError(f"rows must be [{sum(table[on.rank()])}, k] by counts, not {tuple(rows.shape)}")
    if plan not in ("", "pair", "pieces"):
        raise ValueError(f"plan must be pair or pieces, not {plan!r}")
    offsets = [[list(accumulate(row[rank*local:(rank + 1)*local])) for rank in range(on.size())] for row in table]
    if peers is None:
        return _by_collectives(rows, table, sent, work, on, width)
    peers.agree(f"apply_experts of {rows.shape[1]} columns into {width}, {rows.dtype}, {table}")
    return _in_chunks(rows.contiguous(), sent, [offsets[source][peers.rank] for source in range(peers.ranks)], work,
                      peers, width)


def _table(counts: Counts, group: dist.ProcessGroup, device: torch.device) -> list[list[int]]:
    """counts[rank][expert]."""
    ranks = group.size()
    if isinstance(counts, Tensor):
        if counts.dim() != 1 or counts.dtype.is_floating_point:
            raise ValueError(f"counts must be one integer for each expert, not {counts.dtype} of {tuple(counts.shape)}")
        made = products.gathered(counts.to(device, torch.int64).view(1, -1), group).tolist()
    else:
        made = [list(map(int, row)) for row in counts]
    if len(made) != ranks or len({len(row) for row in made}) != 1 or len(made[0]) % ranks:
        raise ValueError(f"counts must be of equally many experts on each of {ranks} ranks, not of the shape "
                         f"{[len(row) for row in made]}")
    return made


# ---- all-to-alls


def _by_collectives(rows: Tensor, table: list[list[int]], sent: list[list[int]], work: Work, group: dist.ProcessGroup,
                    width: int) -> Tensor:
    me, local = group.rank(), len(table[0]) // group.size()
    mine = [row[me*local:(me + 1)*local] for row in table]          # of each source
    received = _Exchange.apply(rows, sent[me], [row[me] for row in sent], group)
    order: list[list[int]] = [[] for _ in range(local)]             # rows of each expert
    begin = 0
    for row in mine:
        for expert, count in enumerate(row):
            order[expert] += range(begin, begin + count)
            begin += count
    index = torch.tensor([*chain.from_iterable(order)], dtype=torch.int64, device=rows.device)
    offs = torch.tensor(list(accumulate(map(len, order))), dtype=torch.int32, device=rows.device)
    made = _checked(work(received[index], offs), len(index), width)
    back = torch.empty_like(made).index_copy(0, index, made)
    result: Tensor = _Exchange.apply(back, [row[me] for row in sent], sent[me], group)
    return result


def _checked(made: Tensor, rows: int, width: int) -> Tensor:
    if tuple(made.shape) != (rows, width):
        raise ValueError(f"work must return [{rows}, {width}], not {tuple(made.shape)}: give width=")
    return made


class _Exchange(torch.autograd.Function):
    """An all-to-all of rows; its gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, give: list[int], take: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.how = take, give, group
        if group.size() == 1:
            return x.clone()
        out = x.new_empty(sum(take), *x.shape[1:])
        dist.all_to_all_single(out.view(torch.uint8), products._bytes(x), take, give, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return _Exchange.apply(g.contiguous(), *ctx.how), None, None, None


# ---- chunks by source, in symmetric memory


class _Chunks:
    """Rows of each source, or of each expert's rank, in a slot of symmetric memory: as many as are sent."""

    def __init__(self, memory: Memory, slot: int, at: int, columns: int, dtype: torch.dtype, most: int,
                 count: Callable[[int, int], int]) -> None:
        self.memory, self.slot, self.at, self.columns, self.dtype = memory, slot, at, columns, dtype
        self.most, self.count = most, count

    def part(self, part: Part) -> Tensors:
        assert part.rank is not None
        assert part.block is not None
        at = self.at + part.block * chunk_bytes(self.most, self.columns, self.dtype)
        shape = self.count(part.rank, part.block), self.columns
        return (self.memory.view(self.slot, part.rank, at, shape, self.dtype),)


class _Made:
    """What work returned for each source."""

    def __init__(self) -> None:
        self.of: dict[int | None, Tensor] = {}

    def part(self, part: Part) -> Tensors:
        return (self.of[part.block],) if part.block in self.of else ()


def chunk_bytes(rows: int, columns: int, dtype: torch.dtype) -> int:
    return -(-rows*columns*dtype.itemsize // ALIGN) * ALIGN


def _in_chunks(rows: Tensor, sent: list[list[int]], ends: list[list[int]], work: Work, peers: Peers, width: int
               ) -> Tensor:
    me, ranks, most = peers.rank, peers.ranks, max(max(row) for row in sent)
    size = ranks * chunk_bytes(most, rows.shape[1], rows.dtype)
    memory = peers.memory(size + ranks * chunk_bytes(most, width, rows.dtype))
    slot = memory.next_slot()
    offs = peers.numbers(tuple(map(tuple, ends)))
    result, made = rows.new_empty(len(rows), width), _Made()
    blocks = list(accumulate(sent[me], initial=0))

    def multiplied(given: Tensors, to: Tensors, plus: Tensors | None, step: Multiply) -> None:
        source = me if step.rows.block is None or step.rows.buffer == "rows" else step.rows.block
        y = _checked(work(given[0], offs[source]), len(given[0]), width)
        if step.to.buffer == "result":
            to[0].copy_(y)
        else:
            made.of[source] = y.contiguous()
    run(peers, memory, slot, "exchange", "pieces", 1, {
        "rows": Buffer([rows], blocks, 1), "result": Buffer([result], blocks, 1), "partial": made,
        "landing": _Chunks(memory, slot, 0, rows.shape[1], rows.dtype, most, lambda rank, block: sent[block][rank]),
        "final": _Chunks(memory, slot, size, width, rows.dtype, most, lambda rank, block: sent[rank][block])},
        multiplied)
    return result
