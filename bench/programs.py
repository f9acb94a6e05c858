"""Models of the transformers library on one NVIDIA GPU: by tilewright's layers, beside the same model of torch in bf16.

    python bench/programs.py [--jobs JOB,...] [--kinds KIND,...] [--layers N] [--quick] [--out FILE]

A job is all cases whose names begin with these words, "llama prefill" or "train", say; without one it is every case:

    host                    what a call of a layer costs the host, eager, 1 row
    layer ROWS              a layer of 14336 x 4096, eager: its time with the host's; "kernel ROWS": six in a CUDA graph
    llama prefill LENGTH    logits of one sequence, eager
    llama decode BATCH      one new position of BATCH sequences by a static cache of 1024 positions, in a CUDA graph;
                            "llama compiled BATCH": by torch.compile before that, on both sides
    qwen-moe, bert, vit     the same of a Qwen3 with 128 experts; one batch through a BERT and a ViT, eager
    train MODEL             forward, backward and the step of SGD, bf16; "train compiled MODEL"
    experts TOKENS          the experts' products and gate of a Mixtral's layer, 8 of them and 2 for a token, in a CUDA
                            graph, beside torch._grouped_mm and torch.mm for each expert, whose sizes are known there

Layers and models of int4, int8 and fp8 stand beside those of torchao and bitsandbytes, too, where they are installed.
Models have the published sizes, fewer layers, and random weights. Results are compared with those of torch by the same
weights, dequantised to bf16; losses and gradients with torch's.
"""
from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch import nn

import tilewright as tw
import tilewright.torch as twt
from tilewright.formats.scaled import Nibbles
from tilewright.lab.bench import study
from tilewright.lab.bench.gpu_device import TorchDevice

Tensor = Any
GPU, BF16, POSITIONS, VOCABULARY = torch.device("cuda"), torch.bfloat16, 1024, 32000
KINDS = "float", "int4", "int8", "fp8", "mxfp4"
LIMITS = {"fp8": 0.25}          # of a model, else 0.03: last bits choose between neighbours in fp8, layer by layer


class InTurn(TorchDevice):
    """A device whose launches follow each other from Python, so that the host's time counts; a CUDA graph is one."""

    def graph(self, launches: Any) -> Callable[[], None]:
        return lambda: [launch() for launch in launches] and None


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device=GPU, dtype=BF16)


# ---- models

def language(kind: str, layers: int, **sizes: int) -> nn.Module:
    """A Llama 3 of 8B or a Qwen 3 of 30B-A3B, with fewer layers."""
    import transformers
    common = {"num_hidden_layers": layers, "vocab_size": VOCABULARY, "num_attention_heads": 32,
              "max_position_embeddings": 8192, "tie_word_embeddings": False}
    if kind == "llama":
        usual = {"hidden_size": 4096, "intermediate_size": 14336, "num_key_value_heads": 8}
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**common | usual | sizes))
    config = transformers.Qwen3MoeConfig(**common, hidden_size=2048, head_dim=128, num_key_value_heads=4,
                                         num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768)
    transformers.integrations.moe.ALL_EXPERTS_FUNCTIONS.register("tilewright", experts_forward)
    config._experts_implementation = "grouped_mm"
    return transformers.Qwen3MoeForCausalLM(config)


def encoder(kind: str, layers: int) -> nn.Module:
    """A BERT or ViT, large, with fewer layers, without dropout."""
    import transformers
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": layers}
    if kind == "bert":
        return transformers.BertModel(transformers.BertConfig(
            **sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    return transformers.ViTModel(transformers.ViTConfig(**sizes))


def experts_forward(self: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The experts of transformers' mixtures by twt.grouped_mm: rows of x [tokens, width] by those `chosen` for them."""
    order = chosen.flatten().argsort(stable=True)
    ends = F.one_hot(chosen.flatten(), self.num_experts).sum(0).cumsum(0).to(torch.int32)
    rows = twt.grouped_mm(x[order // chosen.shape[1]], self.gate_up_proj.transpose(1, 2), ends)
    rows = twt.grouped_mm(self._apply_gate(rows), self.down_proj.transpose(1, 2), ends)
    rows = (rows * weights.flatten()[order, None]).to(x.dtype)
    return torch.zeros_like(x).index_add_(0, order // chosen.shape[1], rows)


class RowsInFp8(nn.Linear):
    """torch's layer of activations that are rounded as Fp8Linear does."""

    def forward(self, x: Tensor) -> Tensor:
        scales = x.abs().amax(-1, keepdim=True).float() / 448
        return F.linear(((x / scales).to(torch.float8_e4m3fn).float()*scales).to(x.dtype), self.weight, self.bias)


def dequantized(net: nn.Module) -> nn.Module:
    """The weights in bf16 in layers of torch's."""
    for name, module in list(net.named_modules()):
        if hasattr(module, "dequantized"):
            layer = RowsInFp8 if isinstance(module, twt.Fp8Linear) else nn.Linear
            plain = layer(module.in_features, module.out_features, bias=module.bias is not None, device="meta")
            plain.weight = nn.Parameter(module.dequantized().to(BF16), requires_grad=False)
            plain.bias = None if module.bias is None else nn.Parameter(module.bias, requires_grad=False)
            parent, _, child = name.rpartition(".")
            setattr(net.get_submodule(parent), child, plain)
    return net


def packaged(kind: str, net: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Copies of a model of torch's with weights of this kind by libraries for it, as far as they are installed: groups
    of 128 in int4 (bitsandbytes: nf4, of 64), int8 and fp8 by outputs."""
    if kind in ("int4", "int8", "fp8") and importlib.util.find_spec("torchao"):
        from torchao import quantization as ao
        from torchao.quantization.quantize_.workflows import Int4PackingFormat
        config: Any = {
            "int4": lambda: ao.Int4WeightOnlyConfig(128, int4_packing_format=Int4PackingFormat.TILE_PACKED_TO_4D),
            "int8": ao.Int8WeightOnlyConfig,
            "fp8": lambda: ao.Float8DynamicActivationFloat8WeightConfig(granularity=ao.PerRow())}[kind]()
        other = copy.deepcopy(net)
        ao.quantize_(other, config)
        yield "torchao", other
    if kind in ("int4", "int8") and importlib.util.find_spec("bitsandbytes"):
        import bitsandbytes as bnb

        def layer(x: nn.Linear) -> nn.Module:
            if kind == "int4":
                found = bnb.nn.Linear4bit(x.in_features, x.out_features, False, BF16, quant_type="nf4", device="meta")
                found.weight = bnb.nn.Params4bit(x.weight.data, requires_grad=False, quant_type="nf4", module=found)
            else:
                found = bnb.nn.Linear8bitLt(x.in_features, x.out_features, False, has_fp16_weights=False, device="meta")
                found.weight = bnb.nn.Int8Params(x.weight.data, requires_grad=False, has_fp16_weights=False)
            return found.to(GPU)
        other = nn.Sequential(copy.deepcopy(net))
        for name, x in [(name, x) for name, x in other.named_modules() if isinstance(x, nn.Linear)]:
            parent, _, child = name.rpartition(".")
            setattr(other.get_submodule(parent), child, layer(x.to("cpu")))
        yield "bitsandbytes", other[0]


def captured(f: Callable[..., Any], *given: Tensor) -> tuple[torch.cuda.CUDAGraph, Any]:
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


# ---- phases: functions of a model that return a launch, and what it computes


def forward(given: Tensor, net: nn.Module) -> tuple[study.Launch, Tensor]:
    def run() -> Tensor:
        out = net(given)
        return out.logits if hasattr(out, "logits") else out.last_hidden_state
    return run, run()


def decode(batch: int, compiled: bool, net: nn.Module) -> tuple[study.Launch, Tensor]:
    """A position of each sequence, after half of the cache, which has random keys and values."""
    from transformers import StaticCache
    config, at = net.config, torch.full((), POSITIONS // 2, device=GPU)
    cache = StaticCache(config, max_cache_len=POSITIONS)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache.early_initialization(batch, config.num_key_value_heads, head, BF16, GPU)
    torch.manual_seed(1)
    for layer in cache.layers:
        layer.keys.normal_(std=0.5)
        layer.values.normal_(std=0.5)
    lengths = [layer.cumulative_length for layer in cache.layers]
    tokens = torch.arange(batch, device=GPU)[:, None] + 7
    torch._dynamo.reset()       # one code for all models, compiled eight times at most
    call = torch.compile(net.forward, fullgraph=True, dynamic=False) if compiled else net.forward

    def step() -> Tensor:
        torch._foreach_copy_(lengths, [at]*len(lengths))
        return call(tokens, past_key_values=cache).logits
    graph, result = captured(step)
    graph.replay()
    return lambda kept=step: graph.replay(), result         # what the graph reads must outlive it


def train(given: Tensor, compiled: bool, net: nn.Module) -> tuple[study.Launch, Tensor]:
    """A step of SGD too small to change a bf16 weight; the result is the loss and the norms of the first gradients."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-30)
    torch._dynamo.reset()
    call = torch.compile(net.forward, dynamic=False) if compiled else net.forward

    def step() -> None:
        with torch.enable_grad():
            out = call(given, **({"labels": given} if given.dtype == torch.int64 and hasattr(net, "lm_head") else {}))
            loss = out.loss if "loss" in out else out.last_hidden_state.float().square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.loss = loss.detach()               # type: ignore[attr-defined]
    norms: list[Tensor] = []
    hooks = [p.register_post_accumulate_grad_hook(lambda p: norms.append(p.grad.float().norm()))
             for p in net.parameters()]
    step()
    for hook in hooks:
        hook.remove()
    return step, torch.stack([step.loss.float(), torch.stack(norms).norm()])     # type: ignore[attr-defined]


# ---- cases

ATTENTION = "attention"         # a kind: tilewright's products, as "float", and its attention


class Job(NamedTuple):
    """A model, and a phase of it."""

    name: str
    model: Callable[[], nn.Module]
    phase: Callable[[nn.Module], tuple[study.Launch, Tensor]]
    training: bool = False

    def cases(self, kinds: Iterable[str]) -> Iterator[study.Case]:
        """A case for each kind of layers, taking turns with torch's model."""
        with GPU:
            base = self.model().to(BF16).train(self.training)
        theirs, wanted = self.phase(base)
        for kind in ("float",) if self.training else kinds:
            try:
                plain = kind in ("float", ATTENTION)
                net = twt.convert(copy.deepcopy(base), "float" if plain else kind)
                if kind == ATTENTION:
                    twt.register_attention()
                    net.set_attn_implementation("tilewright")
                if hasattr(net.config, "num_experts"):
                    net.set_experts_implementation("tilewright")
                launch, result = self.phase(net)
                like = wanted if plain else self.phase(dequantized(copy.deepcopy(net)))[1]
                wrong = study.near(result, like, LIMITS.get(kind, 0.03))
                sides: dict[str, list[Any]] = {study.OURS: [launch], "torch": [theirs]} | {
                    name: [self.phase(other)[0]] for name, other in packaged(kind, base)}
            except Exception as error:
                wrong, sides = study.failure(error), {study.OURS: [int]}
            yield study.Case({"job": self.name, "kind": kind}, sides,
                             lambda side, _, wrong=wrong: wrong if side == study.OURS else "", {"kind": kind})


def jobs(depth: int) -> Iterator[Job]:
    for model in ("llama", "qwen-moe"):
        net = partial(language, model, depth)
        for length in (512, 1024, 4096):
            tokens = torch.randint(0, VOCABULARY, (1, length), device=GPU)
            yield Job(f"{model} prefill {length}", net, partial(forward, tokens))
        for batch in (1, 32):
            yield Job(f"{model} decode {batch}", net, partial(decode, batch, False))
            yield Job(f"{model} compiled {batch}", net, partial(decode, batch, True))
    sequences, images = torch.randint(0, 30000, (16, 512), device=GPU), random(32, 3, 224, 224)
    small = partial(language, "llama", depth, hidden_size=1024, intermediate_size=4096, num_attention_heads=16)
    yield Job("bert", partial(encoder, "bert", 2*depth), partial(forward, sequences))
    yield Job("vit", partial(encoder, "vit", 2*depth), partial(forward, images))
    for word, compiled in (("train", False), ("train compiled", True)):
        yield Job(f"{word} llama", small, partial(train, tokens[:, :2048].view(4, 512), compiled), True)
        yield Job(f"{word} bert", partial(encoder, "bert", 2*depth), partial(train, sequences, compiled), True)


def layer(rows: int, kinds: Iterable[str], graphs: bool) -> Iterator[study.Case]:
    x = random(rows, 4096)

    def launches(layers: list[nn.Module]) -> list[study.Launch]:
        if not graphs:
            return [partial(layer, x) for layer in layers]
        graph, results = captured(lambda x: [layer(x) for layer in layers], x)
        return [lambda kept=(layers, results): graph.replay()]
    # In graphs as many as are larger than the last cache together in int4, too.
    every = [nn.Linear(4096, 14336, device=GPU, dtype=BF16, bias=False) for _ in range(6 if graphs else 2)]
    for kind in kinds:
        ours = [twt.convert(copy.deepcopy(layer), kind) for layer in every]
        like = dequantized(nn.Sequential(copy.deepcopy(ours[0])))(x)
        sides: dict[str, list[nn.Module]] = {study.OURS: ours, "torch": every}
        for plain in every:
            for name, other in packaged(kind, plain):
                sides.setdefault(name, []).append(other)
        wrong = {name: study.near(layers[0](x), like, 0.03 if name == study.OURS else 0.25)
                 for name, layers in sides.items()}
        yield study.Case(
            {"job": f"{'kernel' if graphs else 'layer'} {rows}", "kind": kind},
            {name: launches(layers) for name, layers in sides.items()}, lambda side, _, wrong=wrong: wrong[side])


def experts(tokens: int, kind: str, count: int = 8, width: int = 4096, between: int = 14336) -> study.Case:
    """Two experts for each token, rows sorted by expert: through gate and up, silu, and down."""
    chosen = torch.stack([torch.randperm(count)[:2] for _ in range(tokens)]).flatten().bincount(minlength=count)
    ends = chosen.cumsum(0).to(GPU, torch.int32)
    spans = [(g, end - n, end) for g, (n, end) in enumerate(zip(chosen.tolist(), ends.tolist())) if n]
    x = random(2*tokens, width)
    every = [[random(count, *shape) / 64 for shape in ((2*between, width), (width, between))]
             for _ in range(2)]
    ours: Any = every if kind == "bf16" else [[int4_stack(w) for w in pair] for pair in every]

    def loop(a: Tensor, b: Tensor) -> Tensor:
        result = a.new_empty(a.shape[0], b.shape[1])
        for g, first, end in spans:
            torch.mm(a[first:end], b[g].t(), out=result[first:end])
        return result
    products: dict[str, tuple[Any, Any]] = {
        study.OURS: (lambda a, b: tw.grouped_matmul(a, b, ends, trans_b=True, out_dtype="bf16"), ours),
        "loop": (loop, every), "torch._grouped_mm": (lambda a, b: torch._grouped_mm(a, b.mT, offs=ends), every)}

    def block(product: Any, pairs: Any) -> list[Tensor]:
        halves = [product(x, pair[0]).chunk(2, -1) for pair in pairs]
        return [product(F.silu(gate)*up, pair[1]) for (gate, up), pair in zip(halves, pairs)]
    graphs = {name: captured(partial(block, *product)) for name, product in products.items()}
    graphs[study.OURS][0].replay()
    wrong = study.near(graphs[study.OURS][1][0], block(loop, every)[0], 0.03)
    kept = block, products                      # what graphs read must outlive them
    return study.Case({"job": f"experts {tokens}", "kind": kind, "blocks": len(every)},
                      {name: [lambda graph=graph, _=kept: graph.replay()] for name, (graph, _) in graphs.items()},
                      lambda side, _: wrong if side == study.OURS else "", {"kind": kind})


def int4_stack(w: Tensor) -> tw.Scaled:
    """Weights [experts, n, k] as int4 with groups of 128; w becomes these numbers."""
    q = twt.quantization.quantize(w.flatten(0, 1), "i4", 128)
    elements, scales, zeros = (q[part] for part in ("elements", "scales", "zeros"))
    w.copy_(twt.quantization.dequantize(elements, scales, zeros, None, "i4", 128, 1.0, w.shape[-1]).view(w.shape))
    return tw.Scaled(*(part.view(*w.shape[:2], -1) for part in (elements, scales)), None, 128,
                     Nibbles("i4", -1, w.shape[-1]))


def host(kinds: Iterable[str]) -> dict[str, study.Launch]:
    """Calls of layers with few elements, and of operators."""
    x, plain = random(1, 1024), nn.Linear(1024, 512, device=GPU, dtype=BF16)
    a, w, out = (random(64, 64) for _ in range(3))
    ends, stack = torch.tensor([16, 32, 48, 64], device=GPU, dtype=torch.int32), random(4, 64, 64)
    return {"nn.Linear": partial(plain, x), **{
        f"{kind} layer": partial(twt.convert(copy.deepcopy(plain), kind), x) for kind in kinds},
        "torch.mm": partial(torch.mm, a, w), "twt.mm": partial(twt.mm, a, w), "tw.matmul": partial(tw.matmul, a, w),
        "tw.matmul with out": partial(tw.matmul, a, w, out), "torch._grouped_mm": partial(
            torch._grouped_mm, a, stack, offs=ends), "twt.grouped_mm": partial(twt.grouped_mm, a, stack, ends),
        "tw.contract": lambda: tw.contract(lambda x, y: (x - y)**2, a, w)}


def cases(asked: Any) -> Iterator[study.Case]:
    def wanted(name: str) -> bool:
        return not asked.jobs or any(f"{name} ".startswith(f"{job} ") for job in asked.jobs)
    for rows in (1, 32, 256, 1024, 4096):
        if wanted(f"layer {rows}"):
            yield from layer(rows, asked.kinds, False)
    for rows in (1, 16, 32, 64, 128, 256, 1024, 4096):
        if wanted(f"kernel {rows}"):
            yield from layer(rows, asked.kinds, True)
    for job in jobs(asked.layers):
        if wanted(job.name):
            torch.manual_seed(0)
            yield from job.cases(asked.kinds)
    for tokens in (1, 8, 64, 2048):
        for kind in ("bf16", "int4"):
            if wanted(f"experts {tokens}"):
                torch.manual_seed(0)
                yield experts(tokens, kind)


if __name__ == "__main__":
    def words(text: str) -> list[str]:
        return text.split(",")
    options, device = study.parsed(
        __doc__ or "", "programs.json", lambda p: p.add_argument("--jobs", type=words, default=[]),
        lambda p: p.add_argument("--kinds", type=words, default=list(KINDS)),
        lambda p: p.add_argument("--layers", type=int, default=4)), InTurn()
    torch.set_grad_enabled(False)
    sys.exit(study.main("programs", cases(options), options, device, host=(
        "host", host(options.kinds)) if not options.jobs or "host" in options.jobs else None))
