"""Gradients of attention on a GPU, as attention_backward.py says. `tilewright bench attention` has the forward pass.

    python bench/attention.py --backward [--ordered] [--plans] [--sizes 128,64] [--lengths 1024,4096,16384]
                              [--rounds 5] [--alone] [--compile] [--out FILE]
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tilewright.attention_problem import Attention
from tilewright.lab.bench import results


def problem(batch: int, heads: int, kv_heads: int, queries: int, keys: int, size: int, causal: bool) -> Attention:
    """The call's record."""
    return Attention(batch, heads, kv_heads, queries, keys, size, q="bf16", after=0 if causal else None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="128,64")
    parser.add_argument("--lengths", default="1024,4096,16384")
    parser.add_argument("--rounds", type=int, default=5)
    for name in ("plans", "backward", "ordered", "compile", "alone"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--out", type=Path)
    asked: Any = results.options(parser, "out")
    import attention_backward
    measured = attention_backward.main(asked)
    if asked.out and measured:
        results.write(measured, asked.out)


if __name__ == "__main__":
    main()
