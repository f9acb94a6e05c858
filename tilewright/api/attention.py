"""attention: softmax(score(Q K^T)) V by the engine of the memory that the arrays are in."""
from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright import forks
from tilewright.api import tensor_repeats, tensors
from tilewright.attention_problem import Attention
from tilewright.expressions.program import Expression
from tilewright.plans import asked as plans
from tilewright.rules import arguments
from tilewright.rules.attending import FACTORS, Asked, attending, checked_outs
from tilewright.rules.fusing import named_operands
from tilewright.runtime import repeats
from tilewright.runtime.cpu import pool
from tilewright.runtime.gpu.arrays import library_of
from tilewright.targets import detect


def attention(q: Any, k: Any, v: Any, *, causal: bool | str = False, window: Any = None, scale: float | None = None,
              bias: Any = None, operands: dict[str, Any] | None = None, softcap: float | None = None, sinks: Any = None,
              return_lse: bool = False, q_scale: Any = None, k_scale: Any = None, v_scale: Any = None,
              q_offsets: Any = None, k_offsets: Any = None, table: Any = None, lengths: Any = None, out: Any = None,
              out_dtype: Any = None, threads: int | None = None, plan: Any = None) -> Any:
    """softmax(score(scale q k^T)) v for each head of each sequence, without the matrix of scores in memory.

    q           [sequences, heads, queries, size], or the last three or two of these axes; any strides
    k, v        [sequences, kv heads, keys, size] and [..., value size]: query head h reads kv head h // (heads / kv
                heads), so that there may be fewer (GQA, MQA). f32, f64, f16 or bf16, all three the same; k and v also
                float8_e4m3fn or int8 beside f32, f16 and bf16; or all three e4m3fn, whose result is bf16
    causal      True: a query sees no key behind its position. The last query stands beside the last key ("lower
                right"); with "upper left" the first one stands beside the first key, as torch's is_causal has it
    window      (before, after), or one number for both: how many keys before and after its position a query sees; None:
                all of that side
    scale       factor of the products; default 1 / sqrt(size)
    bias        an array that broadcasts to [sequences, heads, queries, keys]: floats, which are added to the scores, or
                bool, False hiding a key; or a function of (score, i, j, head), traced once with symbols
                (docs/epilogues.md): the scaled product, the query's position, the key's index, the query's head
    operands    further parameters of such a function by name: arrays that broadcast like bias
    softcap     c: scores become c tanh(score / c), before bias
    sinks       [heads]: a score of each head that is added to the softmax's sum as exp(sink), and has no value
    return_lse  True: a tuple with log(sum(exp(scores))), [..., heads, queries] in f32 (f64)
    q_scale, k_scale, v_scale   a number, or float32 that broadcasts to [sequences, heads] (kv heads): factors of
                numbers in e4m3fn and int8
    q_offsets, k_offsets   [sequences + 1]: sequences of any lengths, one after the other along the axis of tokens; q
                is [heads, all queries, size], k and v likewise, and sequence s is q_offsets[s] to q_offsets[s + 1]
    table, lengths   a paged cache: k and v are [pages, kv heads, page, size], table [sequences, pages] says which page
                has keys page * n and on of a sequence, and lengths [sequences] how many keys it has. lengths without
                table: sequence s has the first lengths[s] of its keys
    out, out_dtype   where to write the result; its format, f32, f64, f16 or bf16
    threads     as in tilewright.matmul
    plan        a plan, or its text, in place of the chosen one

    Scores and sums are f32, of f64 operands f64; powers of bf16 operands are rounded to bf16 before they multiply v. A
    query that sees no key, or whose scores are all -inf, gives 0, and -inf as its lse. A score that is nan or inf makes
    its row nan; inf or nan in v of keys that a mask hides may do so, too. Results depend on no number of threads.

    Arrays on a CUDA device are used there; offsets, tables and lengths are there, too, and are not checked. TypeError
    and ValueError for other arguments, with what is allowed; TracingError, a TypeError, for what a function may not do.
    """
    how: tuple[Any, ...] | None = None
    if (sinks is q_scale is k_scale is v_scale is q_offsets is k_offsets is table is lengths is bias is operands is out
            is None) and return_lse is False and {type(scale), type(softcap)} <= NUMBERS and (
                {type(causal), type(window), type(threads), type(plan)} <= KINDS
                and (out_dtype is None or isinstance(out_dtype, (str, np.dtype, type)))):
        how = "attention", causal, repr(window), scale, softcap, out_dtype, type(threads), threads, plan
        if (again := _again(q, k, v, how)) is not None:
            return again
    given = {"q": q, "k": k, "v": v, "sinks": sinks, "q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale,
             "q_offsets": q_offsets, "k_offsets": k_offsets, "table": table, "lengths": lengths}
    given, asked = _asked(given, bias, operands, Asked(causal, window, scale, None, operands, softcap, return_lse,
                                                       out_dtype))
    library = None if type(q) is np.ndarray else library_of(q, k, v)
    if library is not None:
        engine = forks.imported("tilewright.runtime.gpu.attention")
        return engine.attention(library.platform.engine, given, asked, out, plan)
    if how is None or not type(q) is type(k) is type(v) in tensors.known:
        return _on_host(given, asked, out, threads, plan, how)
    return tensor_repeats.watched(lambda: _on_host(given, asked, out, threads, plan, how), how, (q, k, v))


NUMBERS = {int, float, type(None)}
KINDS = {bool, str, int, tuple, type(None)}


def _again(q: Any, k: Any, v: Any, how: tuple[Any, ...]) -> Any:
    """The result of a call like an earlier one of three arrays in the host's memory; None if there was none."""
    where: Any = repeats.HOST
    if type(q) in tensors.known and type(k) in tensors.known and type(v) in tensors.known:
        if (outputs := tensor_repeats.run_recorded(how, (q, k, v))) is not None:
            return outputs
        where = tensors.HOST
    elif not type(q) is type(k) is type(v) is np.ndarray:
        return None
    asked = where.asked((q, k, v, None), how, pool.get_num_threads())
    return None if asked is None else repeats.again(where, asked, (q, k, v), (None,))


SIGNATURE = inspect.signature(attention)
BESIDE = ("sinks", "q_scale", "k_scale", "v_scale", "q_offsets", "k_offsets", "table", "lengths")


def problem_of_call(function: Any, args: Sequence[Any], more: Mapping[str, Any]) -> Attention:
    """The problem of a call of attention, or of a partial of it, with these arguments; of arrays on a GPU as shadows.
    TypeError and ValueError as of the call."""
    args, more = (*getattr(function, "args", ()), *args), {**getattr(function, "keywords", {}), **more}
    bound = SIGNATURE.bind(*args, **more)
    bound.apply_defaults()
    named = bound.arguments
    arrays = {name: named[name] for name in (*"qkv", *BESIDE)}
    given, asked = _asked(arrays, named["bias"], named["operands"],
                          Asked(*(named[name] for name in Asked._fields)))
    if (library := library_of(*args[:3])) is None:
        return attending(_arrays(given), asked).problem
    run, looks = library.platform.engine.begin(given, {"out": None})
    with run:
        return attending({name: looks[name].shadow if name in looks else np.asarray(x) for name, x in given.items()},
                         asked, False).problem


def gradients(q: Any, k: Any, v: Any, out: Any, lse: Any, by_out: Any, by_lse: Any = None, *, bias: Any = None,
              operands: dict[str, Any] | None = None, threads: int | None = None, deterministic: bool = True,
              **more: Any) -> tuple[Any, ...]:
    """The gradients by q, k and v, and by sinks (None without, and for arrays in a GPU's memory), of attention with
    these arguments, whose results were out and lse, by those of its results. The score function's slope is found from
    its expression; bias and operands have no gradients. deterministic: on GPUs, False lets sums come in any order,
    which takes less time; on the host bits never depend on it. NotImplementedError where there are none
    (runtime/cpu/attention_gradients.py and plans/nvidia_attention_backward.py say where)."""
    numbers = {name: more.pop(name) for name in ("causal", "window", "scale", "softcap") if name in more}
    given, asked = _asked({"q": q, "k": k, "v": v, **more}, bias, operands, Asked(operands=operands, **numbers))
    library = None if type(q) is np.ndarray else library_of(q, k, v)
    if library is not None:
        engine = forks.imported("tilewright.runtime.gpu.attention_backward")
        results = {"out": out, "lse": lse, "by_out": by_out, "by_lse": by_lse}
        return *engine.gradients(library.platform.engine, given, asked, results, deterministic), None
    call = attending(_ready(_arrays(given)), asked)
    results = _ready(_arrays({"out": out, "lse": lse, "by_out": by_out}))
    logs = None if by_lse is None else _ready(_arrays({"by_lse": by_lse}))["by_lse"]
    four, three = (None,) * (4 - results["out"].ndim), (None,) * (3 - results["lse"].ndim)
    computed = forks.imported("tilewright.runtime.cpu.attention_gradients").gradients(
        call, results["out"][four], results["lse"][three], results["by_out"][four],
        None if logs is None else logs[three], threads)
    as_tensors = tensors.present(*given.values())
    shaped = [x if x is None else x.reshape(given[name].shape) for name, x in zip(("q", "k", "v", "sinks"), computed)]
    return tuple(tensors.tensor(x) if as_tensors and x is not None else x for x in shaped)


def _asked(given: dict[str, Any], bias: Any, operands: Any, asked: Asked) -> tuple[dict[str, Any], Asked]:
    """Arrays by the names of arguments, and what else there is."""
    if missing := [name for name in "qkv" if given[name] is None]:
        raise TypeError(f"{missing[0]} must be an array, not None")
    expression = bias is None or callable(bias) or isinstance(bias, Expression)
    named = {**given, "bias": None if expression else bias,
             **{f"operands[{name!r}]": x for name, x in named_operands(operands).items()}}
    single = {name: np.float32(x) if name in FACTORS and type(x) in (int, float) else x for name, x in named.items()
             if x is not None or name.startswith("operands")}
    return single, asked._replace(bias=bias if expression else None)


def _arrays(given: dict[str, Any]) -> dict[str, Any]:
    return {name: arguments.operand(tensors.array(x, name), name, least=0) for name, x in given.items()}


def _ready(arrays: dict[str, Any]) -> dict[str, Any]:
    """Arrays as kernels read them: aligned, in strides of whole elements, of the processor's byte order. The same
    object if all are so already."""
    if all(x.flags.c_contiguous and x.flags.aligned and x.dtype.isnative for x in arrays.values()):
        return arrays
    own = {name: x.dtype.newbyteorder("=") for name, x in arrays.items()}
    moved = {name: x.astype(own[name]) for name, x in arrays.items() if not arguments.ready(x, own[name])}
    return arrays | moved if moved else arrays


def _on_host(given: dict[str, Any], asked: Asked, out: Any, threads: int | None, plan: Any, how: Any) -> Any:
    """The result of arrays in the host's memory, NumPy's or tensors. how: what it is known by beside q, k and v, if a
    call like it may run its tasks again."""
    threads = arguments.thread_count(threads)
    as_tensors = tensors.present(*given.values(), out)
    seen = _arrays(given)
    arrays = _ready(seen)
    call = attending(arrays, asked)
    into = checked_outs(tensors.array(out, "out", True), call)
    result, lse, tasks = forks.imported("tilewright.runtime.cpu.attention").attend(
        call, into, threads, plan=plan if plan is None else plans.plan(plan, detect(), attention=True))
    if how is not None and arrays is seen and tasks is not None and result.size:
        where: Any = tensors.HOST if as_tensors else repeats.HOST
        known = where.asked((*given.values(), None), how, pool.get_num_threads())
        if known is not None:
            repeats.remember(known, tasks.run, [*arrays.values()], [result], shape=call.shape)
    shaped = out if out is not None else tensors.like(result.reshape(call.shape), *given.values())
    return shaped if lse is None else (shaped, tensors.like(lse.reshape(call.shape[:-1]), *given.values(), out))
