"""Attention as plain data: softmax(score(scale Q K^T)) V for each head of each sequence, with nothing about how.

An engine receives a `rules.attending.Attending`: an `Attention`, which is hashable and says all that a kernel depends
on but strides and numbers of keys, and its arrays, NumPy's or shadows of a GPU's, by these conventions:

    q, out      [sequences, heads, queries, size] and [..., value_size]; any strides
    k, v        [sequences, kv_heads, keys, size] and [..., value_size]; query head h reads kv head
                h // (heads // kv_heads)
    ragged      sequences lie one after the other: q and out are [1, heads, all queries, ...], k and v likewise, and
                those of sequence s are q_offsets[s] to q_offsets[s + 1], k_offsets[s] to k_offsets[s + 1]
    paged       k and v are [pages, kv_heads, page, ...]; key j of sequence s is row j % page of page
                table[s, j // page], and sequence s has lengths[s] keys
    lse         [sequences, heads, queries], ragged [1, heads, all queries]: f32, of f64 operands f64
    reads       of the score's function, in the order of `Score.reads`: [sequences, heads, queries, keys], with strides
                of 0 along axes with one number; ragged, rows and columns are counted in each sequence

A query's position is i = its index + shift: 0 if `upper`, else the sequence's keys minus its queries, so that the last
query stands beside the last key. It sees key j if i - before <= j <= i + after. The score function takes this i and j.
A row without a key that it sees, or whose scores are all -inf, is 0, and its lse is -inf (with a sink the sink).
"""
from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, ClassVar

import numpy as np

from tilewright.expressions import functions
from tilewright.expressions.function import Aux, Function
from tilewright.expressions.operations import CONVERSIONS
from tilewright.expressions.program import OWN, Expression
from tilewright.expressions.tracing import apply, cast, retraced, trace
from tilewright.formats import FORMATS

# The score function's own parameters: the scaled product, the query's position, the key's index, the query head.
SCORE = {OWN + "score": "float", OWN + "i": "int", OWN + "j": "int", OWN + "head": "int"}
NUMBERS = ("keys", "kv_heads", "value_size", "scale", "softcap", "page")        # words of an attention's text
REQUIRED = ("sequences", "heads", "kv_heads", "queries", "keys", "size", "q")
FLAGS = ("upper", "sinks", "lse", "ragged", "factors")
FLOATS = ("f32", "f64", "f16", "bf16")
NARROW = ("e4m3fn", "i8")           # of keys and values, with factors; e4m3fn of queries, too


class Score(Function):
    """What becomes of the scaled products before masks: one number of (score, i, j, head) and of arrays beside."""
    WHAT: ClassVar[str] = "a score function"

    @property
    def _valid(self) -> bool:
        one = len(self.expression.results) == 1 and not self.expression.results[0].reduced
        return one and self.expression.parameters[:4] == (*SCORE.items(),)

    @property
    def names(self) -> list[str]:
        """Names of the parameters that are arrays."""
        return [name for name, _ in self.expression.parameters[len(SCORE):]]

    def numbers(self, score: Any, i: Any, j: Any, head: Any, arrays: Any) -> Any:
        """The scores by NumPy in float64, of arrays that broadcast."""
        given = dict(zip(SCORE, (score, i, j, head))) | dict(zip(self.names, arrays, strict=True))
        with np.errstate(all="ignore"):
            return self.expression.evaluate(given)[0]


def unchanged(score: Any, i: Any, j: Any, head: Any) -> Any:
    """The score function of calls that have none."""
    return score


def traced(function: Callable[..., Any], kinds: tuple[tuple[str, str], ...], softcap: float) -> Expression:
    """The expression of a score function after the soft cap: softcap tanh(score / softcap), 0 for none. TypeError if it
    gives something else than one number."""
    @wraps(function)
    def whole(score: Any, i: Any, j: Any, head: Any, **arrays: Any) -> Any:
        capped = functions.tanh(score * (1.0 / softcap)) * softcap if softcap else score
        value = function(capped, i, j, head, **arrays)
        return value * 1.0 if getattr(value, "kind", "float") != "float" or isinstance(value, (bool, int)) else value
    expression = trace(whole, {**SCORE, **dict(kinds)}, "bias", len(SCORE))
    if len(expression.results) != 1 or expression.results[0].reduced:
        raise TypeError("bias must return one number, the score, computed from (score, i, j, head)")
    return expression


# The slope of an operation's result, of its value y, its operands' values x and their slopes d; those of operands
# that do not depend on the score are 0.
SLOPES: dict[str, Callable[..., Any]] = {
    "add": lambda y, x, d: d[0] + d[1], "sub": lambda y, x, d: d[0] - d[1], "neg": lambda y, x, d: -d[0],
    "mul": lambda y, x, d: d[0]*x[1] + x[0]*d[1], "fma": lambda y, x, d: d[0]*x[1] + x[0]*d[1] + d[2],
    "div": lambda y, x, d: (d[0] - y*d[1]) / x[1], "abs": lambda y, x, d: functions.where(x[0] < 0.0, -d[0], d[0]),
    "min": lambda y, x, d: functions.where(x[0] <= x[1], *d), "max": lambda y, x, d: functions.where(x[0] >= x[1], *d),
    "exp": lambda y, x, d: y * d[0], "log": lambda y, x, d: d[0] / x[0], "sqrt": lambda y, x, d: d[0] / (y + y),
    "tanh": lambda y, x, d: (1.0 - y*y) * d[0], "sigmoid": lambda y, x, d: y * (1.0 - y) * d[0],
    "erf": lambda y, x, d: functions.exp(-(x[0]*x[0])) * 1.1283791670955126 * d[0],
    "where": lambda y, x, d: functions.where(x[0], d[1], d[2])}


@lru_cache(maxsize=512)
def sloped(expression: Expression) -> Expression:
    """The score, and its derivative by the scaled product. TypeError where an operation has none."""
    def whole(*own: Any, **arrays: Any) -> Any:
        given = dict(zip(SCORE, own)) | arrays

        def operation(name: str, *pairs: Any) -> Any:
            x, d = zip(*pairs)
            y = cast(x[0], name) if name in CONVERSIONS else apply(name, *x)
            if all(slope is None for slope in d):
                return y, None
            if name not in SLOPES:
                raise TypeError(f"{name} in a score function has no derivative here: it takes {', '.join(SLOPES)}")
            return y, SLOPES[name](y, x, [0.0 if slope is None else slope for slope in d])
        (y, slope), = expression.run(operation, {name: (x, 1.0 if name == OWN + "score" else None)
                                                 for name, x in given.items()}, lambda x: (x, None))
        return y, 0.0 if slope is None else slope
    return trace(whole, dict(expression.parameters), "bias", len(SCORE))


@lru_cache(maxsize=512)
def capped(expression: Expression, kinds: tuple[tuple[str, str], ...], softcap: float) -> Expression:
    """`traced` of a function that was traced before, without the cap."""
    return traced(lambda *own, **arrays: retraced(expression, dict(zip(SCORE, own)) | arrays)[0], kinds, softcap)


@lru_cache(maxsize=512)
def score_of(text: str) -> Score:
    """The Score with this text."""
    return Score.read(text)


def score_text(expression: Expression, reads: tuple[Aux, ...]) -> str:
    """The text of a Score; "" for scores that stay as they are."""
    if not expression.lines and expression.results[0].operand == OWN + "score":
        return ""
    return Score(expression, reads, ("f32",)).text


@dataclass(frozen=True)
class Attention:
    """An attention: which arrays, which mask, which function of the scores.

    sequences, heads, kv_heads      query head h reads kv head h // (heads // kv_heads)
    size, value_size                elements of a query and of a key; elements of a value, by default `size`
    queries, keys   how many there are in a sequence; in ragged sequences together; the most keys of a paged cache
    q, kv, out      number formats of queries, of keys and values, and of the result (default: `q`, or bf16 for e4m3fn)
    scale           products of queries and keys are multiplied by it first; by default 1 / sqrt(size)
    before, after   a query at position i sees keys i - before to i + after; None: no limit
    upper           positions of queries begin at 0 in each sequence, rather than end at its last key
    softcap         c: scores become c tanh(score / c) before all else; 0: none. It is part of `score`, too
    score           the text of a Score; "": scores are not changed
    sinks           the softmax's sum of each head has one more term, exp(sink), which has no value
    lse             log(sum(exp(scores))) of each row is a result
    ragged          sequences have unequal lengths, which offsets say
    page            keys in a page of a paged cache; 0: it is not paged
    factors         q, k and v have a factor for each head of each sequence

    Its text is q's shape and formats, and a word for each unusual value: "1x32x4096x128 bf16 kv_heads=8 causal".
    ValueError for sizes below 0, formats that there are not, and heads that are no multiple of kv_heads.
    """
    sequences: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int
    value_size: int = None          # type: ignore[assignment]      # None: as `size`
    q: str = "f32"
    kv: str = ""                    # "": as `q`
    out: str = ""                   # "": as `q`, of e4m3fn bf16
    scale: float = None             # type: ignore[assignment]      # None: 1 / sqrt(size)
    before: int | None = None
    after: int | None = None
    upper: bool = False
    softcap: float = 0.0
    score: str = ""
    sinks: bool = False
    lse: bool = False
    ragged: bool = False
    page: int = 0
    factors: bool = False

    def __post_init__(self) -> None:
        usual = {"value_size": self.size if self.value_size is None else self.value_size, "kv": self.kv or self.q,
                 "out": self.out or (self.q if self.q in FLOATS else "bf16"),
                 "scale": 1 / math.sqrt(max(self.size, 1)) if self.scale is None else self.scale}
        self.__dict__.update(usual)         # the class is frozen
        if min(self.sequences, self.heads, self.queries, self.keys, self.page) < 0 or self.size < 1:
            raise ValueError("sizes of an attention must not be negative, and size not less than 1")
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, and they are {self.heads} and {self.kv_heads}")
        if self.q not in (*FLOATS, "e4m3fn") or self.kv not in (self.q, *NARROW) or self.out not in FLOATS:
            raise ValueError(f"no attention is of {self.q} queries by {self.kv} keys into {self.out}")

    def __str__(self) -> str:
        """Short, and read back by `parse` unless scores have a function, which it names by a digest."""
        usual = Attention(self.sequences, self.heads, self.heads, self.queries, self.queries, self.size, q=self.q)
        formats = (self.q, self.kv, self.out)
        words = ["x".join(map(str, (self.sequences, self.heads, self.queries, self.size))),
                 self.q if formats == (usual.q, usual.kv, usual.out) else "-".join(formats)]
        words += [f"{name}={getattr(self, name)}" for name in NUMBERS if getattr(self, name) != getattr(usual, name)]
        if self.band:
            ends = ("" if x is None else str(x) for x in (self.before, self.after))
            words += ["causal"] if self.band == "causal" and not self.after else [f"window={','.join(ends)}"]
        words += [name for name in FLAGS if getattr(self, name)]
        digest = hashlib.sha256(self.score.encode()).hexdigest()[:12]
        plain = self.score == score_text(traced(unchanged, (), self.softcap), ())
        return " ".join(words + ([] if plain else [f"score={digest}"]))

    @classmethod
    def parse(cls, text: str) -> Attention:
        """The attention of this text. ValueError for anything else."""
        try:
            shape, formats, *words = text.split()
            sequences, heads, queries, size = map(int, shape.split("x"))
            given: dict[str, Any] = {"kv_heads": heads, "keys": queries}
            given |= dict(zip(("q", "kv", "out"), formats.split("-"), strict="-" in formats))
            for word in words:
                name, _, value = word.partition("=")
                if name == "window":
                    given |= {end: int(x) if x else None for end, x in zip(("before", "after"), value.split(","),
                                                                        strict=True)}
                elif name in NUMBERS:
                    given[name] = (float if name in ("scale", "softcap") else int)(value)
                elif word in FLAGS:
                    given[name] = True
                elif word == "causal":
                    given["after"] = 0
                else:
                    raise ValueError(word)
            if given.get("softcap"):
                given["score"] = score_text(traced(unchanged, (), given["softcap"]), ())
            return cls(sequences=sequences, heads=heads, queries=queries, size=size, **given)
        except ValueError as error:
            raise ValueError(f"not an attention: {text!r} ({error}); one looks like '1x32x4096x128 bf16 kv_heads=8 "
                             "causal', sequences x heads x queries x size of q, its format, and more words: "
                             f"{', '.join(f'{name}=N' for name in NUMBERS)}, causal, window=BEFORE,AFTER, "
                             f"{', '.join(FLAGS)}") from None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields whose values are not the usual ones, by name, for JSON; Attention takes them as arguments."""
        usual = Attention(self.sequences, self.heads, self.kv_heads, self.queries, self.keys, self.size, q=self.q)
        return {name: x for name, x in vars(self).items() if name in REQUIRED or x != getattr(usual, name)}

    @property
    def band(self) -> str:
        """The keys that a query sees: "" all; "causal" keys up to its position plus `after`; "window" only keys from
        its position minus `before` on, too."""
        return "window" if self.before is not None else "causal" if self.after is not None else ""

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.heads // self.kv_heads

    @property
    def sums(self) -> str:
        """The format of scores and sums."""
        return "f64" if self.q == "f64" else "f32"

    @property
    def function(self) -> Score | None:
        """The score function, including the soft cap; None if scores are not changed."""
        return score_of(self.score) if self.score else None

    def seen(self, queries: int, keys: int) -> int:
        """Pairs of a query and a key that it sees, of one head of a sequence with so many."""
        i = np.arange(queries) + (0 if self.upper else keys - queries)
        low = np.zeros_like(i) if self.before is None else np.maximum(i - self.before, 0)
        high = np.full_like(i, keys) if self.after is None else np.minimum(i + self.after + 1, keys)
        return int(np.maximum(high - low, 0).sum())

    @property
    def pairs(self) -> int:
        """The number of pairs of a query and a key that it sees, over all heads, if each sequence is of full length."""
        return self.seen(self.queries, self.keys) * self.heads * (1 if self.ragged else self.sequences)

    @property
    def flops(self) -> int:
        """Operations of the two products, for pairs that are seen."""
        return 2 * self.pairs * (self.size + self.value_size)

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes of each array, as if each sequence had all `queries` and `keys`."""
        one = 1 if self.ragged else self.sequences
        rows, keys = one * self.heads * self.queries, one * self.kv_heads * self.keys
        bits = {name: FORMATS[getattr(self, name)].bits // 8 for name in ("q", "kv", "out")}
        found = {"Q": rows * self.size * bits["q"], "K": keys * self.size * bits["kv"],
                 "V": keys * self.value_size * bits["kv"], "out": rows * self.value_size * bits["out"]}
        return found | ({"lse": rows * FORMATS[self.sums].bits // 8} if self.lse else {})
