"""The oracle of products: integers exactly, floats between two bounds, by NumPy's long double and wrapping integers.

Nothing of the package is used but the dtypes of its number formats. `Product` judges alpha * a @ b + beta * c of any
numbers, infinite ones and overflows too; `expected` says what any other call gives (epilogues, prologues, groups,
scales, einsum, contract). The package's own checks (lab/measure/check.py and evaluated.py) judge products that are too
large for this, on a user's machine; they are among what tests check.

The bounds are those of docs/formats.md: k u times the sum of the products' sizes, u being 2^-24 or 2^-53, and a few u
for alpha, beta, the last addition and the conversion of integers that a float does not hold. Rounding to a narrower
format is monotonic, so that a right result lies between the rounded bounds; where the bounds are equal it is exact.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tilewright import formats
from tilewright.formats import Bool, Integer

LD = np.longdouble
Array = np.ndarray


def is_whole(dtype: np.dtype) -> bool:
    """Integers and bool."""
    return isinstance(formats.get(dtype), (Integer, Bool))


@dataclass
class Product:
    """alpha * (a @ b) + beta * c, for real scalars; `c` has the shape of the result. `whole`: the data are small
    whole numbers."""

    a: Array
    b: Array
    c: Array | None
    alpha: float | int
    beta: float | int
    whole: bool = False
    flushed: bool = False  # numbers below 2^-126 may count as zero
    relative: float = 0.0  # a bound of its own beside k u, for `algorithm`

    def check(self, got: Array, *chain: np.dtype) -> None:
        """AssertionError unless `got` is this product, rounded to the first dtype, then to the next and so on."""
        result, k = chain[0], self.a.shape[-1]
        c = self.c if self.beta else None
        if is_whole(result) and all(x is None or is_whole(x.dtype) for x in (self.a, self.b, c)):
            want = self._modulo(result)
            for dtype in chain[1:]:
                want = _cast(want, dtype)
            _equal(got, want)
            return
        sums = formats.accumulator(*(x.dtype for x in (self.a, self.b, self.c) if x is not None), result).dtype
        with np.errstate(all="ignore"):  # scalars have the format of the sums
            alpha, beta = (LD(np.array(x, _real(sums))) for x in (self.alpha, self.beta))
        # As in BLAS: where alpha or k is 0, the other one is not looked at, nor c where beta is.
        a, b = (self.a, self.b) if alpha and k else (self.a[..., :0], self.b[..., :0, :])
        c = None if c is None or not beta else c.astype(sums) if sums.kind == "c" else c
        u, most = np.finfo(sums).eps / 2, LD(np.finfo(sums).max)
        parts, real = _parts(a, b), False
        if got.dtype.kind == "c" and len(parts) == 1:
            parts.append((np.zeros_like(parts[0][0]), np.zeros_like(parts[0][0])))
            real = True
        for part, (total, size) in enumerate(parts):
            with np.errstate(all="ignore"):
                tiny = LD(np.finfo(sums).smallest_subnormal) if not self.flushed else LD(2.0**-126)
                error = 1.01 * ((2 * k if sums.kind == "c" else k) + 8) * u * size + self.relative * size
                error = np.where(size > 0, error + 4 * (k + 3) * tiny, 0)
                if self.whole:
                    error = np.where(size < 0.5 / u, 0, error)
                lost = _lost(a, b) if self.flushed and a.dtype.kind != "c" else LD(0)
                error = error + np.where(np.isfinite(lost), lost, 0)
                # The imaginary part of a product of real numbers is 0, whatever alpha is.
                scaled = alpha and k and not (real and part)
                ends = [alpha * (total - error), alpha * (total + error)] if scaled else [total, total]
                # What says nothing: sums that may overflow on their way, block by block of k, and what may be 0 * inf.
                free = (1.01 * size * (max(1, abs(alpha)) if np.isfinite(alpha) else 1) >= most) & ~np.isnan(total)
                free |= ~np.isfinite(lost)                      # 0 * inf is nan
                if scaled and not np.isfinite(alpha):
                    free |= (total - error <= 0) & (total + error >= 0) & (error > 0)
                added, room = LD(0), LD(0)
                if (add := _part(c, part)) is not None:
                    # Blocks of k are added to beta * c one after another, and each addition is rounded.
                    added = beta * _as_ld(add)
                    room = np.where(np.isfinite(added), (k + 8) * u * np.abs(added), 0)
                    free |= np.isfinite(added) & (np.abs(added) >= most / 2)
                if scaled and np.isfinite(alpha):
                    room = room + 4 * u * np.abs(alpha) * size
                exact = self.whole and all(float(x).is_integer() for x in (alpha, beta))
                limit = float(np.max(np.where(np.isfinite(added), np.abs(added), 0) + abs(alpha) * size, initial=0))
                room = LD(0) if exact and limit < 0.5 / u else room + np.where(room > 0, 4 * tiny, 0)
                _between(_part(got, part), np.fmin(*ends) + added - room, np.fmax(*ends) + added + room, free,
                         [_real(d) for d in (sums, *chain)])

    def _modulo(self, result: np.dtype) -> Array:
        def bits(x: Array) -> Array:
            return x.astype(np.uint64 if x.dtype == np.uint64 else np.int64).astype(np.uint64)
        if isinstance(formats.get(result), Bool):
            count = (self.a.astype(np.int64) @ self.b.astype(np.int64)).astype(object) * int(self.alpha)
            if self.beta:
                count = count + int(self.beta) * self.c.astype(np.int64).astype(object)
            return (count % 2**32 != 0).astype(bool)  # sums have 32 bits
        with np.errstate(all="ignore"):
            total = np.matmul(bits(self.a), bits(self.b)) * np.uint64(int(self.alpha) % 2**64)
            if self.beta:
                total = total + bits(self.c) * np.uint64(int(self.beta) % 2**64)
        return _cast(total, result)


def _lost(a: Array, b: Array) -> Array:
    """What an instruction may lose that takes operands below 2^-126 for 0; inf where it gives nan for infinity."""
    a, b = (np.nan_to_num(np.abs(_as_ld(x)), nan=0, posinf=np.inf) for x in (a, b))
    infinite = [np.isinf(x) for x in (a, b)]
    a, b = (np.where(x, 0, y) for x, y in zip(infinite, (a, b)))
    small_a, small_b = (np.where(x < LD(2.0**-126), x, 0) for x in (a, b))
    met = np.matmul(small_a > 0, infinite[1]) | np.matmul(infinite[0], small_b > 0)
    return np.where(met, np.inf, np.matmul(small_a, b) + np.matmul(a, small_b))


def _cast(x: Array, dtype: np.dtype) -> Array:
    """The lowest bits of whole numbers; anything else as NumPy casts. Formats of less than a byte by int64."""
    if x.dtype.kind in "iu" and isinstance(formats.get(dtype), Integer) and formats.get(dtype).bits < 8:
        f = formats.get(dtype)
        low = x.astype(np.int64) & (2**f.bits - 1)
        return np.where(low > f.largest, low - 2**f.bits, low).astype(dtype)
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def _equal(got: Array, want: Array) -> None:
    bad = got != want
    if got.dtype.kind in "fcV":
        bad &= ~((got != got) & (want != want))
    if np.any(bad):
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise AssertionError(f"{np.count_nonzero(bad)} of {bad.size} elements differ; at {where} there is "
                             f"{got[where]}, and should be {want[where]}")


def _parts(a: Array, b: Array) -> list[tuple[Array, Array]]:
    """(the product, the sum of the products' sizes), of the real part and of the imaginary one if there is one."""
    ar, ai, br, bi = _part(a, 0), _part(a, 1), _part(b, 0), _part(b, 1)
    with np.errstate(all="ignore"):
        real, real_size = _times(ar, br)
        imaginary = imaginary_size = None
        if ai is not None and bi is not None:
            other, other_size = _times(ai, bi)
            real, real_size = real - other, real_size + other_size
        for x, y in (ar, bi), (ai, br):
            if x is not None and y is not None:
                more, more_size = _times(x, y)
                imaginary = more if imaginary is None else imaginary + more
                imaginary_size = more_size if imaginary_size is None else imaginary_size + more_size
    return [(real, real_size)] + ([(imaginary, imaginary_size)] if imaginary is not None else [])


def _times(x: Array, y: Array) -> tuple[Array, Array]:
    x, y = _as_ld(x), _as_ld(y)
    finite = [np.abs(np.where(np.isfinite(z), z, 0)) for z in (x, y)]
    return np.matmul(x, y), np.matmul(*finite)


def _part(x: Array | None, part: int) -> Array | None:
    if x is None or x.dtype.kind != "c":
        return x if part == 0 else None
    return x.imag if part else x.real


def _real(dtype: np.dtype) -> np.dtype:
    return np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype


def _as_ld(x: Array) -> Array:
    return x.astype(np.float64 if x.dtype.kind not in "iufg" else x.dtype).astype(LD)


def _between(got: Array, low: Array, high: Array, free: Array, chain: list[np.dtype]) -> None:
    either = (low < 0) & (high > 0)
    for dtype in chain:
        low, high = _cast(low, dtype), _cast(high, dtype)
    free = free | either & np.isnan(_as_ld(low)) & np.isnan(_as_ld(high))  # too large a number of either sign is nan
    low, high, g = (_as_ld(x) for x in (low, high, got))
    above, below = ~np.isnan(low) & (g >= low), ~np.isnan(high) & (g <= high)
    overflown = np.isnan(low) | np.isnan(high)          # or nan altogether, and then nothing else is right
    bad = ~(np.where(overflown, np.isnan(g) | above | below, above & below) | free)
    if np.any(bad):
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise AssertionError(f"{np.count_nonzero(bad)} of {bad.size} elements are wrong; at {where} there is "
                             f"{g[where]}, and should be from {low[where]} to {high[where]}")


# ---- any call


class Problem(NamedTuple):
    """What a call computes, in NumPy's words: functions are given and give NumPy's arrays of exact numbers. Arrays that
    they take beside a product are the parameters of their names."""

    sums: np.dtype                                      # in which products are added up
    whole: bool = True                                  # all numbers are small whole ones: every sum is exact
    alpha: Any = 1
    beta: Any = 0
    subscripts: str = ""                                # of einsum
    others: int = 0                                     # further operands of it: "operand 2" and so on
    term: Callable[..., Array] | None = None            # of elements of a and b, in place of their product
    reduce: Callable[..., Any] | None = None            # of terms [..., m, k, n] along k, in place of the sum
    ends: tuple[int, ...] = ()                          # of groups of rows of a, or of steps of k where b has two axes
    of_groups: frozenset[str] = frozenset()             # operands whose first axis is that of the groups
    prologue_a: Callable[..., Array] | None = None
    prologue_b: Callable[..., Array] | None = None
    epilogue: Callable[..., Any] | None = None
    magnified: float = 1.0                              # by how much an error of sums is, at most, in the results
    own: float = 0.0                                    # of the functions: relative to the largest number
    within: float = 0.0                                 # of |a| |b|: what formats of operands or an algorithm add


class Expected(NamedTuple):
    """One result: exact numbers, and how far from them a number may be before it is rounded to the result's format."""

    value: Array
    error: Any = 0.0
    sums: np.dtype = np.dtype(np.float64)

    def check(self, got: Array, *between: np.dtype) -> None:
        """AssertionError unless `got` is this, rounded to the dtypes between in turn, and to that which it has."""
        assert got.shape == self.value.shape, f"the shape is {got.shape}, and should be {self.value.shape}"
        got, kind = np.asarray(got), formats.get(got.dtype)
        if isinstance(kind, (Integer, Bool)):
            value = self.value
            for dtype in between:
                value = _cast(value, dtype)
            _equal(got, value != 0 if isinstance(kind, Bool) else _cast(value, got.dtype))
            return
        sums = _real(self.sums) if self.sums.kind in "fc" else np.dtype(np.float64)
        for part in range(1 + (got.dtype.kind == "c")):
            value = _part(self.value, part)
            value = np.zeros(got.shape) if value is None else value
            with np.errstate(all="ignore"):
                low, high = (_as_ld(value) + sign*_as_ld(np.asarray(self.error)) for sign in (-1, 1))
            chain = [*dict.fromkeys(map(_real, (*between, got.dtype)))]
            chain = [*dict.fromkeys((sums, *chain))] if sums.itemsize > 2 else chain
            _between(np.asarray(_part(got, part)), low, high, np.zeros(got.shape, bool), chain)


def expected(problem: Problem, arrays: Mapping[str, Array]) -> list[Expected]:
    """The results of a call with these arrays: "a", "b", and others by their names."""
    if problem.ends:
        return _of_groups(problem, arrays)
    a, b = (_wide(x, problem) for x in _prepared(problem, arrays))
    scales = [arrays.get(name) for name in ("scale_a", "scale_b")]
    if any(x is not None and x.ndim > 1 and (x.shape[k] > 1 or x.shape[-1] not in (1, length))
           for x, k, length in zip(scales, (-1, -2), (a.shape[-1], b.shape[-1]))):          # of blocks
        a, b = (x if scale is None else x * _spread(_spread(scale, -1, x.shape[-1]), -2, x.shape[-2])
                for x, scale in zip((a, b), scales))
        scales = []
    value, size = _sums(problem, arrays, a, b)
    for scale, one in zip(scales, ((..., 0), (..., 0, slice(None)))):
        if scale is not None:
            scale = scale[one] if scale.ndim > value.ndim else scale
            value, size = value*scale, size*abs(scale)
    return _finished(problem, arrays, value, size, a.shape[-1] if a.ndim else 1)


def _prepared(problem: Problem, arrays: Mapping[str, Array]) -> list[Array]:
    """The operands, of which prologues may have arrays with a number for several steps of k."""
    prepared = []
    for role, by, axis in (("a", problem.prologue_a, -1), ("b", problem.prologue_b, -2)):
        x, k = arrays[role], arrays[role].shape[axis:][0] if arrays[role].ndim >= -axis else 0
        given = by and {name: y if y.ndim < -axis or y.shape[axis] in (1, k) else y.repeat(k // y.shape[axis], axis)
                        for name, y in arrays.items() if name in inspect.signature(by).parameters}
        prepared.append(x if by is None else np.broadcast_to(_called(by, (x,), given), x.shape))
    return prepared


def _spread(scale: Array, axis: int, length: int) -> Array:
    """A scale for each element along an axis, of blocks of 16 to 128 where there are fewer."""
    count = scale.shape[axis]
    if count in (1, length):
        return scale
    block = next(x for x in (16, 32, 64, 128) if -(-length // x) == count)
    return scale.repeat(block, axis).take(range(length), axis)


def _called(function: Callable[..., Any], numbers: tuple[Array, ...], arrays: Mapping[str, Array]) -> Any:
    """The function of these numbers and of the arrays that its further parameters name."""
    names = [*inspect.signature(function).parameters][len(numbers):]
    with np.errstate(all="ignore"):
        return function(*numbers, **{name: arrays[name] for name in names})


def _wide(x: Array, problem: Problem) -> Array:
    """In a format in which sums are exact, or wider than those of the call."""
    if problem.sums.kind == "c" or x.dtype.kind == "c":
        return x.astype(np.clongdouble if problem.sums.itemsize > 8 and not problem.whole else np.complex128)
    if problem.sums.kind in "iub":
        return x.astype(np.int64)
    return x.astype(LD if problem.sums.itemsize > 4 and not problem.whole else np.float64)


def _sums(problem: Problem, arrays: Mapping[str, Array], a: Array, b: Array) -> tuple[Any, Any]:
    """The sums of products, and of the products' sizes."""
    with np.errstate(all="ignore"):
        if problem.subscripts:
            given = a, b, *(_wide(arrays[f"operand {i}"], problem) for i in range(2, 2 + problem.others))
            return np.einsum(problem.subscripts, *given), np.einsum(problem.subscripts, *map(abs, given))
        if problem.term is not None:
            assert problem.reduce is not None
            left, right = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
            value = problem.reduce(problem.term(left[..., :, :, None], right[..., None, :, :]))
            away = tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1)
            return (tuple(x.squeeze(away) for x in value) if isinstance(value, tuple) else value.squeeze(away)), 0.0
        return np.matmul(a, b), np.matmul(abs(a), abs(b))


def _finished(problem: Problem, arrays: Mapping[str, Array], value: Any, size: Any, k: int) -> list[Expected]:
    """The results that the epilogue makes of the sums times alpha, and what c adds to them."""
    rounding = np.finfo(problem.sums).eps / 2 if problem.sums.kind in "fc" else 0.0
    steps = 0 if problem.whole else (2*k if problem.sums.kind == "c" else k) + 8
    share = steps*rounding + problem.within
    error = share*size if share else 0.0
    if not isinstance(value, tuple):
        value, error = value*problem.alpha, error*abs(problem.alpha)
        if problem.beta:
            added = problem.beta * (_wide(arrays["c"], problem) if problem.sums.kind in "iub" else arrays["c"])
            value = value + added
            error = error + (0.0 if problem.whole else 8*rounding*abs(added))
    if problem.epilogue is not None:
        value = _called(problem.epilogue, value if isinstance(value, tuple) else (value,), arrays)
    several = value if isinstance(value, tuple) else (value,)
    return [Expected(np.asarray(x), _error(problem, x, error), problem.sums) for x in several]


def _error(problem: Problem, value: Array, error: Any) -> Any:
    """The bound of a result: what is left of the sums' error, and the functions' own."""
    if problem.epilogue is None and not problem.own:
        return error
    largest = np.max(np.abs(value), initial=1.0, where=np.isfinite(value)) if value.dtype.kind in "fg" else 0.0
    return problem.magnified * np.max(error, initial=0.0) + problem.own * float(largest)


def _of_groups(problem: Problem, arrays: Mapping[str, Array]) -> list[Expected]:
    """Each group by itself: results of rows follow one another, others are stacked; zeros where there is no group."""
    a, b = arrays["a"], arrays["b"]
    parts, low, rows, alone = [], 0, b.ndim == 3, problem._replace(ends=(), of_groups=frozenset())
    sizes = np.diff(problem.ends, prepend=0).tolist()
    for group, high in enumerate(problem.ends):
        at = slice(low, high)
        given = {name: x[group] if name in problem.of_groups else x[at] if rows and x.ndim > 1 and x.shape[0] == len(a)
                 else x for name, x in arrays.items()}
        given |= {"a": a[at], "b": b[group]} if rows else {"a": a[:, at], "b": b[at]}
        parts.append(expected(alone, given))
        low = high
    results = []
    for several in zip(*parts, strict=True):
        value, error = ([x[i] for x in several] for i in (0, 1))
        if rows and (value[0].ndim == 2 or [*map(len, value)] == sizes != [b.shape[-1]] * len(sizes)):
            none = np.zeros((len(a) - low, *value[0].shape[1:]), value[0].dtype)
            whole = np.concatenate([*value, none])
            errors = [np.broadcast_to(x, y.shape) for x, y in zip(error, value)]
            errors = np.concatenate([*errors, np.zeros(none.shape)])
        else:
            whole, errors = np.stack(value), np.stack([np.broadcast_to(x, y.shape) for x, y in zip(error, value)])
        results.append(Expected(whole, errors, problem.sums))
    return results
