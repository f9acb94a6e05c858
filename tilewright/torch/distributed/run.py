"""Schedules on a GPU: their parts as tensors, their steps given to two streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tilewright.torch.distributed.peers import ALIGN, Memory, Peers
from tilewright.torch.distributed.schedules import Add, Copy, Follow, Multiply, Part, schedule as _schedule

TILE = 128      # rows of which pieces are multiples, where they are so long

schedule = lru_cache(256)(_schedule)
Tensors = tuple[Tensor, ...]


@lru_cache(1024)
def cut(rows: int, parts: int, multiple: int = TILE) -> tuple[int, ...]:
    """Where so many parts of rows begin and end: multiples of a tile, unless there are too few."""
    step = multiple if rows >= parts*multiple else 1
    return (*[step * (rows // step * part // parts) for part in range(parts)], rows)


class Buffer:
    """Rows of all blocks of one buffer: one tensor, or several that belong together, as elements and scales."""

    def __init__(self, tensors: Sequence[Tensor], blocks: Sequence[int], pieces: int) -> None:
        self.tensors, self.blocks, self.pieces = tuple(tensors), blocks, pieces

    def part(self, part: Part) -> Tensors:
        if part.block is None:
            return self.tensors
        begin, end = self.blocks[part.block:part.block + 2]
        if part.piece is not None:
            inside = cut(end - begin, self.pieces)
            begin, end = begin + inside[part.piece], begin + inside[part.piece + 1]
        return tuple([x[begin:end] for x in self.tensors])


class Landing:
    """A buffer in a slot of symmetric memory, of any rank: views are made when they are asked for."""

    def __init__(self, memory: Memory, slot: int, at: int, like: Sequence[tuple[int, torch.dtype]],
                 blocks: Sequence[int], pieces: int) -> None:
        self.memory, self.slot, self.at, self.like = memory, slot, at, like
        self.blocks, self.pieces = blocks, pieces
        self.of_rank: dict[int, Buffer] = {}

    @staticmethod
    def size(like: Sequence[tuple[int, torch.dtype]], rows: int) -> int:
        """Bytes of rows of so many columns each."""
        return sum(-(-rows*columns*dtype.itemsize // ALIGN) * ALIGN for columns, dtype in like)

    def part(self, part: Part) -> Tensors:
        assert part.rank is not None
        buffer = self.of_rank.get(part.rank)
        if buffer is None:
            tensors, at, rows = [], self.at, self.blocks[-1]
            for columns, dtype in self.like:
                tensors.append(self.memory.view(self.slot, part.rank, at, (rows, columns), dtype))
                at += self.size([(columns, dtype)], rows)
            buffer = self.of_rank[part.rank] = Buffer(tensors, self.blocks, self.pieces)
        return buffer.part(part)


def run(peers: Peers, memory: Memory, slot: int, kind: str, form: str, pieces: int,
        buffers: Mapping[str, Any], multiply: Callable[[Tensors, Tensors, Tensors | None, Multiply], Any]) -> None:
    """Give the steps of this rank to the current stream and to that of copies.

    buffers     what has `part`, by name
    multiply    (rows, to, plus, step): one product, on the current stream
    """
    streams = peers.streams()
    label = f"{kind} ({form}, pieces: {pieces})"

    def tensors(part: Part) -> Tensors:
        own: Tensors = buffers[part.buffer].part(part)
        return own

    with peers.calling():
        for step in schedule(kind, form, peers.rank, peers.ranks, pieces):
            if isinstance(step, Follow):
                streams[step.stream].wait_stream(streams[1 - step.stream])
            elif isinstance(step, Multiply):
                multiply(tensors(step.rows), tensors(step.to), None if step.plus is None else tensors(step.plus), step)
            elif isinstance(step, Copy):
                with peers.using(streams[step.stream]):
                    for source, to in zip(tensors(step.source), tensors(step.to)):
                        to.copy_(source)
            elif isinstance(step, Add):
                add([tensors(part) for part in step.parts], tensors(step.to))
            else:
                memory.signal(streams[step.stream], slot, step, label)


def add(parts: Sequence[Tensors], to: Tensors) -> None:
    """Sums in the order of parts; floats of 16 bits are added up in f32 and rounded once."""
    for *terms, out in zip(*parts, to):
        if len(terms) == 2:
            torch.add(*terms, out=out)
            continue
        wide = torch.float32 if out.dtype in (torch.bfloat16, torch.float16) else out.dtype
        total = terms[0].to(wide, copy=True)
        for x in terms[1:]:
            total.add_(x)
        out.copy_(total)
