"""What each argument of matmul may be by NumPy's rules, and the messages of the exceptions that say so.

Each function looks at one argument, returns it in the form the engine wants, or raises an exception of the type that
numpy.matmul raises and that names the argument, what it got and what it may be.
"""

from __future__ import annotations

import ctypes
import math
import operator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy import matmul  # not looked up at each call: users put tilewright's in its place
from numpy.typing import NDArray

from tilewright import formats
from tilewright.plans import asked
from tilewright.targets import machine

Array = NDArray[Any]

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
PLAIN = (F32, F64)  # of which operands and results may be without another thought


def operand(value: Any, name: str, least: int = 1) -> Array:
    """`value` as a plain ndarray of numbers with at least `least` axes."""
    if type(value) is not np.ndarray:
        _refuse_foreign(value, name)
    array = np.asarray(value)
    if array.dtype.kind in "USTMm" or array.dtype.type is np.void:  # text, times, records: no numbers in NumPy either
        raise TypeError(f"{name} must hold numbers, but its dtype is {array.dtype}")
    if array.ndim == 0 and array.dtype.kind == "O":
        raise ValueError(f"{name} must be an array, not {_no_array(array[()], name)}")
    if array.ndim < least:
        raise ValueError(f"{name} must have at least {least} axis, but it is a scalar; to scale a matrix use *")
    return array


def layout(flag: Any, name: str) -> str:
    """How an operand is stored, by trans_a or trans_b: "n" as multiplied, "t" transposed, "c" that and conjugated."""
    if not isinstance(flag, str):
        return "t" if flag else "n"
    if flag not in ("n", "t", "c"):
        raise ValueError(
            f'trans_{name} must be "n" or False, "t" or True (transposed), or "c" (transposed and conjugated), '
            f"not {flag!r}"
        )
    return flag


def transposed(array: Array, flag: Any, name: str) -> Array:
    """The last two axes swapped, if trans_a or trans_b says so."""
    if layout(flag, name) == "n":
        return array
    if array.ndim < 2:
        raise ValueError(f"trans_{name} needs {name} to have two axes or more, but its shape is {array.shape}")
    return array.swapaxes(-1, -2)


def single(value: Any, name: str) -> Any:
    """`value`, or the only element of a tuple: NumPy's ufuncs accept out=(array,)."""
    if not isinstance(value, tuple):
        return value
    if len(value) != 1:
        raise ValueError(f"{name} must be an array or a tuple of one array, not a tuple of {len(value)}")
    return value[0]


def output(value: Any, name: str = "out") -> Array | None:
    """The array to write to, or None."""
    if value is None:
        return None
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array, not {_kind(value)}")
    if type(value) is not np.ndarray:
        _refuse_foreign(value, name)
    if not value.flags.writeable:
        raise ValueError(f"{name} is read-only; it must be an array that can be written to")
    return np.asarray(value)


def addend(value: Any) -> Any:
    """c: a plain ndarray of numbers with any number of axes; a Python number and None as they are."""
    return value if value is None or isinstance(value, (int, float)) else operand(value, "c", least=0)


def dtypes(
    a: Array, b: Array, c: Any, out_dtype: Any, out: Array | None = None, updates: bool = False
) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """The dtype in which products are added up, and the dtype to which the sums are brought before anything else.

    The latter is the dtype NumPy would give the result, or `out_dtype`; a cast to out's follows. Sums run in a type
    that holds the operands and the result (formats.accumulator), so that asking for a narrow result rounds once, at the
    end, and asking for a wide one gives all its digits. A Python number as c is as weak as in NumPy.

    out: where the result goes. If it and the result are integers and it has no more bits, its dtype is the result's:
    the lowest bits are the same. `updates`: out is gemm's C, and C is one of the operands; a product of integers in an
    integer C is one modulo 2^bits even where NumPy's common dtype is f64.
    """
    if out_dtype is None and a.dtype is b.dtype in PLAIN and (c is None or getattr(c, "dtype", None) is a.dtype):
        return a.dtype, a.dtype
    added = c if c is None or isinstance(c, (bool, int, float)) else np.asarray(c).dtype
    wanted = None if out_dtype is None else formats.get(out_dtype, "out_dtype")
    return _decide(a.dtype, b.dtype, added, wanted, None if out is None else out.dtype, updates)


@lru_cache(maxsize=1024, typed=True)  # it asks NumPy about every pair: 20 us that a small product does not have
def _decide(
    a: Any, b: Any, c: Any, wanted: formats.Format | None, out: Any, updates: bool
) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """`dtypes`, by the dtypes of a and b, that of c or a Python number, the format that was asked for, and out's."""
    inputs = {"a": a, "b": b} | ({} if c is None else {"c": c})
    given = ", ".join(f"{name} is {dtype}" for name, dtype in inputs.items())
    formats_of_inputs = [formats.find(x) for x in inputs.values() if isinstance(x, np.dtype)]
    known = [f for f in formats_of_inputs if f is not None]
    if len(known) < len(formats_of_inputs):
        raise TypeError(f"{given}, which tilewright does not multiply")
    common = _common(*inputs.values())
    meeting = formats.promote(*known) if common is None else formats.get(common)
    integral = not isinstance(c, float) and formats.integral(*known)
    into = None if out is None or wanted is not None else formats.find(out)
    if updates and integral and isinstance(into, formats.Integer):
        wanted = into
    if wanted is None and common is None:
        raise TypeError(f"{given}, which have no common dtype in NumPy; out_dtype={meeting.name!r} would multiply them")
    result = wanted or meeting
    exact = integral and isinstance(result, formats.Integer)
    if not exact and formats.rank(result) < formats.rank(meeting):
        raise TypeError(f"out_dtype must not be {result.numpy_name}, to which products of {meeting.numpy_name} cannot "
                        "be cast (rule 'same_kind')")
    sums = formats.accumulator(*known, result) if exact else formats.accumulator(*known, meeting, result)
    if isinstance(result, formats.Integer) and isinstance(into, formats.Integer) and into.bits <= result.bits:
        result = into if np.can_cast(result.dtype, into.dtype, "same_kind") else result
    own = common if wanted is None and common == result.dtype else result.dtype     # np.longlong's, say, beside int64's
    return own if own == sums.dtype else sums.dtype, own


def _common(a: np.dtype[Any], b: np.dtype[Any], *added: Any) -> np.dtype[Any] | None:
    """What np.matmul gives for a and b, and np.add for that and c. It knows no narrow formats but f16, and multiplies
    them in f32 or i8, whose dtype its result then has."""
    try:
        product = matmul(np.empty((1, 0), a), np.empty((0, 1), b)).dtype
        return np.result_type(product, *added)
    except TypeError:  # no common dtype at all
        return None


def combined_in(a: Array, b: Array) -> np.dtype[Any]:
    """The dtype in which the terms of a semiring are computed and combined. TypeError for operands that it does not
    take."""
    known = [f for f in (formats.find(x.dtype) for x in (a, b)) if f is not None and not isinstance(f, formats.Complex)]
    if len(known) < 2:
        raise TypeError(f"a and b must be of real floating-point or integer formats, not {a.dtype} and {b.dtype}")
    meeting = [] if formats.integral(*known) else [formats.promote(*known)]
    return formats.accumulator(*known, *meeting).dtype


def converted(x: Array, dtype: np.dtype[Any]) -> Array:
    """x in the format of the arithmetic: as it is where an engine can take it, else a copy, whose rows are contiguous
    if x's are. Of integers the lowest bits count, so that u32 is taken as i32."""
    if x.dtype.kind == "u" and dtype.kind == "i" and x.dtype.itemsize == dtype.itemsize and x.dtype.isnative:
        x = x.view(dtype)
    return x if ready(x, dtype) else x.astype(dtype, "C" if x.strides[-1:] == (x.itemsize,) else "K")


def rounded(x: Array, dtype: np.dtype[Any]) -> Array:
    """x in the format of the result: rounded to nearest, even on ties; of integers the lowest bits."""
    with np.errstate(all="ignore"):
        return x.astype(dtype, copy=False)


def check_cast(source: np.dtype[Any], target: np.dtype[Any], name: str) -> None:
    """TypeError unless NumPy's rule same_kind allows the cast. The rule lets everything become a type of ml_dtypes, for
    which NumPy has no kind; here these count as what they are: no imaginary part is dropped, and no float becomes an
    integer."""
    if source is target:
        return
    known, into = formats.find(source), formats.find(target)
    narrower = known is not None and into is not None and formats.rank(into) < formats.rank(known)
    if narrower or not np.can_cast(source, target, "same_kind"):
        allowed = "any complex dtype" if source.kind == "c" else "any float or complex dtype"
        raise TypeError(
            f"{name} has dtype {target}, to which a result of dtype {source} cannot be cast (rule 'same_kind'); "
            f"it may be {allowed}"
        )


def number(value: Any, name: str) -> int | float | complex:
    """alpha or beta as it was given: an integer with all its digits; complex only if the imaginary part is not 0."""
    if isinstance(value, (str, bytes)) or getattr(value, "ndim", 0) != 0:
        raise TypeError(f"{name} must be a number, not {_kind(value)}")
    try:
        return int(operator.index(value))
    except TypeError:
        pass
    if not isinstance(value, complex) and getattr(getattr(value, "dtype", None), "kind", "") != "c":
        try:
            return _float(value)
        except (TypeError, ValueError, RuntimeError):  # torch refuses complex numbers by a RuntimeError
            pass
    try:
        as_complex = complex(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number, not {_kind(value)}") from None
    return as_complex if as_complex.imag else as_complex.real


def real(value: Any, name: str) -> float:
    """A real number, infinite if it is too large for a float."""
    as_number = number(value, name)
    if isinstance(as_number, complex):
        raise TypeError(f"{name} must be a real number, not {value!r}")
    return _float(as_number)


def _float(x: float) -> float:
    """x as a float, infinite if it is too large."""
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def factor(value: Any, name: str, sums: np.dtype[Any]) -> Any:
    """alpha or beta as a factor of sums in this dtype: in their precision, where a number beyond their range is inf, as
    in NumPy; of integers modulo 2^bits, signed."""
    as_number = number(value, name)
    if sums.kind == "i":
        if isinstance(as_number, complex) or not (isinstance(as_number, int) or as_number.is_integer()):
            raise TypeError(f"{name} must be a whole number where integers are multiplied, not {value!r}; "
                            f"out_dtype={'c128' if isinstance(as_number, complex) else 'f64'!r} multiplies them as "
                            f"{'complex numbers' if isinstance(as_number, complex) else 'floats'}")
        half = 1 << (8 * sums.itemsize - 1)
        return (int(as_number) + half) % (2 * half) - half
    if isinstance(as_number, complex):
        if sums.kind != "c":
            remedy = "c64" if sums == F32 else "c128"
            raise TypeError(f"{name} = {value!r} is complex, and the products are added up in {sums}, which has no "
                            f"imaginary part; with out_dtype={remedy!r} or a complex c they are complex")
        return as_number
    single = sums.itemsize == (8 if sums.kind == "c" else 4)
    return ctypes.c_float(_float(as_number)).value if single else _float(as_number)


def added(value: Any, dtype: np.dtype[Any]) -> Array:
    """c, an array or a Python number of any size, as an array: what is too large for a float is inf, and of an integer
    the lowest bits count."""
    if isinstance(value, int) and not isinstance(value, bool):
        return np.asarray(factor(value, "c", dtype) if dtype.kind in "ifc" else _float(value))
    return np.asarray(value)


def thread_count(value: Any) -> int | None:
    return None if value is None else machine.thread_count(count(value, "threads", ", or None for the default,"))


def count(value: Any, name: str, otherwise: str = ",") -> int:
    try:
        number = int(value.__index__())
    except AttributeError:
        raise TypeError(f"{name} must be an integer, not {value!r}") from None
    if number < 1:
        raise ValueError(f"{name} must be 1 or more{otherwise} not {number}")
    return number


def check_flag(value: Any, name: str) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, not {shown(value)}")


def check_batch_invariant(value: bool, plan: Any, algorithm: Any) -> None:
    """ValueError for options beside which other rows may change the bits of a row."""
    if value and plan is not None:
        raise ValueError(f"plan must be None with batch_invariant=True, not {plan}: the order of sums is chosen for "
                         "all numbers of rows")
    if value and algorithm is not None:
        raise ValueError(f"algorithm must be None with batch_invariant=True, not {algorithm!r}: an element that it "
                         "cannot split changes how all rows are multiplied")


def refuse(where: str, **options: Any) -> None:
    """ValueError for options that are not None. `where`: on which target, or with which operands, they have to be."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name}= is not supported {where}: it must be None, not {shown(value)}")


def shown(value: Any) -> str:
    return repr(value) if isinstance(value, (str, int, float)) else _kind(value)


def ready(array: Array, dtype: np.dtype[Any]) -> bool:
    """Can an engine take `array` as it is: of the given dtype, aligned, in strides of whole elements?"""
    return (
        array.dtype == dtype
        and array.flags.aligned
        and all(stride % dtype.itemsize == 0 for stride, extent in zip(array.strides, array.shape) if extent > 1)
    )


def wrap(result: Array, *operands: Any) -> Any:
    """The result as NumPy would return it: a scalar if it has no axes, an operand's subclass if one has a say."""
    scalar_result = result.ndim == 0
    having_a_say = [x for x in operands if type(x) is not np.ndarray and hasattr(x, "__array_wrap__")]
    if not having_a_say:
        return result[()] if scalar_result else result
    chosen = max(having_a_say, key=lambda x: getattr(x, "__array_priority__", 0))
    try:
        return chosen.__array_wrap__(result, None, scalar_result)
    except TypeError:  # written for NumPy 1
        return chosen.__array_wrap__(result)


def _refuse_foreign(value: Any, name: str) -> None:
    """No silent conversion of arrays that have their own idea of a product."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask a product cannot honour; pass {name}.filled(0)")
    override = getattr(type(value), "__array_ufunc__", np.ndarray.__array_ufunc__)
    if override is not np.ndarray.__array_ufunc__:
        raise TypeError(
            f"{name} is {_kind(value)}, which handles NumPy's functions itself (__array_ufunc__); "
            f"pass np.asarray({name}) to multiply it here"
        )


def _no_array(value: Any, name: str) -> str:
    """What an object is that NumPy makes no array of, and what to do with it."""
    if type(value).__module__.partition(".")[0] == "scipy" and hasattr(value, "toarray"):
        return f"a sparse one, {_kind(value)}: {name}.toarray() is an array, and scipy's @ multiplies it as it is"
    return "None" if value is None else _kind(value)


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray) and type(value) is np.ndarray:
        return f"an array of shape {value.shape}"
    module = type(value).__module__
    return type(value).__qualname__ if module == "builtins" else f"{module}.{type(value).__qualname__}"


def check_algorithm(name: Any, a: np.dtype[Any], b: np.dtype[Any], compute: np.dtype[Any], plan: Any,
                    target: Any = None) -> None:
    """TypeError or ValueError unless operands of these dtypes can be multiplied so on a target (None: a CPU)."""
    asked.algorithm(name, plan, target)
    split = asked.algorithms(target).get(name, "")  # "fastest" may leave any whole
    if split and not (a == b == formats.FORMATS[split].dtype and compute == F32):
        does = "splits" if "_x" in name else "multiplies"
        raise TypeError(f"algorithm={name!r} {does} operands of {formats.FORMATS[split].numpy_name} whose products are "
                        f"added up in float32; a is {a}, b is {b}, and they are added up in {compute}")
