"""A transformer block (RMS norms, causal attention, SwiGLU) with every product by tilewright, weights in f32, bf16,
int8 (a scale for 64 numbers along k) and mxfp4: bytes of weights, error beside float64, times of a prompt and a token.

Residuals, the scale of attention and SwiGLU are epilogues of the products before them; norms and softmax are NumPy's.
`python examples/transformer_block.py` compares times with the same block by NumPy's products and, if it is installed,
torch's.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw

KINDS: dict[str, Callable[[Any], Any]] = {
    "f32": lambda w: w,
    "bf16": lambda w: w.astype(ml_dtypes.bfloat16),
    "int8": lambda w: tw.quantize(w, "i8", axis=0, group=64),
    "mxfp4": lambda w: tw.quantize(w, "mxfp4", axis=0),
}


def weights(width: int, hidden: int, seed: int = 0) -> dict[str, Any]:
    """[k, n] each. Columns 2j and 2j + 1 of `gate_up` are a gate and what it lets through."""
    rng = np.random.default_rng(seed)
    sizes = {"qkv": (width, 3 * width), "output": (width, width),
             "gate_up": (width, 2 * hidden), "down": (hidden, width)}
    return {name: rng.standard_normal(size, np.float32) * np.float32(size[0] ** -0.5) for name, size in sizes.items()}


def norm(x: Any) -> Any:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def swiglu(acc: Any) -> Any:
    gate, up = tw.pairs(acc)
    return tw.silu(gate) * up


def add(acc: Any, residual: Any) -> Any:
    return acc + residual


# Products as the block takes them: by tilewright, and by NumPy in any format
TILEWRIGHT = SimpleNamespace(
    product=tw.matmul,
    add=lambda x, w, residual: tw.matmul(x, w, epilogue=add, operands={"residual": residual}, out_dtype="f32"),
    swiglu=lambda x, w: tw.matmul(x, w, epilogue=swiglu),
    scores=lambda q, k: tw.matmul(q, k, trans_b=True, alpha=q.shape[-1] ** -0.5, out_dtype="f32"),
)


def numpy_swiglu(x: Any, w: Any) -> Any:
    y = x @ w
    gate, up = y[:, 0::2], y[:, 1::2]
    return gate / (1 + np.exp(-gate)) * up


NUMPY = SimpleNamespace(
    product=np.matmul,
    add=lambda x, w, residual: x @ w + residual,
    swiglu=numpy_swiglu,
    scores=lambda q, k: q @ np.swapaxes(k, -1, -2) * q.shape[-1] ** -0.5,
)


def torchs(torch: Any) -> Any:
    """Products by torch, of the same arrays."""
    def tensor(x: Any) -> Any:
        bf16 = x.dtype == ml_dtypes.bfloat16
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if bf16 else torch.from_numpy(x)

    def array(x: Any) -> Any:
        bf16 = x.dtype == torch.bfloat16
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if bf16 else x.numpy()

    def swiglu(x: Any, w: Any) -> Any:
        y = tensor(x) @ tensor(w)
        return array(torch.nn.functional.silu(y[:, 0::2]) * y[:, 1::2])
    return SimpleNamespace(
        product=lambda a, b: array(tensor(a) @ tensor(b)), swiglu=swiglu,
        add=lambda x, w, residual: array(tensor(x) @ tensor(w)).astype(np.float32) + residual,
        scores=lambda q, k: array((tensor(q) @ tensor(k).mT).float()) * q.shape[-1] ** -0.5,
    )


def block(by: Any, w: dict[str, Any], x: Any, heads: int, cache: list[Any], kind: Any) -> Any:
    """The block's results for tokens x [tokens, width], which follow those whose keys and values are in `cache`, each
    [heads, tokens, width / heads]: to these theirs are added. Activations go to products as `kind`."""
    tokens, width = x.shape
    q, k, v = by.product(norm(x).astype(kind), w["qkv"]).reshape(tokens, 3, heads, -1).transpose(1, 2, 0, 3)
    cache[:] = (np.concatenate((old, new), axis=1) for old, new in zip(cache, (k, v)))
    keys, values = cache
    scores = by.scores(q, keys)
    before = keys.shape[1] - tokens
    scores[:, np.arange(keys.shape[1])[None, :] > before + np.arange(tokens)[:, None]] = -np.inf
    mixed = by.product(softmax(scores).astype(kind), values.astype(kind))
    x = by.add(mixed.transpose(1, 0, 2).reshape(tokens, width).astype(kind), w["output"], x)
    return by.add(by.swiglu(norm(x).astype(kind), w["gate_up"]).astype(kind), w["down"], x)


def empty(heads: int, width: int, kind: Any) -> list[Any]:
    return [np.empty((heads, 0, width // heads), kind) for _ in range(2)]


def seconds(call: Callable[[], Any], rounds: int) -> float:
    call()
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return float(np.median(found))


def main(width: int = 1024, hidden: int = 2816, heads: int = 16, tokens: int = 128, rounds: int = 9
         ) -> dict[str, float]:
    """Relative errors of the last token's results, by kinds of weights."""
    w = weights(width, hidden)
    x = np.random.default_rng(1).standard_normal((tokens + 1, width), np.float32)
    exact = block(NUMPY, {name: y.astype(np.float64) for name, y in w.items()}, x.astype(np.float64), heads,
                  empty(heads, width, np.float64), np.float64)[-1]
    errors = {}

    def measured(name: str, by: Any, stored: dict[str, Any], kind: Any) -> None:
        cache = empty(heads, width, kind)
        block(by, stored, x[:-1], heads, cache, kind)
        last = block(by, stored, x[-1:], heads, list(cache), kind)[0]       # a token after the prompt
        errors[name] = float(np.linalg.norm(last.astype(np.float64) - exact) / np.linalg.norm(exact))
        prompt = seconds(lambda: block(by, stored, x[:-1], heads, empty(heads, width, kind), kind), rounds)
        token = seconds(lambda: block(by, stored, x[-1:], heads, list(cache), kind), rounds)
        size = sum(y.nbytes for y in stored.values())
        print(f"{name:12} {size:12,} bytes of weights  error {errors[name]:.1e}  "
              f"prompt {1e3 * prompt:8.2f} ms  token {1e3 * token:7.2f} ms")

    measured("numpy f32", NUMPY, w, np.float32)
    if importlib.util.find_spec("torch"):
        import torch
        measured("torch f32", torchs(torch), w, np.float32)
        measured("torch bf16", torchs(torch), {name: KINDS["bf16"](y) for name, y in w.items()}, ml_dtypes.bfloat16)
    for name, stored in KINDS.items():
        kind = ml_dtypes.bfloat16 if name == "bf16" else np.float32
        measured(name, TILEWRIGHT, {key: stored(y) for key, y in w.items()}, kind)
    return errors


if __name__ == "__main__":
    main()
