"""Whom tilewright is compared with: what a file of peers/ says of a library, and which of them are here.

A file of peers/ defines `PEER`, a `Library`: its name, how it is found and loaded, and what steers it.  `load` gives a
`Peer`, ready for a thread count, with its version; `Peer.ways` gives the ways in which it computes a product of
formats: how operands are handed over, what one timed call is, whether B is packed beforehand.  `studies` has its calls
for cases of studies (study.py).  Files that begin with an underscore are what several peers share.  A new peer is one
such file: nothing else lists their names.

NumPy and torch are called as their users call them.  OpenBLAS, MKL and BLIS are C libraries: they are called through
a compiled wrapper with all arguments ready (peers/cblas.py), gemv where m or n is 1, so that neither ctypes nor any
argument checking is held against them.  tilewright is called as `tilewright.matmul(a, b, out)`, argument checking
included.  Each library runs the widest kernels that it has and this CPU can run; versions say which.
"""

from __future__ import annotations

import importlib.util
import math
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright import formats
from tilewright.lab.bench.cases import CPU, GPU, NATIVE, Product
from tilewright.lab.measure.measure import Call
from tilewright.lab.measure.operands import Array, Operands

if TYPE_CHECKING:
    from tilewright.lab.bench.gpu_device import TorchDevice

OURS = "tilewright"
NONE = "none"  # of --peers: tilewright alone


class Unavailable(Exception):
    """Why a peer is left out, in words for the report."""


class Unfit(Exception):
    """A peer has nothing for this problem, which is no error."""


@dataclass(frozen=True)
class Setting:
    """Where a library is loaded: the threads that it may use, the instruction set, on a GPU the device."""

    threads: int = 1
    isa: str = NATIVE
    on: TorchDevice | None = None


@dataclass(frozen=True)
class Way:
    """One way of a library to a product.  `bind` makes it a ready call that writes to C, or returns the result if
    `returns`."""

    name: str  # of its row
    how: str  # what one timed call is
    bind: Callable[[Operands], Call]
    prepared: bool = False  # B is packed by `bind`, which is not timed
    returns: Callable[[Any], Array] | None = None  # what a call returned, as an array


@dataclass(frozen=True)
class Peer:
    """One library, or tilewright, ready for a thread count."""

    name: str
    version: str
    how: str  # what one timed call is
    ways: Callable[[Product], Iterable[Way]]
    max_call_s: float = math.inf  # it sits a case out where one call would take longer than this
    einsum: Way | None = None  # of contractions, which returns a new array in C order


def single(name: str, version: str, how: str, bind: Callable[[Operands], Call], max_call_s: float = math.inf) -> Peer:
    """A peer with one way to everything."""
    return Peer(name, version, how, lambda product: [Way(name, how, bind)], max_call_s)


@dataclass(frozen=True)
class Library:
    """What a file of peers/ says: where the library may be found, and what steers it."""

    name: str
    load: Callable[[Setting], Peer] | None = None  # for products: Unavailable if it cannot be used
    wheel: str | None = None  # what to install
    is_here: Callable[[], bool] | None = None  # cheaper than to load it; default: whether the wheel's module is there
    device: str = CPU
    compiled: bool = False  # called without Python, which the suite that times calls must not count
    order: int = 50  # of loading and of columns
    threads: str | None = None  # X of the environment variable X_NUM_THREADS
    steered_by: tuple[str, ...] = ()  # beginnings of environment variables that a measuring process does not inherit
    avx2: Mapping[str, str] = field(default_factory=dict)  # environment that holds it to AVX2
    # by study: its calls, by the names of sides, from what a case of that study gives to peers (study.Case.given)
    studies: Mapping[str, Callable[..., Mapping[str, list[Call]]]] = field(default_factory=dict)

    @property
    def missing(self) -> bool:
        if self.is_here is not None:
            return not self.is_here()
        return self.wheel is not None and importlib.util.find_spec(self.wheel.replace("-", "_")) is None


@cache
def libraries() -> tuple[Library, ...]:
    """What the files of peers/ define, in the order in which they are loaded."""
    from tilewright.lab.bench import peers

    names = [module.name for module in pkgutil.iter_modules(peers.__path__) if not module.name.startswith("_")]
    defined = [vars(import_module(f"tilewright.lab.bench.peers.{name}")).values() for name in names]
    known = [value for values in defined for value in values if isinstance(value, Library)]
    return tuple(sorted(known, key=lambda library: library.order))


def names(device: str = CPU) -> list[str]:
    """The names of the peers of products, without tilewright."""
    return [library.name for library in libraries() if library.device == device and library.load]


def is_peer(row: str, device: str = CPU) -> bool:
    """Whether a row is a library's, and not tilewright's by default or by a plan: it is named after its library."""
    return row.startswith(tuple(names(device)))


def find(
    setting: Setting, wanted: Iterable[str] | None = None, device: str = CPU
) -> tuple[list[Peer], dict[str, str]]:
    """tilewright and the peers that are installed, and the reason for each peer that is not among them."""
    check_names(wanted or (), device)
    ways, left_out = [ours(setting)], {}
    for library in libraries():
        if library.load and library.device == device and (wanted is None or library.name in wanted):
            try:
                if library.missing:
                    raise Unavailable(f"{library.wheel} is not installed")
                ways.append(library.load(setting))
            except Unavailable as reason:
                left_out[library.name] = str(reason)
    return ways, left_out


def required(wanted: list[str] | None, device: str = CPU) -> list[str] | None:
    """`--peers` as `find` takes it: None for all that are here, [] for "none", which measures tilewright alone.

    ValueError at once for what is no peer, or is not installed, with what to do.
    """
    if not wanted:
        return None
    if wanted == [NONE]:
        return []
    check_names(wanted, device)
    missing = [x for x in libraries() if x.name in wanted and x.wheel and x.missing]
    if missing:
        missing.sort(key=lambda library: wanted.index(library.name))
        install = " ".join(str(library.wheel) for library in missing)
        raise ValueError(f"{' and '.join(x.name for x in missing)}: not installed; pip install {install}, or leave it "
                         f"out of --peers (--peers {NONE} measures tilewright alone)")
    return wanted


def check_names(wanted: Iterable[str], device: str = CPU) -> None:
    """ValueError if one of these is no peer."""
    unknown = sorted(set(wanted) - {OURS, *names(device)})
    if unknown:
        where = "on a GPU the peers are" if device == GPU else "the peers are"
        raise ValueError(f"unknown peer {unknown[0]!r}; {where} {', '.join(names(device))}")


# ---- tilewright itself, called as its users call it


def ours(setting: Setting) -> Peer:
    import tilewright as tw

    if setting.on is None:
        tw.set_num_threads(setting.threads)
    einsum = Way(OURS, "tilewright.einsum(subscripts, a, b, order='C')",
                 lambda o: (partial(tw.einsum, o.subscripts, order="C"), (o.a, o.b)))
    return Peer(OURS, tw.__version__, "tilewright.matmul(a, b, out)", our_ways, einsum=einsum)


def our_ways(product: Product, name: str = OURS, **options: Any) -> Iterator[Way]:
    """tilewright.matmul(a, b, out), with out_dtype and algorithm where the product asks for them."""
    import tilewright as tw

    options |= out_dtype(product) | ({"algorithm": product.algorithm} if product.algorithm else {})
    said = "".join(f", {key}={value!s}" for key, value in options.items())

    def bind(o: Operands) -> Call:
        scales = {} if o.scale_a is None else {"scale_a": o.scale_a, "scale_b": o.scale_b}
        return partial(tw.matmul, **options, **scales) if options or scales else tw.matmul, (o.a, o.b, o.c)

    yield Way(name, f"tilewright.matmul(a, b, out{said})", bind)


def out_dtype(product: Product) -> dict[str, Any]:
    """The keyword of tilewright.matmul for a result that is not of the operands' common format."""
    if product.a in formats.BLOCK_FORMATS:
        return {} if product.out == "f32" else {"out_dtype": formats.get(product.out).dtype}
    if formats.promote(product.a, product.b).name == product.out:
        return {}
    return {"out_dtype": formats.get(product.out).dtype}


def planned(text: str) -> Peer:
    """tilewright on a GPU by the plan that is written so."""
    import tilewright as tw
    from tilewright.plans.nvidia_plan import NvidiaPlan

    return Peer(text, tw.__version__, "tilewright.matmul(a, b, out, plan=...)",
                partial(our_ways, name=text, plan=NvidiaPlan.parse(text)))


def plan_of(problem: Any, target: Any, algorithm: str | None = None) -> str | None:
    """What tilewright.matmul runs for a problem on a GPU, for the record."""
    import tilewright as tw

    try:
        return str(tw.plan(problem, target, algorithm=algorithm))
    except (TypeError, ValueError):
        return None
