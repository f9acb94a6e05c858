"""What the processes of test_two_ranks.py do: each function is called on all ranks at once."""

from __future__ import annotations

import copy
import gc
import os
import traceback
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import tilewright.torch as twt
import tilewright.torch.distributed as twd

BF16, F8 = torch.bfloat16, torch.float8_e4m3fn
DEAR = "TILEWRIGHT_DEAR_TESTS" in os.environ        # more formats and kinds of layers, which are compiled for seconds


def serve(rank, ranks, path, pipe):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks)
    while (name := pipe.recv()) is not None:
        try:
            CHECKS[name](rank, ranks)
            pipe.send(None)
        except BaseException:
            pipe.send(traceback.format_exc())
        gc.collect()
    dist.destroy_process_group()


def everyone(x):
    """A tensor of each rank."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return parts


def near(x, wanted, tolerance=1e-5):
    assert x.shape == wanted.shape, (x.shape, wanted.shape)
    off = (x.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-30)
    assert off <= tolerance, off


def products(rank, ranks):
    torch.manual_seed(rank)
    for dtype, tolerance in ((torch.float64, 1e-14), *[(BF16, 8e-3), (torch.int8, 0), (torch.float16, 1e-3)]*DEAR):
        a, b = torch.randn(6, 3, 16)*9, torch.randn(16, 8)*9
        a, b = a.to(dtype), b.to(dtype)
        wide = a.double() @ b.double()
        total = sum(everyone(wide))
        near(twd.all_gather_matmul(a, b), torch.cat(everyone(a.double())) @ b.double(), tolerance)
        near(twd.matmul_reduce_scatter(a, b), total.chunk(ranks)[rank], tolerance)
        near(twd.matmul_all_reduce(a, b), total, tolerance)
    a, b = a.to(F8), b.to(F8)
    s, t = torch.rand(18, 1) + 0.5, torch.rand(1, 8) + 0.5
    found = twd.all_gather_matmul(a, [b, b], scale_a=s, scale_b=[t, t], out_dtype=BF16)
    wanted = torch.cat(everyone(a.double() * s.view(6, 3, 1))) @ (b.double() * t)
    for x in found:
        assert x.dtype == BF16
        near(x, wanted, 8e-3)
    for m, k, n in ((0, 4, 3), (2, 0, 3), (2, 4, 0)):
        a, b = torch.randn(m, k), torch.randn(k, n)
        assert twd.all_gather_matmul(a, b).tolist() == (torch.cat(everyone(a)) @ b).tolist()
        assert twd.matmul_all_reduce(a, b).shape == (m, n)
        assert twd.matmul_reduce_scatter(a, b).shape == (m // 2, n)


def gradients(rank, ranks):
    torch.manual_seed(rank)
    x, w1, w2, v = (torch.randn(*shape, dtype=torch.float64, requires_grad=True)
                    for shape in ((4, 2, 5), (5, 3), (5, 3), (3, 5)))

    def ours(x, w1, w2, v):
        y, z = twd.all_gather_matmul(x, [w1, w2])
        return twd.matmul_reduce_scatter(y.tanh() * z, v)
    found = torch.autograd.grad(ours(x, w1, w2, v).square().sum(), (x, w1, w2, v))
    whole = [everyone(t.detach()) for t in (x, w1, w2, v)]
    leaves = [[t.requires_grad_() for t in each] for each in whole]
    rows = torch.cat(leaves[0])
    total = sum((rows @ a).tanh() * (rows @ b) @ c for _, a, b, c in zip(*leaves))
    total.square().sum().backward()
    for got, each in zip(found, leaves):
        near(got, each[rank].grad, 1e-12)
    v = v.detach().requires_grad_()
    y = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    got = torch.autograd.grad(twd.matmul_all_reduce(y, v).square().sum(), (y, v))
    g = 2 * sum(everyone((y @ v).detach()))
    near(got[0], g @ v.detach().t(), 1e-12)
    near(got[1], y.detach().t() @ g, 1e-12)
    with pytest.raises(RuntimeError, match="backward"):
        twd.all_gather_matmul(torch.randn(2, 2).to(F8).requires_grad_(), torch.randn(2, 2).to(F8))


def compiled(rank, ranks):
    x, w = torch.randn(4, 6), torch.randn(6, 3)
    f = torch.compile(lambda x, w: twd.all_gather_matmul(x, w) + 1, fullgraph=True, backend="aot_eager")
    near(f(x, w), twd.all_gather_matmul(x, w) + 1)


class Mlp(nn.Module):
    def __init__(self, activation="none"):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(32), twt.Linear(32, 64, activation=activation)
        self.down = twt.Linear(64, 32)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)))


def counted(function, *given):
    """A result, and the names of collectives that ran."""
    with CommDebugMode() as mode:
        result = function(*given)
    return result, {str(name).split(".")[-1].strip("')>"): count for name, count in mode.get_comm_counts().items()}


def layers(rank, ranks):
    """Columns, then rows: one all-reduce forward, one backward, and no gather."""
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)
    for activation in ("gelu", *["none", "relu"]*DEAR):
        plain = Mlp(activation)
        split = parallelize_module(copy.deepcopy(plain), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        x = torch.randn(2, 6, 32)
        y, collectives = counted(split, x)
        near(y, plain(x))
        assert collectives == {"all_reduce": 1}, collectives
        _, collectives = counted(y.square().sum().backward)
        assert collectives == {"all_reduce": 1}, collectives
        plain(x).square().sum().backward()
        for p, q in zip(split.parameters(), plain.parameters()):
            near(p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad, q.grad)


def sequence(rank, ranks):
    """Rows of activations are gathered and scattered, weights are not."""
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)
    plain = Mlp("silu")
    split = parallelize_module(copy.deepcopy(plain), mesh, {
        "norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1))})
    x = torch.randn(2, 6, 32)
    y, collectives = counted(split, x.chunk(ranks, 1)[rank])
    near(y, plain(x).chunk(ranks, 1)[rank])
    assert collectives == {"all_gather_into_tensor": 1, "reduce_scatter_tensor": 1}, collectives
    y.square().sum().backward()
    assert split.up.weight.grad.placements == (Shard(0),)
    plain(x).square().sum().backward()
    for out in (Shard(1), Replicate()):
        copied = copy.deepcopy(plain)
        copied.zero_grad()
        fused = parallelize_module(copied, mesh, {
            "norm": SequenceParallel(use_local_output=True),
            "up": twd.ColwiseParallel(input_layouts=Shard(1), overlap=True),
            "down": twd.RowwiseParallel(output_layouts=out, overlap=True)})
        if out == Replicate():
            y, collectives = counted(lambda x, net=fused: net.down(net.up(net.norm(x))), x.chunk(ranks, 1)[rank])
            near(y, plain.down(plain.up(plain.norm(x))))
            continue
        y, collectives = counted(fused, x.chunk(ranks, 1)[rank])
        near(y, plain(x).chunk(ranks, 1)[rank])
        y.square().sum().backward()
        for p, q, r in zip(fused.parameters(), plain.parameters(), split.parameters()):
            near(p.grad.full_tensor(), q.grad)
            near(p.grad.full_tensor(), r.grad.full_tensor())


def narrow(rank, ranks):
    """Layers of few bits, split: what is dequantised is the same, and no weight moves."""
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)
    kinds = [("int4", {"group": 16, "zero_points": True})]
    for kind, options in kinds + [("fp8", {}), ("int8", {}), ("mxfp4", {})]*DEAR:
        plain = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64, bias=False))
        plain = twt.convert(plain.eval(), kind, **options)
        styles = {"0": twd.ColwiseParallel(), "1": twd.RowwiseParallel()}
        if kind == "int4":
            styles = {"0": twd.RowwiseParallel(input_layouts=Replicate()),
                      "1": twd.ColwiseParallel(output_layouts=Replicate())}
        split = parallelize_module(copy.deepcopy(plain), mesh, styles)
        x = torch.randn(5, 64)
        with torch.no_grad():
            y, collectives = counted(split, x)
            near(y, plain(x), 0.05 if kind == "fp8" else 1e-5)
        assert "all_reduce" in collectives, collectives
        assert not any("scatter" in name for name in collectives), collectives
        parts = split[0].weight if kind == "fp8" else split[0].elements
        assert parts.to_local().numel() * ranks == parts.numel()
    with pytest.raises(ValueError, match="multiple of 64"):
        parallelize_module(twt.convert(nn.Sequential(nn.Linear(48, 8)), "mxfp4"), mesh, {"0": twd.RowwiseParallel()})


def rules(rank, ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)

    def spread(x, axis):
        return distribute_tensor(x, mesh, [Replicate() if axis is None else Shard(axis)])
    offs = torch.tensor([2, 4, 6, 8], dtype=torch.int32)
    a, b, e, c = torch.randn(8, 6), torch.randn(6, 4), torch.randn(4, 6, 8), torch.randn(1, 4)
    for function, given, axes in (
            (twt.mm, (a, b), (1, 0)), (twt.mm, (a, b), (0, None)), (twt.matmul, (e, e.mT.contiguous()), (0, 0)),
            (twt.bmm, (e, e.mT.contiguous()), (2, 1)), (twt.addmm, (c, a, b), (None, None, 1)),
            (twt.addmm, (c, a, b), (None, 1, 0)), (lambda a, b: twt.einsum("ij,jk->ik", a, b), (a, b), (1, 0)),
            (twt.grouped_mm, (a, e, offs), (None, 2, None)), (twt.grouped_mm, (a, e, offs), (1, 1, None)),
            (lambda a: twt.quantize_rows(a)[1], (a,), (0,)),
            (lambda a, b: twt.scaled_mm(a.to(torch.int8), b.to(torch.int8), a[:, :1].float(), b[:1].float()),
             (a, b), (0, None))):
        found, collectives = counted(function, *map(spread, given, axes))
        assert not collectives, (function, collectives)
        near(found.full_tensor(), function(*given))


def fsdp(rank, ranks):
    """Training by FSDP2 is that of one process on both halves of the batch; narrow layers run as they are."""
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)
    plain = nn.Sequential(Mlp("gelu"), Mlp())
    model = copy.deepcopy(plain)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    x = torch.randn(4, 32)
    for net, given in ((plain, x), (model, x.chunk(ranks)[rank])):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            net(given).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    for p, q in zip(model.parameters(), plain.parameters()):
        near(p.full_tensor(), q)
    converted = twt.convert(nn.Sequential(nn.Linear(32, 32)), "int8")
    wanted = converted(x)
    near(fully_shard(nn.Sequential(converted, nn.Linear(32, 8)), mesh=mesh)[0](x), wanted)


def experts(rank, ranks):
    torch.manual_seed(rank)
    local, k, h = 2, 6, 10
    counts = torch.tensor([[3, 0, 2, 4], [1, 5, 0, 2]][rank])
    rows = torch.randn(int(counts.sum()), k, dtype=torch.float64, requires_grad=True)
    up, down = (torch.randn(local, *shape, dtype=torch.float64, requires_grad=True) for shape in ((k, h), (h, k)))

    def work(x, offs):
        return twt.grouped_mm(twt.grouped_mm(x, up, offs).tanh(), down, offs)
    y = twd.apply_experts(rows, counts, work)
    ups, downs = (torch.cat(everyone(x.detach())).requires_grad_() for x in (up, down))
    expert = torch.repeat_interleave(torch.arange(ranks*local), counts)
    mine = rows.detach().requires_grad_()
    wanted = torch.einsum("th,thk->tk", torch.einsum("tk,tkh->th", mine, ups[expert]).tanh(), downs[expert])
    near(y, wanted, 1e-12)
    y.square().sum().backward()
    wanted.square().sum().backward()
    near(rows.grad, mine.grad, 1e-12)
    for got, whole in ((up, ups), (down, downs)):
        total = whole.grad.clone()
        dist.all_reduce(total)
        near(got.grad, total.chunk(ranks)[rank], 1e-12)
    again = twd.apply_experts(rows.detach(), [[3, 0, 2, 4], [1, 5, 0, 2]], lambda x, offs: x[:, :1] * 2, width=1)
    near(again, rows[:, :1] * 2, 0)
    nothing = rows.detach()[:, :0][:, ::2]      # contiguous, says torch, with strides that bytes cannot have
    assert twd.apply_experts(nothing, counts, lambda x, offs: x).shape == nothing.shape


def errors(rank, ranks):
    a, b = torch.randn(3, 4), torch.randn(4, 2)
    for error, words, call in (
            (ValueError, "multiple of 2 rows", lambda: twd.matmul_reduce_scatter(a, b)),
            (ValueError, r"b must be \[4, n\]", lambda: twd.all_gather_matmul(a, b.t())),
            (ValueError, "2 axes or more", lambda: twd.all_gather_matmul(a[0], b)),
            (ValueError, "at least one", lambda: twd.all_gather_matmul(a, [])),
            (TypeError, "one dtype", lambda: twd.matmul_all_reduce(a, b.double())),
            (TypeError, "out_dtype must be", lambda: twd.matmul_all_reduce(a, b, out_dtype=BF16)),
            (ValueError, "given together", lambda: twd.all_gather_matmul(a, b, scale_a=torch.ones(3, 1))),
            (ValueError, "rows must be", lambda: twd.apply_experts(a, [[1, 0], [2, 0]], None)),
            (ValueError, "equally many", lambda: twd.apply_experts(a, [[1], [2, 0]], None)),
            (ValueError, "same call .* of [34] x 4 rows", lambda: twd.all_gather_matmul(torch.ones(3 + rank, 4), b)),
            (ValueError, "same call", lambda: twd.matmul_all_reduce(a, torch.ones(4, 2 + rank))),
            (ValueError, "same call", lambda: twd.matmul_reduce_scatter(torch.ones(2 + 2*rank, 4), b)),
            (ValueError, "same call .* of [24] experts", lambda: twd.apply_experts(a, torch.ones(2 + 2*rank, dtype=int),
                                                                                   None)),
            (ValueError, "seconds must be positive", lambda: twd.set_timeout(0))):
        with pytest.raises(error, match=words):
            call()


CHECKS = {f.__name__: f for f in (
    *[products, compiled]*DEAR, gradients, layers, sequence, narrow, rules, fsdp, experts, errors)}
