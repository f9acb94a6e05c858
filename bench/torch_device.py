"""tilewright.torch on one NVIDIA GPU: what calls of operators cost, and a decode step, beside torch's.

    python bench/torch_device.py [host] [decode] [--quick] [--kinds int4 ...] [--layers N] [--batch N] [--compiled]
                                 [--out FILE]

host     What a call of an operator costs the host.
decode   A decode step of a Llama-like model by layers with narrow weights, beside torch's in bf16. The model is 4096
         wide, 14336 between, with 32 heads on 8 of keys and a cache of 1024 positions, weights from a seed. A step is
         captured in a CUDA graph; the graphs of torch's model and of one kind of layers take turns. Logits are compared
         with those of the model with the same weights dequantised to bf16, by torch. The target of int4 is 2.5 of
         torch's bf16. --compiled: what is not a product by torch.compile, in both.

That operators and layers are right there is checked by `python -m pytest tests/torch/test_on_cuda.py`.
"""
from __future__ import annotations

import argparse
import copy
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch import nn

import tilewright as tw
import tilewright.torch as twt
from tilewright.lab.bench import study
from tilewright.lab.bench.gpu_device import TorchDevice

Tensor = Any
WIDTH, BETWEEN, HEADS, KV_HEADS, POSITIONS, VOCABULARY = 4096, 14336, 32, 8, 1024, 32000
KINDS = ("int4", "mxfp4", "int8", "fp8", "float")
BF16 = torch.bfloat16


class Replays(TorchDevice):
    """A device whose launches are graphs, which are launched one after the other instead of being captured: a step
    reads more weights than the L2 cache holds."""

    def graph(self, launches: Any) -> Callable[[], None]:
        return lambda: [launch() for launch in launches] and None


def host() -> dict[str, study.Launch]:
    """Calls of operators and layers, with few elements."""
    a, w, c = (torch.randn(n, 64, device="cuda", dtype=BF16) for n in (64, 64, 1))
    narrow = twt.convert(nn.Linear(1024, 512, device="cuda", dtype=BF16, bias=False), "int4")
    blocks = twt.convert(nn.Linear(1024, 512, device="cuda", dtype=BF16, bias=False), "mxfp4")
    plain = nn.Linear(1024, 512, device="cuda", dtype=BF16, bias=False)
    row = torch.randn(1, 1024, device="cuda", dtype=BF16)
    t, out = w.t(), torch.empty(64, 64, device="cuda", dtype=BF16)
    return {"torch.mm": partial(torch.mm, a, t), "tw.matmul": partial(tw.matmul, a, t),
            "tw.matmul with out": partial(tw.matmul, a, t, out),
            # as a user writes it: a new function object in every call
            "tw.contract": lambda: tw.contract(lambda x, y: (x - y)**2, a, t), "mm": partial(twt.mm, a, t),
            "F.linear": partial(F.linear, a, w, c[0]), "linear": partial(twt.linear, a, w, c[0]),
            "nn.Linear": partial(plain, row), "int4 layer": partial(narrow, row), "mxfp4 layer": partial(blocks, row)}


# ---- a decode step

class Layer(nn.Module):
    """One layer, for one new position of each sequence; keys and values of earlier ones are in a cache."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.head = WIDTH // HEADS
        self.qkv = nn.Linear(WIDTH, (HEADS + 2*KV_HEADS)*self.head, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2*BETWEEN, bias=False)
        self.down = nn.Linear(BETWEEN, WIDTH, bias=False)
        self.norms = nn.ParameterList(torch.ones(WIDTH) for _ in range(2))
        for name in ("keys", "values"):
            cache = torch.randn(batch, KV_HEADS, POSITIONS, self.head)*0.5
            self.register_buffer(name, cache, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        q, k, v = self.qkv(F.rms_norm(x, (WIDTH,), self.norms[0])).split(
            [HEADS*self.head, KV_HEADS*self.head, KV_HEADS*self.head], -1)
        for cache, new in (self.keys, k), (self.values, v):
            cache.select(2, POSITIONS - 1).copy_(new.view(batch, KV_HEADS, self.head))
        y = F.scaled_dot_product_attention(q.view(batch, HEADS, 1, self.head), self.keys, self.values, enable_gqa=True)
        x = x + self.out(y.reshape(batch, WIDTH))
        gate, up = self.gate_up(F.rms_norm(x, (WIDTH,), self.norms[1])).chunk(2, -1)
        return x + self.down(F.silu(gate)*up)


class Model(nn.Module):
    def __init__(self, layers: int, batch: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(batch) for _ in range(layers))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(F.rms_norm(x, (WIDTH,)))


def dequantized(net: nn.Module) -> nn.Module:
    """The weights in bf16 in layers of torch's."""
    for name, module in list(net.named_modules()):
        if hasattr(module, "dequantized"):
            plain = nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
            plain.weight = nn.Parameter(module.dequantized().to("cuda", BF16), requires_grad=False)
            parent, _, child = name.rpartition(".")
            setattr(net.get_submodule(parent), child, plain)
    return net


def captured(f: Callable[..., Tensor], *given: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """The graph of a call, and its result."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):      # plans, kernels and workspaces are made before the capture
            f(*given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = f(*given)
    return graph, result


def kernels_of(net: nn.Module, tokens: Tensor) -> dict[str, list[float]]:
    """By name, of a step's kernels: how many, and their microseconds altogether."""
    torch.cuda.synchronize()
    with torch.profiler.profile(acc_events=True, activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        net(tokens)
        torch.cuda.synchronize()
    counts: Counter[str] = Counter()
    micros: Counter[str] = Counter()
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            counts[event.name] += 1
            micros[event.name] += event.device_time
    return {name: [count, round(micros[name], 1)] for name, count in counts.most_common()}


def cases(asked: argparse.Namespace) -> Iterator[study.Case]:
    """A case for each kind of layers, whose graph takes turns with that of torch's own."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        base = Model(asked.layers, asked.batch).to(BF16).eval()
        tokens = torch.randint(0, VOCABULARY, (asked.batch,))

    def graph_of(net: nn.Module) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        for layer in net.layers if asked.compiled else ():
            layer.compile(fullgraph=True)
        graph, result = captured(net, tokens)
        graph.replay()
        return graph, result

    def case(kind: str) -> study.Case:
        net = twt.convert(copy.deepcopy(base), kind)
        found = net(tokens)
        like = wanted if kind == "float" else dequantized(copy.deepcopy(net))(tokens)
        wrong = study.near(found, like, 0.1 if kind == "fp8" else 0.03)
        graph, result = graph_of(net)
        wrong = wrong or study.near(result, found, 1e-2 if not asked.compiled else 0.03)
        about = {"kind": kind, "layers": asked.layers, "batch": asked.batch, "compiled": asked.compiled,
                 "kernels": {"torch": theirs, kind: kernels_of(net, tokens)}}
        return study.Case(about, {study.OURS: [graph.replay], "torch": [plain.replay]},
                          lambda side, _: wrong if side == study.OURS else "", {"kind": kind})

    wanted, own = base(tokens), copy.deepcopy(base) if asked.compiled else base
    plain, _ = graph_of(own)
    theirs = kernels_of(own, tokens)
    for kind in asked.kinds:
        try:
            yield case(kind)
        except Exception as error:
            why = study.failure(error)
            yield study.Case({"kind": kind}, {study.OURS: [int]}, lambda side, _, why=why: why)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", nargs="*", default=["host", "decode"], choices=["host", "decode"])
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="what is not a product by torch.compile")


if __name__ == "__main__":
    options, device = study.parsed(__doc__ or "", "torch_device.json", arguments), Replays()
    torch.set_grad_enabled(False)
    sys.exit(study.main("decode", cases(options) if "decode" in options.jobs else (), options, device,
                        host=("host", host()) if "host" in options.jobs else None))
