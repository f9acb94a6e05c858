"""Calls like earlier ones, which the builtin makes without Python: what may be repeated, and the records of it.

A call whose program is one run of a recipe, from the caller's own arrays to the array that it returns, gets a record:
kernels/cpu/repeat.py says what is in one, and which calls are like it. So what is repeated is what
has run, with the same plan and the same bits.
"""
from __future__ import annotations

import ctypes
import struct
import sys
from array import array
from collections.abc import Callable, Mapping
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright import forks
from tilewright.api import tensor_repeats, tensors
from tilewright.expressions import remembered
from tilewright.expressions.function import Epilogue
from tilewright.kernels.cpu import abi
from tilewright.runtime import repeats as records
from tilewright.runtime.cpu import exchange, pool, symmetric, workspace
from tilewright.runtime.cpu.layout import address

if TYPE_CHECKING:
    from tilewright.runtime.cpu.batches import Work
    from tilewright.runtime.cpu.engine import Run

SPACE = 16 << 20            # bytes for packed panels: products whose call takes longer need no record
NO_LEVEL = -1               # of torch's forward-mode derivatives, an int that is one object
KEYWORDS = {"out_dtype", "trans_a", "trans_b", "algorithm", "deterministic", "batch_invariant",     # beside out
            "threads", "epilogue", "operands"}
MASK = (1 << 64) - 1


class Repeats:
    """The table of one builtin. `begin(table, pool)` gives it their addresses, before the first record."""

    def __init__(self, release_above: int, begin: Callable[[int, Any], None]) -> None:
        self._slots = (ctypes.c_int64 * abi.SLOTS)()
        self._release_above, self._begin = release_above, begin
        self._records: dict[int, tuple[Any, ...]] = {}      # by slot: the key, the record and what it points to
        self._replaced: list[Any] = []                      # records that may still be running
        self._space: Any = None
        self._lock = forks.Lock()
        self.read = 0                                       # torch's function that describes tensors, if it has one
        self.refused: dict[tuple[Any, ...], Any] = {}       # calls of which no record can be made

    def forget(self) -> None:
        """Plans are chosen anew from now on."""
        with self._lock:
            ctypes.memset(self._slots, 0, ctypes.sizeof(self._slots))
            self._replaced += self._records.values()
            self._records.clear()
            self.refused.clear()

    def remember(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, call: records.Record, at: list[int],
                 running: Callable[[], int]) -> None:
        """Record a call that came down to this one with these addresses, if it can be repeated. `running`: how many
        records are running."""
        known_by = id(call), len(args), *kwargs
        if call.product is None or known_by in self.refused or not pool.common_threads():
            return                                          # where a thread has its own number no record is looked up
        with forks.building, self._lock:                     # in this order, as `forget` where a plan is chosen
            if not running():                               # what is in no slot cannot begin any more
                self._replaced.clear()
            if not self._remember(args, kwargs, result, call.product(at)) and len(self.refused) < abi.SLOTS:
                self.refused[known_by] = call

    def _remember(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, run: Run) -> bool:
        """Whether there is a record, or may be one of another such call: torch's tensors and state change unseen."""
        torchs = _Torchs.described(self.read, args, kwargs, result)
        args, kwargs, result = torchs.args, torchs.kwargs, torchs.result
        out = args[2] if len(args) == 3 else kwargs.get("out")
        named = {name: value for name, value in kwargs.items() if name != "out"}
        if not torchs.known:
            return True
        if not _repeatable(args, out, named, result, run):
            return False
        given = kwargs.get("operands") or {}
        operands = tuple(given.values())
        rows, called = _rows(given, run, result), Called.described(kwargs.get("epilogue"))
        if rows is None or called is None:
            return False
        key = key_of(args[0], args[1], out, kwargs, called, pool.get_num_threads(), torchs.types)
        slot, names = slot_of(key), called.names
        if slot in self._records and self._records[slot][:2] == (key, names):
            return True                                     # its operands overlap, or the workspace was taken
        if self._space is None:
            self._space = workspace.take(SPACE)
            self._begin(ctypes.addressof(self._slots), pool.pool())
        work = _work(run, self._space)
        if work is None or len(work.job) > abi.MOST_FIELDS:
            return False
        if (asked := torchs.guarded()) is None:
            return True
        looked_up = *names, *asked.names
        at_table = work.fields(run.recipe)["operands"] if operands else len(work.job)
        record = [len(key), *self._record(run, work, args, result), len(operands), at_table,
                  len(looked_up) // len(abi.NAMED), *asked.words]
        assert len(record) == len(abi.RECORD)
        memory = array("q", [*record, *key, *(0 for _ in range(abi.KEY - len(key))), *work.job, *rows, *looked_up])
        if slot in self._records:
            self._replaced.append(self._records[slot])
        dtypes = [getattr(x, "dtype", None) for x in (*args[:2], result, *operands)]
        values = [(name, [*x] if type(x) is dict else x) for name, x in named.items()]
        kept = dtypes, values, called, run.recipe, self._space, asked.kept
        self._records[slot] = key, names, memory, kept
        self._slots[slot] = memory.buffer_info()[0]
        return True

    def _record(self, run: Run, work: Work, args: tuple[Any, ...], result: Any) -> list[int]:
        recipe = run.recipe
        at = work.fields(run.recipe)
        at_a, at_b = (at["b"], at["a"]) if run.swapped else (at["a"], at["b"])
        multiplications = result.size * args[0].shape[-1]
        special = at["special"] if recipe.shape.tiles else len(work.job)
        sizes = [x.itemsize for x in (*args[:2], result)]
        return [work.function, work.parts, work.threads, work.wake, int(work.team),
                int(multiplications >= self._release_above), int(symmetric.may_be(run.a, run.b, run.c)),
                int(work.spaced), self._space.barriers, recipe.zeroed // 8, len(work.job), at_a, at_b, at["c"], special,
                *sizes, result.dtype.num, id(result.dtype), result.ndim, *[*result.shape, 0, 0, 0][:3]]


class _Torchs(NamedTuple):
    """A call with torch's tensors as one with NumPy's arrays at their addresses, and the parts of its record that
    NumPy's calls lack; any other call as it is."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    known: bool = True                          # it may be known again
    types: Mapping[int, int] = MappingProxyType({})     # DLPack's words for dtypes, by the ids of arrays
    tensors: tuple[Any, ...] = ()               # the result last
    words: tuple[int, int, int] = (0, 0, 0)     # the record's check, new and made
    names: tuple[int, ...] = ()                 # a abi.NAMED: there are no forward-mode derivatives now
    kept: Any = ()

    @classmethod
    def described(cls, read: int, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> _Torchs:
        if not args or not tensors.present(args[0]):
            return cls(args, kwargs, result)
        torch, operands = sys.modules["torch"], kwargs.get("operands") or {}
        out = args[2] if len(args) == 3 else kwargs.get("out")
        given = [x for x in (*args[:2], *operands.values(), out) if x is not None and type(x) is not float]
        plain = read and all(type(x) is torch.Tensor and x.device.type == "cpu" and not x.requires_grad
                             for x in (*given, result))
        if not plain:
            return cls(args, kwargs, result, False)
        arrays = {id(x): tensors.array(x, "an operand") for x in (*given, result)}
        said = {id(arrays[id(x)]): exchange.described(read, x) for x in given}
        if any(x.data_ptr() != address(arrays[id(x)]) for x in given) or None in said.values():     # lazily conjugated
            return cls(args, kwargs, result, False)

        def array(x: Any) -> Any:
            return {name: array(y) for name, y in x.items()} if type(x) is dict else arrays.get(id(x), x)
        return cls(tuple(map(array, args)), array(kwargs), array(result), True,
                   {at: x.type for at, x in said.items() if x is not None}, (*given, result))

    def guarded(self) -> _Torchs | None:
        """With what a record asks torch; None if what there is now can't be known again."""
        if not self.tensors:
            return self
        *given, result = self.tensors
        check, (new, made) = tensor_repeats.guard(given, result), tensor_repeats.empty_like(result)
        level = vars(sys.modules["torch"].autograd.forward_ad), sys.intern("_current_level"), NO_LEVEL
        return None if check is None else self._replace(
            tensors=(), words=(id(check), id(new), id(made)), names=tuple(map(id, level)),
            kept=(check, new, made, level))


def watching(python: Callable[..., Any], repeats: Repeats, running: Callable[[], int],
             builtin: Callable[[], Any]) -> Callable[..., Any]:
    """The Python function, which remembers calls; a function, since the builtin may call nothing else in Python 3.10.
    """
    def matmul(*args: Any, **kwargs: Any) -> Any:
        made = {name: sys.intern(x) for name, x in kwargs.items() if type(x) is str and sys.intern(x) is not x}
        if made:                                            # names that were read or composed: keys have the usual ones
            return builtin()(*args, **kwargs | made)
        with records.watching() as ran:
            result = python(*args, **kwargs)
        if len(ran) == 1:
            repeats.remember(args, kwargs, result, *ran[0], running)
        return result
    return matmul


def _repeatable(args: tuple[Any, ...], out: Any, named: dict[str, Any], result: Any, run: Run) -> bool:
    """Whether the run was all that the call came down to."""
    if not 2 <= len(args) <= 3 or len(named) > abi.MOST_KEYWORDS or not named.keys() <= KEYWORDS:
        return False
    read_b = run.b if run.given is None else run.given
    a, b = (read_b, run.a) if run.swapped else (run.a, read_b)
    for x, ran in zip((*args[:2], result), (a, b, run.c)):
        scalar = x is result and isinstance(x, np.generic) and ran.size == 1 and ran.dtype == x.dtype
        array = type(x) is np.ndarray and x.ndim <= 3 and x.flags.aligned and address(x) == address(ran)
        if (not (scalar or array) or x.itemsize != ran.itemsize or (x.dtype.kind == "c") != (ran.dtype.kind == "c")
                or not lasting(x.dtype)):
            return False
    if out is not result and (out is not None or not result.flags.c_contiguous):
        return False
    values = [x for name, x in named.items() if name not in ("epilogue", "operands")]
    return run.alpha == 1 and run.beta == 0 and all(map(lasting, values))


def _rows(given: dict[str, Any], run: Run, result: Any) -> list[int] | None:
    """A ROW for each operand of the epilogue that the run read; None if these are not the caller's own arrays, and
    floats. One of them may be the result."""
    names, operands = [*given], [*given.values()]
    if len(run.table) != len(operands) or len(operands) > abi.MOST_OPERANDS or (
            {*run.names} != {*names}):
        return None
    arrays = [x for x in operands if type(x) is not float]
    if any(type(x) is not np.ndarray or x.ndim > 3 or not x.flags.aligned or not lasting(x.dtype) for x in arrays):
        return None
    for x in arrays:
        if address(x) == address(run.c) and (x.shape, x.strides, x.dtype) != (
                result.shape, result.strides, result.dtype):
            return None
    rows: list[int] = []
    for name, (at, *strides) in zip(run.names, run.table):
        x = given[name]
        if type(x) is not float and address(x) != at:       # a copy was read
            return None
        rows += names.index(name), 8 if type(x) is float else x.itemsize, *strides
    return rows


def _work(run: Run, space: Any) -> Work | None:
    from tilewright.runtime.cpu import batches  # which a process that multiplies on a GPU does not load
    work: Work | None
    if run.given is None:
        work = batches.repeatable(run.recipe, run.batch, run.steps, space)
    else:                                                   # of which only a copy with contiguous rows is known
        across, along = run.given.strides[::-1] if run.given.ndim == 2 else (0, 0)
        size = run.b.itemsize
        work = (batches.by_copy(run.recipe, along // size, space)
                 if run.given.ndim == 2 and run.given.shape[1] == 1 else
                 batches.by_panels(run.recipe, across // size) if along == size else None)
    return work


# ---- what a call is known by: the words that kernels/cpu/repeat.py and called.py make of it, in Python

class Called(NamedTuple):
    """An epilogue, or None."""
    words: tuple[int, ...]
    names: tuple[int, ...]              # a NAMED for each name that it looks up
    kept: Any                           # the objects whose addresses these are

    @classmethod
    def described(cls, x: Any) -> Called | None:
        """None for a function that has to be looked at in every call: one that reads what may change unseen, or values
        of which equal ones are not one object."""
        if x is None or type(x) is Epilogue:
            return cls((id(x),), (), x)
        names = remembered.names_of(x)
        if names is None or x.__kwdefaults__ is not None:
            return None
        code, space = x.__code__, x.__globals__
        words, values = [id(code), id(space)], []
        for given in [cell.cell_contents for cell in x.__closure__ or ()], x.__defaults__:
            if given is not None and len(given) > abi.MOST_VALUES:
                return None
            words.append(len(given or ()))
            for operand in given or ():
                values.append(operand)
                if type(operand) is float:
                    words += abi.IS_FLOAT, *struct.unpack("q", struct.pack("d", operand))
                elif lasting(operand) if type(operand) in remembered.NUMBERS else remembered.constant(operand):
                    words.append(id(operand))
                else:
                    return None
        absent = remembered.ABSENT
        looked_up = [word for at, name, value in names.lookups
                     for word in (id(at), id(name), 0 if value is absent else id(value))]
        return cls(tuple(words), tuple(looked_up), (code, space, values, names))


def lasting(value: Any) -> bool:
    """Whether equal values are one object, so that its address tells them from others."""
    if type(value) is str:
        return sys.intern(value) is value
    return (isinstance(value, (bool, NoneType, type)) or (type(value) is int and -5 <= value <= 256)
            or (isinstance(value, np.dtype) and value is np.dtype(value.type)))


def key_of(a: Any, b: Any, out: Any, kwargs: Mapping[str, Any], called: Called, threads: int,
           types: Mapping[int, int] = MappingProxyType({})) -> tuple[int, ...]:
    """The key of a call, as kernels/cpu/repeat.py makes it. `types`: words in place of the addresses of dtypes, by the
    ids of arrays."""
    def words_of(x: Any) -> list[int]:
        if type(x) is float:
            return [abi.IS_FLOAT]
        return [types.get(id(x), id(x.dtype)), x.ndim, *(number for pair in zip(x.shape, x.strides) for number in pair)]

    named: list[int] = []
    for name, value in kwargs.items():
        if name == "epilogue":
            named += id(name), *called.words
        elif name == "operands" and type(value) is dict:
            named += id(name), len(value), *(word for x, y in value.items() for word in (id(x), *words_of(y)))
        elif name != "out":
            named += id(name), id(value)
    result = [0] if out is None else [1, *words_of(out)]
    if operands := kwargs.get("operands"):
        where = None if out is None else address(out)
        same = (type(x) is not float and address(x) == where for x in operands.values())
        result.append(sum(x << i for i, x in enumerate(same)))
    return *words_of(a), *words_of(b), *named, *result, threads


def slot_of(key: tuple[int, ...]) -> int:
    digest = 0
    for word in key:
        digest = ((digest ^ word) & MASK) * abi.FACTOR & MASK
    return digest >> abi.SHIFT & (abi.SLOTS - 1)
