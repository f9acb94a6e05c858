"""The functions of product cases: as tilewright traces them, and as the oracle computes them with NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tilewright as tw

# Relative to the largest number: what a polynomial or exponential of f32 may be off by.
OWN = 2.0**-20


class Function(NamedTuple):
    """`traced` is given to tilewright, `numpy` to the oracle; one function serves as both if it has operators only."""

    traced: Callable[..., Any]
    numpy: Callable[..., Any]
    own: float = 0.0            # error of the function itself, relative to the largest number
    magnified: float = 1.0      # by how much an error of the sums is, at most


def both(function: Callable[..., Any], magnified: float = 1.0) -> Function:
    return Function(function, function, 0.0, magnified)


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[float])(x.astype(float)) if x.size else x


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def most(x: np.ndarray, axis: int) -> np.ndarray:
    """The largest number along an axis; 0 of none, as groups without rows have it."""
    return x.max(axis) if x.shape[axis] else np.zeros(np.delete(x.shape, axis), x.dtype)


def differing_bits(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.vectorize(lambda z: bin(int(z) & 0xFFFFFFFF).count("1"), otypes=[np.int64])(x ^ y)


def swiglu(acc):
    gate, up = tw.pairs(acc)
    return tw.silu(gate) * up


def swiglu_with_bias(acc, bias):
    gate, up = tw.pairs(acc)
    return tw.silu(gate + bias) * up


def pairs_added(acc):
    first, second = tw.pairs(acc)
    return first * 2 - second


def two_results(acc, bias, res):
    y = tw.relu(acc + bias) + res
    return y, tw.row_sum(y), tw.column_min(acc)


def gelu_twice(acc, bias):
    return tw.gelu(tw.gelu(acc + bias))


EPILOGUES = {
    "same": both(lambda acc: acc),
    "double": both(lambda acc: acc * 2, 2),
    "below": both(lambda acc: acc - 1),
    "absolute": both(abs),
    "relu": Function(lambda acc: tw.relu(acc), relu),
    "bias": both(lambda acc, bias: acc + bias),
    "bias relu": Function(lambda acc, bias: tw.relu(acc + bias), lambda acc, bias: relu(acc + bias)),
    "times": both(lambda acc, res: acc * res, 4),
    "residual": both(lambda acc, bias, res: (acc + bias) * 2 - res, 2),
    "scale": both(lambda acc, s: acc * s, 4),
    "scale and residual": both(lambda acc, by, res: acc * by + res, 4),
    "beyond": both(lambda acc, x: acc * x + 0.5, 8),
    "activated": Function(lambda acc, bias, res: tw.silu(acc + bias) * 0.5 + res,
                          lambda acc, bias, res: silu(acc + bias) * 0.5 + res, OWN),
    "gelu residual": Function(lambda acc, bias, res: tw.gelu(acc + bias) * 0.5 + res,
                              lambda acc, bias, res: gelu(acc + bias) * 0.5 + res, OWN, 1.2),
    "gelu twice": Function(gelu_twice, lambda acc, bias: gelu(gelu(acc + bias)), OWN, 1.5),
    "tanh of two": Function(lambda acc, col, res: (tw.tanh(acc) * col, acc - res),
                            lambda acc, col, res: (np.tanh(acc) * col, acc - res), OWN, 4),
    "swiglu": Function(swiglu, lambda acc: silu(acc[..., ::2]) * acc[..., 1::2], OWN, 32),
    "swiglu with bias": Function(swiglu_with_bias, lambda acc, bias: silu(acc[..., ::2] + bias) * acc[..., 1::2], OWN,
                                 32),
    "pairs": Function(pairs_added, lambda acc: acc[..., ::2] * 2 - acc[..., 1::2], 0.0, 3),
    "reductions": Function(
        lambda acc, s: (tw.row_sum(acc * s), tw.row_amax(acc), tw.column_max(acc), tw.column_sum(acc)),
        lambda acc, s: ((acc * s).sum(-1), abs(acc).max(-1), acc.max(-2), acc.sum(-2)), 0.0, 200),
    "row max": Function(lambda acc: (acc, tw.row_max(acc)), lambda acc: (acc, acc.max(-1))),
    "row max and columns": Function(lambda acc, bias: (acc + bias, tw.row_max(acc), tw.column_sum(acc)),
                                    lambda acc, bias: (acc + bias, acc.max(-1), acc.sum(-2)), 0.0, 200),
    "two results": Function(two_results, lambda acc, bias, res: (
        (y := relu(acc + bias) + res), y.sum(-1), acc.min(-2)), 0.0, 200),
    "exponents": Function(lambda acc: (tw.row_sum(tw.exp(acc * 0.1)), tw.column_max(acc)),
                          lambda acc: (np.exp(acc * 0.1).sum(-1), acc.max(-2)), OWN, 200),
    "indices": Function(
        lambda acc: (tw.row_argmin(acc), tw.row_argmax(-acc), tw.column_argmin(acc), tw.column_argmax(acc), acc),
        lambda acc: (acc.argmin(-1), acc.argmin(-1), acc.argmin(-2), acc.argmax(-2), acc)),
    "row argmax": Function(lambda acc: tw.row_argmax(acc), lambda acc: acc.argmax(-1)),
    "of groups": Function(
        lambda acc, bias, s, row, full: ((y := (acc + bias) * s * row + full), tw.row_sum(y), tw.column_max(y), acc),
        lambda acc, bias, s, row, full: ((y := (acc + bias) * s * row + full), y.sum(-1), most(y, -2), acc)),
    "above and below": both(lambda acc: (acc + 1, acc - 1)),
    "all of groups": Function(
        lambda acc, bias: (tw.row_sum(y := acc + bias), y, tw.column_max(y), tw.row_argmax(y)),
        lambda acc, bias: ((y := acc + bias).sum(-1), y, most(y, -2), y.argmax(-1))),
    "row and column": Function(lambda acc: (tw.row_sum(acc), tw.column_max(acc)),
                               lambda acc: (acc.sum(-1), most(acc, -2))),
    "row sums of groups": Function(lambda acc, bias: (acc + bias, tw.row_sum(acc)),
                                   lambda acc, bias: (acc + bias, acc.sum(-1))),
    "dequantized": both(lambda acc, zero, s: (acc - zero) * s, 4),
    "integers": Function(
        lambda acc, zero: ((acc - zero) >> 1, tw.clamp(acc, 0, 99) > zero, tw.row_max(acc)),
        lambda acc, zero: ((acc - zero) >> 1, np.clip(acc, 0, 99) > zero, acc.max(-1))),
    "bias times s": both(lambda acc, bias, s: (acc + bias) * s, 4),
    "bias gelu": Function(lambda acc, bias: tw.gelu(acc + bias), lambda acc, bias: gelu(acc + bias), OWN, 1.2),
    "two scaled": Function(lambda acc, s, rows: (acc * s, tw.relu(acc) + rows),
                           lambda acc, s, rows: (acc * s, relu(acc) + rows), 0.0, 4),
    "biased and not": both(lambda acc, bias: (acc + bias, acc)),
    "reduced with a bias": Function(
        lambda acc, bias: (tw.relu(acc + bias), tw.row_amax(acc), tw.column_sum(acc * bias)),
        lambda acc, bias: (relu(acc + bias), abs(acc).max(-1), (acc * bias).sum(-2)), 0.0, 200),
    "indices and a sum": Function(
        lambda acc: (tw.row_argmin(acc), tw.column_argmax(acc), tw.row_sum(acc * acc), acc + 1),
        lambda acc: (acc.argmin(-1), acc.argmax(-2), (acc * acc).sum(-1), acc + 1)),
    "shifted": both(lambda acc, bias: (acc + bias) >> 2),
    "several": Function(lambda acc, s, rows: (acc * s, tw.relu(acc) + rows, acc > 0),
                        lambda acc, s, rows: (acc * s, relu(acc) + rows, acc > 0), 0.0, 4),
    "nearest": Function(lambda acc: (tw.row_argmin(acc), tw.row_min(acc), tw.column_argmin(tw.where(acc > 40, 1, 0))),
                        lambda acc: (acc.argmin(-1), acc.min(-1), np.where(acc > 40, 1, 0).argmin(-2))),
    "clamped": Function(lambda acc, res: tw.clamp(acc, -9, 9) + res, lambda acc, res: np.clip(acc, -9, 9) + res),
    "between": both(lambda acc: (acc > 40) & (acc < 48)),
    "root": Function(lambda acc: tw.sqrt(acc), lambda acc: np.sqrt(acc), OWN),
    "row min": Function(lambda acc: tw.row_min(acc), lambda acc: acc.min(-1)),
    "value and index": Function(lambda v, i: (tw.row_max(v), v - i), lambda v, i: (v.max(-1), v - i)),
    "index": both(lambda at: at * 2 + 1),
}

PROLOGUES = {
    "double": both(lambda x: x * 2.0),
    "plus": both(lambda x: x + 1),
    "relu": Function(lambda x: tw.maximum(x, 0), relu),
    "scale a": both(lambda x, of_a: x * of_a),
    "scale b": both(lambda x, of_b: x * of_b),
    "dequantised": both(lambda x, s, z: (x - z) * s),
    "scaled": both(lambda x, s: x * s),
    "scaled again": both(lambda x, g: x * g),
    "activated": Function(lambda x, row, col: tw.silu(x) * row + col, lambda x, row, col: silu(x) * row + col),
    "activated by all": Function(lambda x, row, col, full: (tw.silu(x) * row + col) * full,      # of 0 it is not 0
                                 lambda x, row, col, full: (silu(x) * row + col) * full),
    "positive": Function(lambda x, t: tw.relu(x) * t, lambda x, t: relu(x) * t),
    "half": both(lambda x: 0.5 * (x * 3.0)),
    "size": both(abs),
}

TERMS = {
    "squares": both(lambda x, y: (x - y)**2),
    "distance": Function(lambda x, y: abs(x - y), lambda x, y: np.abs(x - y)),
    "paths": both(lambda x, y: x + y + 40),                 # above 0: no sum may begin with 0
    "product": both(lambda x, y: x * y),
    "some": both(lambda x, y: (x > 1) & (y > 1)),
    "uneven": both(lambda x, y: x - 2*y - 60),              # and not the same of exchanged factors
    "sphere": both(lambda x, y: x*x + y*y),                 # of steps beyond k that are 0 the least
    "hollow": both(lambda x, y: -x*x - y*y),                # and the largest
    "never 0": both(lambda x, y: (x - y)**2 + 1),           # no padding is neutral
    "both": both(lambda x, y: (x > 2) & (y > -3)),
    "least": Function(lambda x, y: tw.minimum(x, y), np.minimum),
    "long": Function(lambda x, y: tw.where(x < y, (x - y)*(x + 3)*(y - 2)*(x*y - 5) + x*x, y),
                     lambda x, y: np.where(x < y, (x - y)*(x + 3)*(y - 2)*(x*y - 5) + x*x, y)),
    "quotient": both(lambda x, y: (x - y)*(x - 2)),
    "differing bits": Function(lambda x, y: tw.popcount(x ^ y), differing_bits),
    "eighth": both(lambda x, y: x*0.125 + y)._replace(own=2.0**-18),       # for logarithms of exponentials
    "gaussian": Function(lambda x, y: tw.exp(-0.5 * (x - y)**2), lambda x, y: np.exp(-0.5 * (x - y)**2), 2.0**-17),
    "wrapping": both(lambda x, y: x*y - (x << 3)),
    "and": both(lambda x, y: x & y),
    "or": both(lambda x, y: x | y),
    "but not": both(lambda x, y: x & ~y),
    "chosen": Function(lambda x, y: tw.where(x < y, x, 5), lambda x, y: np.where(x < y, x, 5)),
}

# of one's own, beside those that have names
REDUCTIONS = {
    "or": tw.Reduction((0,), lambda s, t, p: (s[0] | t,), lambda x, y: (x[0] | y[0],)),
    "and": tw.Reduction((-1,), lambda s, t, p: (s[0] & t,), lambda x, y: (x[0] & y[0],)),
}

REDUCE: dict[str, Callable[[np.ndarray], Any]] = {
    "sum": lambda t: t.sum(-2),
    "max": lambda t: t.max(-2),
    "min": lambda t: t.min(-2),
    "any": lambda t: (t > 0).any(-2),
    "argmin": lambda t: t.argmin(-2),
    "argmax": lambda t: t.argmax(-2),
    "min_argmin": lambda t: (t.min(-2), t.argmin(-2)),
    "max_argmax": lambda t: (t.max(-2), t.argmax(-2)),
    "or": lambda t: np.bitwise_or.reduce(t, -2),
    "and": lambda t: np.bitwise_and.reduce(t, -2),
    "logsumexp": lambda t: np.logaddexp.reduce(t.astype("f8"), -2),
}
