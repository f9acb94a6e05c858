"""Products whose shapes nobody chose: drawn at random by one rule, or the linear layers of published models.

The rule, on GPUs: m log-uniform in 64 ... 16384, n and k in 256 ... 16384, rounded down to a multiple of 8 (half), 64
or 128 (a quarter each); layouts nn, nt (half), tn; 1e9 to 4e12 operations. Formats of 8 bits have multiples of 16 and
layout nt, as cuBLAS takes them. On CPUs: m, n and k log-uniform in 16 ... 4096, any integer; layouts nn (half), nt, tn;
at least 2e6 operations. Operands are contiguous.

Layers: y = x W^T of W [n, k], of which `layers` draws a model, one of its layers, and m of ROWS.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from tilewright import formats
from tilewright.lab.bench.cases import CPU, Case, Product
from tilewright.lab.bench.suites.shapes import chosen

GPU_LAYOUTS, CPU_LAYOUTS = ("nn", "nt", "nt", "tn"), ("nn", "nn", "nt", "tn")
GPU_SIZES, CPU_SIZES = ((64, 16384), (256, 16384), (256, 16384)), ((16, 4096),) * 3
GPU_WORK, CPU_WORK = (1e9, 4e12), (2e6, 2 * 4096.0**3)          # operations, least and most
ROWS = tuple(2**i for i in range(15))                           # 1 ... 16384
RANDOM, LAYERS = "random", "layers"
RESULTS = {"f32": "f32", "f64": "f64", "bf16": "bf16", "f16": "f16", "i8": "i32", "e4m3fn": "bf16"}    # of one format


class Model(NamedTuple):
    """The sizes of a transformer's layers, as its published configuration has them.

    hidden, inner       of the layers, and of the feed-forward network, each expert's if there are some
    heads, shared, size query heads, heads of keys and values, elements of a head
    gated               whether the network has two matrices before its activation
    source              where the configuration is published: a repository on huggingface.co
    """

    hidden: int
    inner: int
    heads: int
    shared: int
    size: int
    gated: bool
    source: str

    def layers(self) -> dict[str, tuple[int, int]]:
        """(n, k) of each linear layer by name; queries, keys and values are one layer, and so are both gates."""
        queries = self.heads * self.size
        return {"qkv": (queries + 2 * self.shared * self.size, self.hidden), "out": (self.hidden, queries),
                "up": (self.inner * (1 + self.gated), self.hidden), "down": (self.hidden, self.inner)}


MODELS = {
    "Llama 3 8B": Model(4096, 14336, 32, 8, 128, True, "meta-llama/Meta-Llama-3-8B"),
    "Llama 3 70B": Model(8192, 28672, 64, 8, 128, True, "meta-llama/Meta-Llama-3-70B"),
    "Llama 3.2 1B": Model(2048, 8192, 32, 8, 64, True, "meta-llama/Llama-3.2-1B"),
    "Qwen 3 0.6B": Model(1024, 3072, 16, 8, 128, True, "Qwen/Qwen3-0.6B"),
    "Qwen 3 8B": Model(4096, 12288, 32, 8, 128, True, "Qwen/Qwen3-8B"),
    "Qwen 3 32B": Model(5120, 25600, 64, 8, 128, True, "Qwen/Qwen3-32B"),
    "Qwen 3 30B-A3B": Model(2048, 768, 32, 4, 128, True, "Qwen/Qwen3-30B-A3B"),
    "Mistral 7B": Model(4096, 14336, 32, 8, 128, True, "mistralai/Mistral-7B-v0.3"),
    "Mistral Small 24B": Model(5120, 32768, 32, 8, 128, True, "mistralai/Mistral-Small-24B-Base-2501"),
    "Gemma 3 4B": Model(2560, 10240, 8, 4, 256, True, "google/gemma-3-4b-pt"),
    "Gemma 3 27B": Model(5376, 21504, 32, 16, 128, True, "google/gemma-3-27b-pt"),
    "Mixtral 8x7B": Model(4096, 14336, 32, 8, 128, True, "mistralai/Mixtral-8x7B-v0.1"),
    "Phi 4": Model(5120, 17920, 40, 10, 128, True, "microsoft/phi-4"),
    "gpt-oss 20B": Model(2880, 2880, 64, 8, 64, True, "openai/gpt-oss-20b"),
    "GPT-2": Model(768, 3072, 12, 12, 64, False, "openai-community/gpt2"),
    "BERT base": Model(768, 3072, 12, 12, 64, False, "google-bert/bert-base-uncased"),
    "BERT large": Model(1024, 4096, 16, 16, 64, False, "google-bert/bert-large-uncased"),
    "ViT B/16": Model(768, 3072, 12, 12, 64, False, "google/vit-base-patch16-224"),
    "Whisper large": Model(1280, 5120, 20, 20, 64, False, "openai/whisper-large-v3"),
    "Flux.1": Model(3072, 12288, 24, 24, 128, False, "black-forest-labs/FLUX.1-dev"),
}


def sizes(pick: random.Random, gpu: bool, unit: int = 8, most: float = 0.0) -> tuple[int, int, int]:
    """m, n and k by the rule; `unit`: the least multiple; most: operations, if not those of the rule."""
    bounds, (least, usual) = (GPU_SIZES, GPU_WORK) if gpu else (CPU_SIZES, CPU_WORK)
    while True:
        step = pick.choice((unit, unit, 64, 128)) if gpu else 1
        m, n, k = (max(int(low * (high / low) ** pick.random()) // step * step, step) for low, high in bounds)
        if least <= 2 * m * n * k <= (most or usual):
            return m, n, k


def layout(pick: random.Random, gpu: bool) -> str:
    return pick.choice(GPU_LAYOUTS if gpu else CPU_LAYOUTS)


def products(names: Sequence[str]) -> list[Product]:
    """The products of these formats, or products as `shapes.chosen` takes them."""
    return [product for name in names for product in (
        [Product(name, name, RESULTS[name])] if name in RESULTS else chosen([name]))]


def cases(seed: int, count: int, names: Sequence[str], device: str = CPU, layers: bool = False) -> list[Case]:
    """`count` cases of each format, the same for the same seed."""
    drawn = []
    for product in products(names):
        pick, narrow = random.Random(f"{seed} {product.key} {device} {layers}"), formats.FORMATS[product.a].bits == 8
        for _ in range(count):
            if layers:
                n, k = pick.choice([*MODELS[pick.choice([*MODELS])].layers().values()])
                m, how = pick.choice(ROWS), "nt"
            else:
                m, n, k = sizes(pick, device != CPU, 16 if narrow else 8)
                how = "nt" if narrow and device != CPU else layout(pick, device != CPU)
            drawn.append(Case(LAYERS if layers else RANDOM, product.gemm(m, n, k, how), algorithm=product.algorithm))
    return drawn
