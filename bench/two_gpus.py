"""Products across the GPUs of one host beside NCCL and cuBLAS, in CUDA graphs; every result is checked first.

    torchrun --standalone --nproc-per-node 2 bench/two_gpus.py [JOB ...] [--json FILE] [--seconds S] [--every-plan]

    check       calls of random shapes in every form and dtype, beside float64; a graph that is replayed; a time-out
    parts       launches, copies and products alone, by which the model is fitted
    products    all_gather_matmul, matmul_reduce_scatter and matmul_all_reduce at 8192, 2048 and 512 rows, bf16 and fp8
    block       forward pass of a Llama's block with sequence parallelism: 4096 hidden, 14336, 32 heads
    experts     experts of a mixture behind an all-to-all

Sides take turns; a time is the larger of the ranks' medians, a ratio the median over rounds of torch's time over ours.
"""
from __future__ import annotations

import argparse
import faulthandler
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
import torch.nn.functional as F

import tilewright.torch as twt
import tilewright.torch.distributed as twd
from tilewright.lab.bench import results
from tilewright.torch.distributed import model, products
from tilewright.torch.distributed.peers import peers_of
from tilewright.torch.distributed.schedules import Await, Flag, Post

BF16, F8, I8 = torch.bfloat16, torch.float8_e4m3fn, torch.int8
DTYPES = {"bf16": BF16, "fp8": F8, "int8": I8}
RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
Call = Callable[[], Any]


def say(*words: object, sep: str = " ") -> None:
    if not RANK:
        print(*words, sep=sep, flush=True)


def captured(call: Call, count: int) -> Call:
    """So many calls in a row as a CUDA graph, after some without one."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(count):
            call()
    torch.cuda.synchronize()
    dist.barrier()
    return graph.replay


def interleaved(sides: dict[str, Call], seconds: float, count: int) -> dict[str, list[float]]:
    """Seconds of a call of each side in each round: of the slower rank."""
    word, times = torch.zeros(1, device="cuda"), {name: [] for name in sides}
    graphs = {name: captured(call, count) for name, call in sides.items()}
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    end, stop = time.monotonic() + seconds, torch.zeros(1, device="cuda")
    names, turn = list(graphs), 0
    while not stop.item():
        for name in names[turn:] + names[:turn]:
            graphs[name]()
            dist.all_reduce(word)                   # ranks begin together
            events[0].record()
            graphs[name]()
            events[1].record()
            torch.cuda.synchronize()
            times[name].append(events[0].elapsed_time(events[1]) / 1e3 / count)
        turn = (turn + 1) % len(names)
        stop.fill_(time.monotonic() > end and len(times[name]) >= 5)
        dist.all_reduce(stop, dist.ReduceOp.MAX)
    of_ranks: list[Any] = [None] * RANKS
    dist.all_gather_object(of_ranks, times)
    return {name: [max(x) for x in zip(*(each[name] for each in of_ranks))] for name in times}


def report(name: str, times: dict[str, list[float]], peer: str, rows: dict[str, Any], **more: Any) -> None:
    found = {side: statistics.median(x) for side, x in times.items()}
    ratios = {side: statistics.median(x / y for x, y in zip(times[peer], times[side])) for side in times}
    rows[name] = {"seconds": found, "ratios": ratios, "rounds": len(times[peer])} | more
    say(f"{name:34}", *[f"{side} {1e6*s:.1f} us" + (f" ({ratios[side]:.2f})" if side != peer else "")
                        for side, s in found.items()], *[f"{k}: {v}" for k, v in more.items()], sep="  ")


def near(x: torch.Tensor, wanted: torch.Tensor, tolerance: float, what: str) -> None:
    off = ((x.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-30)).item()
    if not off <= tolerance:
        raise AssertionError(f"rank {RANK}: {what} is off by {off:.3g}, more than {tolerance}")


# ---- products


def everywhere(x: torch.Tensor) -> torch.Tensor:
    return products.gathered(x, dist.group.WORLD)


class Case:
    """One product on this rank: operands, torch's way, ours by a plan, and a check."""

    def __init__(self, kind: str, m: int, n: int, k: int, dtype: torch.dtype) -> None:
        self.kind, self.narrow, on = kind, dtype == F8, "cuda"
        own, ranks = (m // RANKS, m)[kind != "gather"], RANKS
        torch.manual_seed(1000*RANK + m + n)
        n, k = (n // ranks, k) if kind == "gather" else (n, k // ranks)
        a, b = torch.randn(own, k, device=on), torch.randn(n, k, device=on)
        self.out_dtype = BF16 if self.narrow else None
        out = {F8: BF16, I8: torch.int32}.get(dtype, dtype)
        if dtype == I8:
            a, b = a * 32, b * 32
        self.scales: tuple[Any, Any] = (None, None)
        if self.narrow:
            self.a, s = twt.quantize_rows(a.to(BF16))
            self.b, t = twt.quantize_rows(b.to(BF16))
            self.b, self.scales = self.b.t(), (s, t.t())
        else:
            self.a, self.b = a.to(dtype), b.to(dtype).t()
        rows = m if kind != "scatter" else m // ranks
        self.result = torch.empty(rows, n, device=on, dtype=out)
        self.partial = torch.empty(m, n, device=on, dtype=self.result.dtype)
        self.all_rows = torch.empty(m, k, device=on, dtype=self.a.dtype)
        self.product = model.Product(m // ranks, n, k, self.a.itemsize, self.result.itemsize, ranks)

    def torchs(self, a: torch.Tensor, scale: Any, out: torch.Tensor) -> None:
        if self.a.dtype == I8:
            torch._int_mm(a, self.b, out=out)
        elif self.narrow:
            torch._scaled_mm(a, self.b, scale, self.scales[1], out_dtype=BF16, out=out)
        else:
            torch.mm(a, self.b, out=out)

    def peer(self) -> torch.Tensor:
        """NCCL and cuBLAS."""
        if self.kind == "gather":
            scale = self.scales[0]
            if scale is not None:
                scale = everywhere(scale)
            dist.all_gather_into_tensor(self.all_rows.view(torch.uint8), self.a.view(torch.uint8))
            self.torchs(self.all_rows, scale, self.result)
            return self.result
        self.torchs(self.a, self.scales[0], self.partial)
        if self.kind == "scatter":
            dist.reduce_scatter_tensor(self.result, self.partial)
            return self.result
        dist.all_reduce(self.partial)
        return self.partial

    def alone(self) -> None:
        self.torchs(self.all_rows if self.kind == "gather" else self.a,
                    self.scales[0] if self.kind != "gather" or not self.narrow else self.whole_scale, self.partial)

    def transfer(self) -> None:
        if self.kind == "gather":
            dist.all_gather_into_tensor(self.all_rows.view(torch.uint8), self.a.view(torch.uint8))
        elif self.kind == "scatter":
            dist.reduce_scatter_tensor(self.result, self.partial)
        else:
            dist.all_reduce(self.partial)

    def ours(self, plan: str = "") -> torch.Tensor:
        s, t = self.scales
        name = {"gather": "all_gather_matmul", "scatter": "matmul_reduce_scatter", "reduce": "matmul_all_reduce"}
        result: torch.Tensor = getattr(twd, name[self.kind])(self.a, self.b, scale_a=s, scale_b=t,
                                                             out_dtype=self.out_dtype, plan=plan)
        return result

    def by_cublas(self, plan: str) -> None:
        """Ours with torch's products."""
        before, products.multiply = products.multiply, cublas
        try:
            self.ours(plan)
        finally:
            products.multiply = before

    def check(self, call: Callable[[], torch.Tensor], what: str, tolerance: float = 8e-3) -> None:
        """64 rows beside float64, all others beside torch's."""
        wide = [x.double() * (1 if s is None else s.double()) for x, s in zip((self.a, self.b), self.scales)]
        if self.kind == "gather":
            rows = everywhere(wide[0])
            picked = torch.randperm(len(rows), device="cuda")[:64]
            wanted = rows[picked] @ wide[1]
        else:
            torch.manual_seed(5)
            picked = torch.randperm(len(self.a), device="cuda")[:64]
            wanted = wide[0][picked] @ wide[1]
            dist.all_reduce(wanted)
            if self.kind == "scatter":
                block = len(self.a) // RANKS
                mine = (picked // block) == RANK
                wanted, picked = wanted[mine], picked[mine] % block
        found, tolerance = call(), 0.0 if self.a.dtype == I8 else tolerance
        near(found[picked], wanted, tolerance, what)
        near(found, self.peer().clone(), 2*tolerance, f"{what} beside torch's")


def cublas(a: Any, b: Any, out: Any, scale_a: Any = None, scale_b: Any = None, plus: Any = None) -> None:
    if plus is None:
        torch.mm(a, b, out=out)
    else:
        torch.addmm(plus, a, b, out=out)


def run_products(asked: Any, rows: dict[str, Any]) -> None:
    for name in asked.dtypes.split(","):
        for kind in ("gather", "scatter", "reduce")[:3 if name == "bf16" else 2]:
            for m in (8192, 2048, 512):
                case = Case(kind, m, 8192, 8192, DTYPES[name])
                compared(f"{kind} {m} {name}", case, asked, rows)
                del case
                torch.cuda.empty_cache()


def compared(name: str, case: Case, asked: Any, rows: dict[str, Any]) -> None:
    case.whole_scale = everywhere(case.scales[0]) if case.narrow else None
    chosen = model.choose(case.kind, case.product)
    plans = [chosen]
    if asked.every_plan:
        plans = [x for x in model.candidates(case.kind) if x.form != "pair" and x.pieces < 4]
    sides: dict[str, Call] = {"torch": case.peer}
    for plan in plans:
        for _ in range(2):
            case.check(lambda plan=plan: case.ours(str(plan)), f"{name} by {plan}")
        sides[str(plan)] = lambda plan=plan: case.ours(str(plan))
    if asked.cublas and case.kind != "reduce":
        best = "pieces:2" if case.kind == "scatter" else "pieces"
        sides |= {f"{x} by cuBLAS": lambda x=x: case.by_cublas(x) for x in ("one", best)}
    if not asked.every_plan:
        sides |= {"product": case.alone, "transfer": case.transfer}
    times = interleaved(sides, asked.seconds, 2 if len(case.partial) > 4096 else 8)
    predicted = {str(x): round(1e6*model.seconds(case.kind, x, case.product), 1)
                 for x in [model.Plan("pair"), *plans]}
    report(name, times, "torch", rows, chosen=str(chosen), predicted=predicted)


# ---- a Llama's block


class Block:
    """Tensor parallelism with sequence parallelism: this rank has its rows of activations, and its part of the columns
    of wqkv and w13 and of the rows of wo and w2. 32 heads, 8 of keys and values."""

    HIDDEN, INNER, HEADS, KV, HEAD = 4096, 14336, 32, 8, 128

    def __init__(self) -> None:
        def weight(k: int, n: int) -> torch.Tensor:
            return (torch.randn(n, k, device="cuda") / k**0.5).to(BF16).t()
        torch.manual_seed(RANK)
        self.heads, self.kv = self.HEADS // RANKS, self.KV // RANKS
        self.wqkv = weight(self.HIDDEN, (self.heads + 2*self.kv) * self.HEAD)
        self.wo = weight(self.heads * self.HEAD, self.HIDDEN)
        self.w1, self.w3 = (weight(self.HIDDEN, self.INNER // RANKS) for _ in range(2))
        self.w2 = weight(self.INNER // RANKS, self.HIDDEN)
        torch.manual_seed(99)
        self.norms = [torch.rand(self.HIDDEN, device="cuda").to(BF16) + 0.5 for _ in range(2)]

    def attention(self, qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.unflatten(-1, (-1, self.HEAD)).transpose(0, 1)[None] for x in qkv.split(
            [n*self.HEAD for n in (self.heads, self.kv, self.kv)], -1))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1).flatten(1)

    def ours(self, x: torch.Tensor) -> torch.Tensor:
        qkv = twd.all_gather_matmul(F.rms_norm(x, x.shape[-1:], self.norms[0]), self.wqkv)
        x = x + twd.matmul_reduce_scatter(self.attention(qkv), self.wo)
        gate, up = twd.all_gather_matmul(F.rms_norm(x, x.shape[-1:], self.norms[1]), [self.w1, self.w3])
        return x + twd.matmul_reduce_scatter(F.silu(gate) * up, self.w2)

    def torchs(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.gathered(F.rms_norm(x, x.shape[-1:], self.norms[0])) @ self.wqkv
        x = x + self.scattered(self.attention(qkv) @ self.wo)
        rows = self.gathered(F.rms_norm(x, x.shape[-1:], self.norms[1]))
        return x + self.scattered((F.silu(rows @ self.w1) * (rows @ self.w3)) @ self.w2)

    @staticmethod
    def gathered(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(len(x) * RANKS, x.shape[1])
        dist.all_gather_into_tensor(out, x)
        return out

    @staticmethod
    def scattered(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(len(x) // RANKS, x.shape[1])
        dist.reduce_scatter_tensor(out, x)
        return out


@torch.no_grad()
def run_block(asked: Any, rows: dict[str, Any]) -> None:
    block = Block()
    for tokens in (8192, 4096, 1024):
        torch.manual_seed(RANK)
        x = torch.randn(tokens // RANKS, Block.HIDDEN, device="cuda").to(BF16)
        for _ in range(2):
            near(block.ours(x), block.torchs(x), 1e-2, f"a block of {tokens} tokens")
        sides = {"torch": lambda x=x: block.torchs(x), "tilewright": lambda x=x: block.ours(x)}
        report(f"block {tokens} tokens bf16", interleaved(sides, asked.seconds, 2), "torch", rows)


# ---- experts


@torch.no_grad()
def run_experts(asked: Any, rows: dict[str, Any]) -> None:
    """4096 tokens of each rank, two experts of 16 for each: 4096 x 4096 with a gate."""
    hidden, inner, experts, picked = 4096, 4096, 16, 2
    local = experts // RANKS
    for tokens in (4096, 1024):
        torch.manual_seed(3)
        shares = torch.rand(RANKS, experts) + 0.3
        table = [torch.bincount(torch.multinomial(row, tokens*picked, True), minlength=experts).tolist()
                 for row in shares]
        torch.manual_seed(RANK)
        x = torch.randn(tokens * picked, hidden, device="cuda").to(BF16)
        w13 = (torch.randn(local, 2*inner, hidden, device="cuda") / hidden**0.5).to(BF16).mT
        w2 = (torch.randn(local, hidden, inner, device="cuda") / inner**0.5).to(BF16).mT

        def work(rows: torch.Tensor, offs: torch.Tensor, w13: Any = w13, w2: Any = w2) -> torch.Tensor:
            gate, up = twt.grouped_mm(rows, w13, offs).chunk(2, -1)
            return twt.grouped_mm(F.silu(gate) * up, w2, offs)

        def torchs(rows: torch.Tensor, offs: torch.Tensor, w13: Any = w13, w2: Any = w2) -> torch.Tensor:
            gate, up = torch._grouped_mm(rows, w13, offs=offs).chunk(2, -1)
            return torch._grouped_mm(F.silu(gate) * up, w2, offs=offs)
        mine = [row[RANK*local:(RANK + 1)*local] for row in table]
        give = [sum(table[RANK][r*local:(r + 1)*local]) for r in range(RANKS)]
        take, order, begin = [sum(row) for row in mine], [[] for _ in range(local)], 0
        for row in mine:
            for expert, count in enumerate(row):
                order[expert] += range(begin, begin + count)
                begin += count
        index = torch.tensor([n for each in order for n in each], device="cuda")
        offs = torch.tensor([len(each) for each in order], device="cuda").cumsum(0).to(torch.int32)

        def peer(x: Any = x, give: Any = give, take: Any = take, index: Any = index, offs: Any = offs,
                 torchs: Any = torchs) -> torch.Tensor:
            received, back, out = (x.new_empty(n, hidden) for n in (sum(take), sum(take), len(x)))
            dist.all_to_all_single(received, x, take, give)
            back.index_copy_(0, index, torchs(received[index], offs))
            dist.all_to_all_single(out, back, give, take)
            return out
        sides: dict[str, Call] = {"torch": peer}
        for plan, how in (("pieces", work), ("pair", work)):
            sides[f"{plan}"] = lambda x=x, table=table, how=how, plan=plan: twd.apply_experts(x, table, how, plan=plan)
            for _ in range(2):
                near(sides[plan](), peer(), 1e-2, f"experts by {plan}")
        sides["pieces, torch's products"] = lambda x=x, table=table, torchs=torchs: twd.apply_experts(x, table, torchs)
        del sides["pair"]           # its index goes to the device in each call, which no graph records
        report(f"experts {tokens} tokens bf16", interleaved(sides, asked.seconds, 2), "torch", rows,
               rows_given=give, rows_taken=take)


# ---- parts, for the model


def run_parts(asked: Any, rows: dict[str, Any]) -> None:
    """Microseconds of each step, from CUDA graphs that hold it eight times."""
    on, group = torch.device("cuda", torch.cuda.current_device()), dist.group.WORLD
    peers = peers_of(group, on)
    memory, peer, side = peers.memory(1 << 27), (RANK + 1) % RANKS, peers.copies
    own, there = Flag("done", RANK, 7), Post(0, ((peer, Flag("done", RANK, 7)),))
    to_self, wait = Post(0, ((RANK, own),)), Await(0, (own,), (RANK,))
    across = Await(0, (Flag("done", peer, 7),), (peer,))
    turns = (there, across) if RANK % 2 == 0 else (across, there)       # a rank posts when the last one has been taken
    now = torch.cuda.current_stream

    def fork() -> None:
        side.wait_stream(now())
        with torch.cuda.stream(side):
            small.add_(1)
        now().wait_stream(side)
    small = torch.zeros(1, device=on)
    calls: dict[str, Call] = {
        "kernel of one element": lambda: small.add_(1), "the same on another stream": fork,
        "post and await here": lambda: (memory.signal(now(), 0, to_self, "x"), memory.signal(now(), 0, wait, "x")),
        "to the other GPU and back": lambda: [memory.signal(now(), 0, step, "x") for step in turns]}
    for size in (4096, 1 << 22, 1 << 26):
        source, to = torch.zeros(size, dtype=torch.uint8, device=on), memory.view(0, peer, 0, (1, size), torch.uint8)
        here = torch.empty_like(source)
        calls |= {f"copy of {size} there": lambda to=to, source=source: to[0].copy_(source),
                  f"copy of {size} here": lambda here=here, source=source: here.copy_(source)}
    for m in (4096, 2048, 512, 256):
        a, b = torch.randn(m, 4096, device=on).to(BF16), torch.randn(8192, 4096, device=on).to(BF16).t()
        c, plus = torch.zeros(m, 8192, device=on, dtype=BF16), torch.randn(m, 8192, device=on).to(BF16)
        to = memory.view(0, peer, 0, (m, 8192), BF16)
        ways = {"": lambda a=a, b=b, c=c: products.multiply(a, b, c),
                " plus": lambda a=a, b=b, c=c, plus=plus: products.multiply(a, b, c, plus=plus),
                " there": lambda a=a, b=b, to=to: products.multiply(a, b, to),
                " there plus": lambda a=a, b=b, to=to, plus=plus: products.multiply(a, b, to, plus=plus),
                " cuBLAS": lambda a=a, b=b, c=c: torch.mm(a, b, out=c),
                " cuBLAS in place": lambda a=a, b=b, c=c: c.addmm_(a, b)}
        calls |= {f"{m} x 8192 x 4096{name}": call for name, call in ways.items()}
    for name, call in calls.items():
        times = interleaved({"x": call}, 0.05, 8)["x"]
        rows[f"parts {name}"] = statistics.median(times)
        say(f"{name:40} {1e6*statistics.median(times):.2f} us")


# ---- random calls


def random_calls(seconds: float) -> Iterator[str]:
    """Random shapes, the same on all ranks, by all forms; integers are exact."""
    chosen, end, group = random.Random(7), time.monotonic() + seconds, dist.group.WORLD
    stop = torch.zeros(1, device="cuda")
    while True:
        stop.fill_(time.monotonic() > end)
        dist.all_reduce(stop, dist.ReduceOp.MAX)
        if stop.item():
            return
        kind = chosen.choice(["gather", "scatter", "reduce"])
        dtype = chosen.choice([BF16, BF16, torch.float16, torch.float32, torch.int8, F8])
        m, n, k = (chosen.choice([1, 2, 7, 16, 100, 128, 257, 512, 1024]) for _ in range(3))
        n, k = (n, k) if dtype not in (F8, torch.int8) else (16 * -(-n // 16), 16 * -(-k // 16))
        plan = chosen.choice(model.candidates(kind))
        own, extra = (m, 1) if kind == "gather" else (m * RANKS, 0)
        torch.manual_seed(RANK + chosen.randrange(10**6))
        a, b = torch.randn(own, k, device="cuda") * 8, torch.randn(k, n, device="cuda") * 8
        a, b = a.to(dtype), b.to(dtype)
        s = t = None
        if dtype == F8:
            s, t = torch.rand(own, 1, device="cuda") + 0.5, torch.rand(1, n, device="cuda") + 0.5
        wide_a, wide_b = a.double() * (1 if s is None else s), b.double() * (1 if t is None else t)
        options = {"scale_a": s, "scale_b": t, "out_dtype": BF16 if s is not None else None, "plan": str(plan)}
        name = {"gather": "all_gather_matmul", "scatter": "matmul_reduce_scatter", "reduce": "matmul_all_reduce"}[kind]
        found = getattr(twd, name)(a, b, **options)
        if extra:
            wanted = products.gathered(wide_a, group) @ wide_b
        else:
            wanted = wide_a @ wide_b
            dist.all_reduce(wanted)
            wanted = wanted[RANK*m:(RANK + 1)*m] if kind == "scatter" else wanted
        # roundings of partial sums count beside the sums of sizes
        tolerance = 0 if dtype == torch.int8 else 1e-5 if dtype == torch.float32 else 1e-2
        sizes = wide_a.abs() @ wide_b.abs()
        if not extra:
            dist.all_reduce(sizes)
        scale = max(1.0, (sizes.norm() / wanted.norm().clamp_min(1e-30)).item() / k**0.5)
        near(found, wanted, tolerance*scale, f"{name} of {m} x {n} x {k}, {dtype}, {plan}")
        yield f"{kind} {plan}"


def run_check(asked: Any, rows: dict[str, Any]) -> None:
    done: dict[str, int] = {}
    for what in random_calls(asked.seconds * 25):
        done[what] = done.get(what, 0) + 1
    say(f"check: {sum(done.values())} random calls, none wrong:", done)
    rows["check"] = done
    # inputs of a graph change between replays
    for kind in ("gather", "scatter", "reduce"):
        for plan in model.candidates(kind):
            case = Case(kind, 512, 256, 512, BF16)
            found: list[torch.Tensor] = []
            replay = captured(lambda case=case, plan=plan, found=found: found.append(case.ours(str(plan))), 3)
            for factor in (1, -0.5, 3):
                case.a.mul_(factor)
                replay()
                near(found[-1], case.peer(), 1e-2, f"a graph of {kind} by {plan}")
    say("check: replayed graphs follow their inputs")
    # gradients
    torch.manual_seed(RANK)
    x = torch.randn(96, 64, device="cuda", requires_grad=True)
    w, v = (torch.randn(*s, device="cuda", requires_grad=True) for s in ((64, 32), (32, 64)))
    twd.matmul_reduce_scatter(twd.all_gather_matmul(x, w), v).square().sum().backward()
    say("check: gradients", [round(t.grad.norm().item(), 2) for t in (x, w, v)])
    twd.set_timeout(2)
    torch.cuda.synchronize()
    dist.barrier()
    if RANK == 0:
        began = time.monotonic()
        try:
            case.ours("pieces:2")
            torch.cuda.synchronize()
            for _ in range(100):
                time.sleep(0.05)
            said = "nothing was raised"
        except twd.PeerTimeout as error:
            said = str(error)
        say(f"check: a rank that does not come, after {time.monotonic() - began:.1f} s: {said}")
        rows["time-out"] = said
    else:
        time.sleep(8)


JOBS: dict[str, Callable[[Any, dict[str, Any]], None]] = {"products": run_products, "block": run_block,
                                                          "experts": run_experts, "parts": run_parts,
                                                          "check": run_check}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each comparison")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which everything ends")
    parser.add_argument("--dtypes", default="bf16,fp8,int8")
    parser.add_argument("--every-plan", action="store_true")
    parser.add_argument("--cublas", action="store_true", help="of products: also our forms with torch's products")
    asked = results.options(parser, "json")
    faulthandler.dump_traceback_later(asked.limit, exit=True)
    twd.set_timeout(10)
    local = int(os.environ.get("LOCAL_RANK", RANK))
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    rows: dict[str, Any] = {}
    for job in asked.jobs:
        JOBS[job](asked, rows)
        if asked.json and not RANK:
            results.write({"gpu": torch.cuda.get_device_name(), "ranks": RANKS, "torch": torch.__version__,
                           "nccl": ".".join(map(str, torch.cuda.nccl.version())), "rows": rows}, asked.json)
    torch.cuda.synchronize()
    os._exit(0) if "check" in asked.jobs else dist.destroy_process_group()


if __name__ == "__main__":
    main()
