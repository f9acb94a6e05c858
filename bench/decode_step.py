"""A decode step of a Llama-like model by tilewright.torch's layers, beside torch's in bf16: for bench/torch_device.py.

The model is 4096 wide, 14336 between, with 32 heads on 8 of keys and a cache of 1024 positions, weights from a seed. A
step is captured in a CUDA graph; the graphs of torch's model and of one kind of layers take turns. Logits are compared
with those of the model with the same weights dequantised to bf16, by torch. The target of int4 is 2.5 of torch's bf16.
"""
from __future__ import annotations

import copy
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import tilewright.torch as twt
from tilewright.lab.bench import study
from tilewright.lab.bench.gpu_device import TorchDevice
from tilewright.lab.measure.gpu_rules import GpuRules, GraphTrack
from tilewright.lab.measure.measure import interleave, ratios, spread

Tensor = Any
WIDTH, BETWEEN, HEADS, KV_HEADS, POSITIONS, VOCABULARY = 4096, 14336, 32, 8, 1024, 32000
KINDS = ("int4", "mxfp4", "int8", "fp8", "float")
TARGET = {"int4": 2.5}
BF16 = torch.bfloat16


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
    """The same weights in bf16 in layers of torch's."""
    for name, module in list(net.named_modules()):
        if hasattr(module, "dequantized"):
            plain = nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
            plain.weight = nn.Parameter(module.dequantized().to("cuda", BF16), requires_grad=False)
            parent, _, child = name.rpartition(".")
            setattr(net.get_submodule(parent), child, plain)
    return net


# ---- the step


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


def decode(on: TorchDevice, layers: int, batch: int, rules: GpuRules, kinds: tuple[str, ...] = KINDS,
           compiled: bool = False) -> Iterator[dict[str, Any]]:
    """The report so far, after each kind. `compiled`: all but the products by torch.compile, in both models."""
    torch.manual_seed(0)
    with torch.device("cuda"), torch.no_grad():
        base = Model(layers, batch).to(BF16).eval().requires_grad_(False)
        tokens = torch.randint(0, VOCABULARY, (batch,))
    report: dict[str, Any] = {"layers": layers, "batch": batch, "compiled": compiled, "failed": {}, "seconds": {},
                              "kernels": {}}

    def graph_of(net: nn.Module) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        if compiled:
            for layer in net.layers:
                layer.compile(fullgraph=True)
        graph, result = captured(net, tokens)
        graph.replay()
        return graph, result

    def checked(kind: str, net: nn.Module) -> tuple[torch.cuda.CUDAGraph, str]:
        """The step's graph, and what is wrong with its logits."""
        if kind != "torch":
            twt.convert(net, kind)
        found = net(tokens)
        like = wanted if kind in ("torch", "float") else dequantized(copy.deepcopy(net))(tokens)
        wrong = study.near(found, like, 0.1 if kind == "fp8" else 0.03)
        graph, result = graph_of(net)
        report["kernels"][kind] = kernels_of(net, tokens)
        return graph, wrong or study.near(result, found, 1e-2 if not compiled else 0.03)

    with torch.no_grad():
        wanted = base(tokens)
        theirs = copy.deepcopy(base) if compiled else base
        plain, _ = graph_of(theirs)
        report["kernels"]["torch"] = kernels_of(theirs, tokens)
        for kind in kinds:
            try:
                graph, wrong = checked(kind, copy.deepcopy(base))
            except Exception as error:
                wrong = study.failure(error)
            if wrong:
                report["failed"][kind] = wrong
            else:
                # a step is a graph already, and reads more weights than the L2 cache holds: replays follow each other
                timed = interleave({"torch": [(plain.replay, ())], kind: [(graph.replay, ())]}, rules,
                                   track=lambda calls: GraphTrack(Replays(on), [call for call, _ in calls]))
                report["seconds"][kind] = {name: list(sample.seconds) for name, sample in timed.items()}
            graph = None                        # the next model has its memory
            torch.cuda.empty_cache()
            yield report


def described(report: dict[str, Any], kind: str) -> str:
    """What came of a kind, in a line."""
    if kind in report["failed"]:
        return f"decode: {kind:6} {report['failed'][kind]}"
    seconds = report["seconds"][kind]
    ours, theirs = (statistics.median(seconds[side])*1e6 for side in (kind, "torch"))
    target = f" (target {TARGET[kind]})" if kind in TARGET else ""
    ratio = spread(ratios(seconds["torch"], seconds[kind])).median
    return f"decode: {kind:6} {ours:8.1f} us, {ratio:.2f} of torch's bf16 with {theirs:8.1f}{target}"


class Replays:
    """A device whose launches are graphs, which are launched one after the other instead of being captured."""

    def __init__(self, on: TorchDevice) -> None:
        self.mark, self.seconds, self.flush = on.mark, on.seconds, on.flush

    def graph(self, launches: Any) -> Callable[[], None]:
        return lambda: [launch() for launch in launches] and None
