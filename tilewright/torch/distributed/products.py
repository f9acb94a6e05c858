"""Products of rows that ranks exchange, as operators of torch: tilewright::all_gather_matmul, matmul_reduce_scatter and
matmul_all_reduce.

On GPUs of one host, by symmetric memory, copies and products overlap (schedules.py), as the model chooses. On CPUs, and
where ranks have no memory of each other's, a collective of the group stands beside a product of tilewright.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

import tilewright
from tilewright.torch import narrow
from tilewright.torch.distributed import model
from tilewright.torch.distributed.model import Plan, Product
from tilewright.torch.distributed.peers import Peers, compare, peers_of
from tilewright.torch.distributed.run import Buffer, Landing, Tensors, add, run
from tilewright.torch.library import define
from tilewright.torch.ops import FP8, RESULTS, empty, result_dtype, rows_of

PLUS = lambda acc, plus: acc + plus         # noqa: E731
Group: TypeAlias = dist.ProcessGroup | None
_gather_bytes: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor    # names since torch 2.13
_scatter_sums: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


# ---- one product


def multiply(a: Tensor, b: Tensor, out: Tensor, scale_a: Tensor | None = None, scale_b: Tensor | None = None,
             plus: Tensor | None = None) -> None:
    """out = a @ b * scale_a * scale_b + plus, on sums before they are rounded."""
    if not a.is_cuda and scale_a is not None and scale_b is not None:
        sums = narrow._scaled_mm(a, b, scale_a, scale_b, None, out.dtype if plus is None else torch.float32)
        out.copy_(sums if plus is None else sums + plus)
        return
    options: dict[str, Any] = {}
    if scale_a is not None and scale_b is not None:
        options = {"scale_a": scale_a.expand(a.shape[0], 1), "scale_b": scale_b.expand(1, b.shape[1])}
    if a.dtype != out.dtype:
        options["out_dtype"] = RESULTS[out.dtype]
    if plus is not None and out.dtype.is_floating_point:        # C would be copied to the result first
        options |= {"epilogue": PLUS, "operands": {"plus": plus}}
    elif plus is not None:
        options |= {"c": plus, "beta": 1}
    tilewright.matmul(a, b, out, **options)


def checked(a: Tensor, b: Sequence[Tensor], scale_a: Tensor | None, scale_b: Sequence[Tensor],
            out_dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of results. TypeError and ValueError for operands that cannot be multiplied."""
    if not b:
        raise ValueError("b must have at least one matrix")
    if a.dim() < 2:
        raise ValueError(f"a must have 2 axes or more, but its shape is {tuple(a.shape)}")
    if (scale_a is None) != (not scale_b) or (scale_b and len(scale_b) != len(b)):
        raise ValueError("scale_a and a scale_b for each b must be given together")
    rows = a.shape[:-1].numel()
    for n, x in enumerate(b):
        if x.dim() != 2 or x.shape[0] != a.shape[-1]:
            raise ValueError(f"b must be [{a.shape[-1]}, n] beside a {tuple(a.shape)}, but its shape is "
                             f"{tuple(x.shape)}")
        if scale_a is not None:
            narrow._check_scaled(rows_of(a), x, scale_a, scale_b[n], None, out_dtype or torch.float32)
            if scale_a.shape[0] != rows:
                raise ValueError(f"scale_a must be one for each of {rows} rows, not {tuple(scale_a.shape)}")
    if scale_a is not None:
        return out_dtype or torch.float32
    usual = result_dtype(a=a, **{f"b{n}": x for n, x in enumerate(b)})
    usual = torch.int32 if usual == torch.int8 else usual
    if out_dtype not in (None, usual) and a.dtype not in (*FP8, torch.int8):
        raise TypeError(f"out_dtype must be {usual} for operands of {a.dtype}, not {out_dtype}")
    if out_dtype is not None and out_dtype not in RESULTS:
        raise TypeError(f"out_dtype must be one of {', '.join(map(str, RESULTS))}, not {out_dtype}")
    return out_dtype or usual


def group_of(name: str) -> dist.ProcessGroup:
    return distributed_c10d._resolve_process_group(name)


# ---- how a call runs


class _How(NamedTuple):
    plan: Plan
    peers: Peers | None


def reach(group: dist.ProcessGroup, device: torch.device) -> Peers | None:
    """The ranks of a group, if they have memory of each other's."""
    if device.type != "cuda":
        return None
    peers = peers_of(group, device)
    return peers if peers.together else None


SAID = 256                                      # bytes of what ranks tell each other of a call
_agreed: dict[str, tuple[dist.ProcessGroup, set[str]]] = {}


def agree_on_host(call: str, group: dist.ProcessGroup) -> None:
    """Peers.agree by a collective of the group: gloo ends a process that receives more than it expects."""
    known = _agreed.get(group.group_name)
    if known is None or known[0] is not group:
        known = _agreed[group.group_name] = group, set()
    if call not in known[1]:
        said = torch.tensor([*call.encode()[:SAID].ljust(SAID)], dtype=torch.uint8)
        heard = gathered(said.view(1, SAID), group)
        compare(group.rank(), call[:SAID], [bytes(x.tolist()).decode().rstrip() for x in heard])
        known[1].add(call)


def _how(kind: str, text: str, group: dist.ProcessGroup, p: Product, device: torch.device, call: str,
         more: str, uneven: bool = False) -> _How:
    """`call`: what must be equal on all ranks; `more`: what the model looks at, too, so that ranks choose one plan."""
    peers = None if group.size() == 1 or text == "pair" else reach(group, device)
    if peers is not None:
        peers.agree(f"{call}, {more}")
    elif device.type == "cpu":
        agree_on_host(call, group)
    if peers is None or not (p.rows and p.n and p.k):
        return _How(Plan("pair"), None)
    plan = model.parse(text, kind) if text else model.choose(kind, p, ("pair", "one") if uneven else model.FORMS)
    if uneven and plan.form not in ("pair", "one"):
        raise ValueError(f"plan must be pair or one for rows that are no multiple of {group.size()} ranks, not "
                         f"{text!r}")
    return _How(plan, None if plan.form == "pair" else peers)


def _bytes(x: Tensor) -> Tensor:
    """Its memory by rows; torch calls a tensor without elements contiguous, whatever its strides."""
    return (x.contiguous() if x.numel() else x.new_empty(x.shape)).view(torch.uint8)


def gathered(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Rows of all ranks, by the group's collective, whatever their dtype."""
    if group.size() == 1:
        return x
    out = x.new_empty(x.shape[0] * group.size(), *x.shape[1:])
    if out.numel():
        _gather_bytes(out.view(torch.uint8), _bytes(x), group=group)
    return out


def _sums(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of ranks' blocks of rows that are this rank's."""
    ranks = group.size()
    if ranks == 1 or not x.numel():
        return x[:len(x) // ranks]
    out = x.new_empty(len(x) // ranks, *x.shape[1:])
    if x.is_cuda:
        _scatter_sums(out, x, group=group)
        return out
    parts = torch.empty_like(x)                 # gloo adds no bf16: in the order of ranks, rounded once
    dist.all_to_all_single(parts.view(torch.uint8), _bytes(x), group=group)
    add([(part,) for part in parts.chunk(ranks)], (out,))
    return out


# ---- all_gather_matmul


def _gather(a: Tensor, b: Sequence[Tensor], scale_a: Tensor | None, scale_b: Sequence[Tensor],
            out_dtype: torch.dtype | None, group: str, plan: str, keep: bool) -> list[Tensor]:
    outs = _fake_gather(a, b, scale_a, scale_b, out_dtype, group, plan, keep)
    on, rows = group_of(group), rows_of(a)
    widths, (m, k) = [x.shape[1] for x in b], rows.shape
    product = Product(m, sum(widths), k, a.itemsize, outs[0].itemsize, on.size())
    how = _how("gather", plan, on, product, a.device,
               f"all_gather_matmul of {m} x {k} rows, {a.dtype}", f"and {widths} columns, {outs[0].dtype}")
    flat = [x.flatten(0, -2) for x in outs]

    def multiplied(given: Tensors, to: Tensors, plus: Tensors | None, step: Any = None) -> None:
        for n, (x, out) in enumerate(zip(b, to)):
            multiply(given[0], x, out, *((given[1], scale_b[n]) if scale_b else ()))
        if keep:
            to[-1].copy_(given[0])

    if how.peers is None:
        given = [gathered(x, on) for x in (rows, scale_a) if x is not None]
        multiplied(tuple(given), tuple(flat), None)
        return outs
    peers, (form, pieces) = how.peers, how.plan
    given = [x.contiguous() for x in (rows, scale_a) if x is not None]
    like = [(x.shape[1], x.dtype) for x in given]
    blocks = [m*rank for rank in range(peers.ranks + 1)]
    memory = peers.memory(Landing.size(like, blocks[-1]))
    slot = memory.next_slot()
    run(peers, memory, slot, "gather", form, pieces, {
        "rows": Buffer(given, blocks[:2], pieces), "result": Buffer(flat, blocks, pieces),
        "landing": Landing(memory, slot, 0, like, blocks, pieces)}, multiplied)
    return outs


def _fake_gather(a: Tensor, b: Sequence[Tensor], scale_a: Tensor | None, scale_b: Sequence[Tensor],
                 out_dtype: torch.dtype | None, group: str, plan: str, keep: bool) -> list[Tensor]:
    dtype, lead = checked(a, b, scale_a, scale_b, out_dtype), (group_of(group).size() * a.shape[0], *a.shape[1:-1])
    return [*[empty(a, *lead, x.shape[1], dtype=dtype) for x in b],
            *([empty(a, *lead, a.shape[-1], dtype=a.dtype)] if keep else [])]


gather_operator = define(
    "all_gather_matmul(Tensor a, Tensor[] b, Tensor? scale_a, Tensor[] scale_b, ScalarType? out_dtype, str group, "
    "str plan, bool keep) -> Tensor[]", _gather, _fake_gather)


# ---- matmul_reduce_scatter and matmul_all_reduce


def _reduced(kind: str, name: str, a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None, out: Tensor,
             group: str, plan: str) -> Tensor:
    on, rows, to = group_of(group), rows_of(a), out.flatten(0, -2)
    ranks, (m, k), n = on.size(), rows.shape, b.shape[1]
    product = Product(-(-m // ranks), n, k, a.itemsize, out.itemsize, ranks)
    how = _how(kind, plan, on, product, a.device, f"{name} of {m} rows and {n} columns, {out.dtype}",
               f"{a.dtype}, k = {k}", m % ranks > 0)

    def multiplied(given: Tensors, to: Tensors, plus: Tensors | None, step: Any = None) -> None:
        multiply(given[0], b, to[0], None if scale_b is None else given[1], scale_b, plus[0] if plus else None)

    given = [rows] if scale_a is None else [rows, scale_a]
    if how.peers is None:
        in_place = kind == "reduce" and a.is_cuda
        partial = to if in_place else empty(a, m, n, dtype=out.dtype)
        multiplied(tuple(given), (partial,), None)
        if kind == "scatter":
            to.copy_(_sums(partial, on))
        elif in_place:
            dist.all_reduce(to, group=on)
        elif partial.numel():
            add([(part,) for part in gathered(partial, on).chunk(ranks)], (to,))
        return out
    peers, (form, pieces) = how.peers, how.plan
    like, blocks = [(n, out.dtype)], [m // ranks * rank for rank in range(ranks)] + [m]
    size, starts = Landing.size(like, m), [m*rank for rank in range(ranks + 1)]
    memory = peers.memory(size if kind == "scatter" else Landing.size(like, starts[-1]) if form == "one" else 2*size)
    slot = memory.next_slot()
    buffers: dict[str, Buffer | Landing] = {
        "rows": Buffer(given, blocks, pieces),
        "result": Buffer([to], blocks if kind == "reduce" else [0, m // ranks], pieces)}
    if form != "stores":
        buffers["partial"] = Buffer([empty(a, m, n, dtype=out.dtype)], blocks, pieces)
    buffers["landing"] = Landing(memory, slot, 0, like, blocks, pieces)
    buffers["whole"] = Landing(memory, slot, 0, like, starts, pieces)
    buffers["final"] = Landing(memory, slot, size, like, blocks, pieces)
    run(peers, memory, slot, kind, form, pieces, buffers, multiplied)
    return out


def _scatter(a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None, out_dtype: torch.dtype | None,
             group: str, plan: str) -> Tensor:
    out = _fake_scatter(a, b, scale_a, scale_b, out_dtype, group, plan)
    return _reduced("scatter", "matmul_reduce_scatter", a, b, scale_a, scale_b, out, group, plan)


def _fake_scatter(a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None,
                  out_dtype: torch.dtype | None, group: str, plan: str) -> Tensor:
    dtype = checked(a, [b], scale_a, [] if scale_b is None else [scale_b], out_dtype)
    ranks = group_of(group).size()
    if a.shape[0] % ranks:
        raise ValueError(f"a must have a multiple of {ranks} rows along its first axis, one part for each rank, but "
                         f"its shape is {tuple(a.shape)}")
    return empty(a, a.shape[0] // ranks, *a.shape[1:-1], b.shape[1], dtype=dtype)


def _all(a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None, out_dtype: torch.dtype | None,
         group: str, plan: str) -> Tensor:
    out = _fake_all(a, b, scale_a, scale_b, out_dtype, group, plan)
    return _reduced("reduce", "matmul_all_reduce", a, b, scale_a, scale_b, out, group, plan)


def _fake_all(a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None, out_dtype: torch.dtype | None,
              group: str, plan: str) -> Tensor:
    dtype = checked(a, [b], scale_a, [] if scale_b is None else [scale_b], out_dtype)
    return empty(a, *a.shape[:-1], b.shape[1], dtype=dtype)


_ARGUMENTS = ("(Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, ScalarType? out_dtype, str group, str plan) "
              "-> Tensor")
scatter_operator = define(f"matmul_reduce_scatter{_ARGUMENTS}", _scatter, _fake_scatter)
all_operator = define(f"matmul_all_reduce{_ARGUMENTS}", _all, _fake_all)
