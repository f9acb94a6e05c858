"""Arrays in a GPU's memory, of any library: where they are, on which stream, and results like them.

A *library* knows four things about its arrays: the device, the stream on which its caller works just now, what an array
is (`look`), and how to make a new one. torch and CuPy say all of that themselves. Any other library is known by the
protocols DLPack and __cuda_array_interface__ alone, and gets its result by its own `from_dlpack`. On AMD's GPUs torch
calls everything by CUDA's names, and DLPack has a kind of device for them.

What is looked at appears as a NumPy *shadow*: an array with the address, shape and strides of the real one, so that
NumPy's and tilewright's rules for shapes, views and overlap serve for both. Its elements are never read.

Nothing here imports a library: a caller with a torch tensor has imported torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright import forks, formats
from tilewright.forks import cached_property
from tilewright.formats.quantized import Quantized
from tilewright.runtime.gpu import dlpack
from tilewright.runtime.gpu.dlpack import DeviceArray

LEGACY = 1  # CUDA's default stream, by the name that DLPack and __cuda_array_interface__ give it


class Platform:
    """A maker's GPUs: what they are called, the kinds of device that DLPack calls so, and the default stream there."""

    def __init__(self, maker: str, name: str, article: str, kinds: tuple[int, ...], default: int, binding: str) -> None:
        self.maker, self.name, self.memory = maker, name, f"{article} {name}'s memory"
        self.kinds, self.default_stream, self._binding = kinds, default, binding
        self.own: Library  # that of DeviceArray

    @cached_property
    def driver(self) -> Any:
        """The binding of the driver, imported when it is first needed: see runtime/gpu/driver.py."""
        return forks.imported(self._binding)

    @cached_property
    def engine(self) -> Any:
        """The engine of runtime/gpu/engine.py, imported when it is first needed."""
        return getattr(forks.imported("tilewright.runtime.gpu.engine"), self.maker)


CUDA = Platform("NVIDIA", "CUDA device", "a", (dlpack.CUDA, dlpack.CUDA_MANAGED), LEGACY,
                "tilewright.runtime.cuda.module")
HIP = Platform("AMD", "AMD GPU", "an", (dlpack.HIP,), 0, "tilewright.runtime.hip.module")


def dtype_of(dtype: Any, name: str) -> np.dtype[Any]:
    """A library's dtype as NumPy's; TypeError, with the argument's name, for one that tilewright does not know."""
    words = str(dtype).removeprefix("torch.")
    number_format = formats.find(words)
    if number_format is None or number_format.numpy_name != words:
        raise TypeError(f"{name} has dtype {words}, which tilewright does not multiply")
    return number_format.dtype


class Look(NamedTuple):
    """One array: its shadow, and whatever keeps its memory while the shadow is in use."""

    shadow: NDArray[Any]
    keep: Any

    @property
    def pointer(self) -> int:
        return self.shadow.__array_interface__["data"][0]


def library_of(*given: Any) -> Library | None:
    """The library of the first of these that is an array in a GPU's memory; None if none is."""
    for operand in given:
        x: Any = operand.elements if type(operand) is Quantized else operand
        if type(x) is np.ndarray or x is None:
            continue
        known = x.is_cuda if type(x) in TORCH.tensors else TORCH.knows(x)
        if known:
            return TORCH if sys.modules["torch"].version.hip is None else TORCH_HIP
        if known is None and (library := _library_by_protocol(x)) is not None:
            return library
    return None


def _library_by_protocol(x: Any) -> Library | None:
    if CUPY.knows(x):
        return CUPY
    if isinstance(x, DeviceArray):
        return x.platform.own
    try:
        if hasattr(type(x), "__dlpack_device__"):
            on = x.__dlpack_device__()[0]
            return next((library for library in (DLPACK, DLPACK_HIP) if on in library.platform.kinds), None)
        return INTERFACE if hasattr(x, "__cuda_array_interface__") else None
    except Exception:  # on several devices at once, on none, or being traced: nothing that could be looked at
        return None


def kind(x: Any) -> str:
    """What x is, for messages."""
    module, name = type(x).__module__.partition(".")[0], type(x).__qualname__
    return name if module == "builtins" else f"{module}.{name}"


def taker(like: Any) -> Callable[..., Any] | None:
    """The function by which `like`'s library takes arrays of others over; None if it has none."""
    namespace = getattr(like, "__array_namespace__", None)
    home: Any = namespace() if namespace else sys.modules.get(type(like).__module__.partition(".")[0])
    return getattr(home, "from_dlpack", None)


def shadow(pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any], keep: Any = None
           ) -> NDArray[Any]:
    """A NumPy array that is said to be there, and keeps `keep`. It must not be read where that is a GPU's memory."""
    if dtype.isbuiltin == 2:  # one of ml_dtypes', which the interface has no word for
        return shadow(pointer, shape, strides, np.dtype(f"u{dtype.itemsize}"), keep).view(dtype)
    interface = {"data": (pointer, False), "shape": shape, "strides": strides, "typestr": dtype.str, "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=interface, keep=keep))


def check_writable(readonly: bool, name: str, x: Any = None) -> None:
    """ValueError if an array must not be written. x: it, if DLPack alone tells of it, since capsules of JAX's arrays do
    not say that these are immutable. To store nothing in one of them is a TypeError, too."""
    try:
        if x is not None and not readonly:
            none: Any = (slice(0), ...) if len(x.shape) else ...
            x[none] = x[none]
    except TypeError:
        readonly = True
    if readonly:
        raise ValueError(f"{name} is read-only; it must be an array that can be written to")


# ---- libraries


class Library:
    """What is asked of an array's library."""

    waits: ClassVar[bool] = False  # must the host wait for the product, since the caller has no stream that could?
    alignment = 15  # the bits of an address that matter to a plan

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    def device(self, x: Any) -> int:
        """The device that x is on."""
        raise NotImplementedError

    def stream(self, x: Any, device: int) -> int:
        """The handle of the stream on which x's owner works."""
        raise NotImplementedError

    def look(self, x: Any, name: str, stream: int, write: bool = False) -> Look:
        """x, ready to be used on this stream; TypeError or ValueError, with `name`, if it cannot be."""
        raise NotImplementedError

    def plain(self, arrays: Collection[Any]) -> list[tuple[tuple[Any, ...], int] | None]:
        """What each array of the library is that `look` would take as it is: dtype, shape, strides and device, in the
        library's own terms and whatever is cheapest to compare; and the address of its first element. None where that
        takes a look, or it is another's."""
        return [None] * len(arrays)

    def asked(self, arrays: Collection[Any], *options: Any) -> tuple[tuple[Any, ...], list[int]] | None:
        """What a call is known by, as of runtime.repeats.HOST; Python's numbers may be among the arrays."""
        key: list[Any] = [self, options]
        at: list[int] = []
        bits = 0
        for x, plain in zip(arrays, self.plain(arrays)):
            if plain is not None:
                described, place = plain
                key.append(described)
                at.append(place)
                bits = bits << 4 | place & 15
            elif x is None or type(x) is float:
                key.append(type(x))
                at.append(0)
            else:
                return None
        key.append(bits)
        return tuple(key), at

    def maker(self, shape: tuple[int, ...], x: NDArray[Any], device: int) -> Callable[[int], Any]:
        """Makes arrays of this shape like x, on a stream."""
        return partial(self.empty, shape, x.dtype, device)

    def pointer(self, x: Any) -> int:
        """The address of a plain array's first element."""
        raise NotImplementedError("none of its arrays is plain")

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: int, stream: int) -> Any:
        """A new array in C order: ours, unless the library makes its own."""
        return DeviceArray(self.platform, self.platform.driver.device(device), shape, dtype, stream)

    def result(self, new: Any, like: Any) -> Any:
        """What `empty` has made, filled meanwhile, as an array of the same kind as `like`."""
        return new


class _Torch(Library):
    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self.tensors: set[type] = set()  # torch.Tensor and its subclasses with memory of their own, as they were met
        self.strided: Any = None  # torch's word for a layout, and the dtypes of parts of complex numbers
        self.parts: tuple[Any, ...] = ()
        self.made: dict[tuple[np.dtype[Any], int], tuple[Any, Any]] = {}  # torch's words for new tensors
        self.module: Any = None  # torch, and what `observed` asks of it
        self.modes: Any = None
        self.forward_ad: Any = None

    def knows(self, x: Any) -> bool | None:
        """Is x in a GPU's memory? None: it is not torch's."""
        if type(x) in self.tensors:
            return bool(x.is_cuda)
        torch = sys.modules.get("torch")
        if torch is None:
            return None
        tensor = getattr(torch, "Tensor", None)  # which a module that is being imported lacks
        if tensor is None or not isinstance(x, tensor):
            return None
        self.strided, self.parts = torch.strided, (torch.float32, torch.float64, torch.float16)
        if getattr(type(x), "__torch_dispatch__", None) is getattr(tensor, "__torch_dispatch__", None):
            self.tensors.add(type(x))
        return bool(x.is_cuda)

    def device(self, x: Any) -> int:
        return int(x.device.index)

    def stream(self, x: Any, device: int) -> int:
        torch = sys.modules["torch"]
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # what the public way asks, in a tenth of the time
        return int(raw(device) if raw else torch.cuda.current_stream(device).cuda_stream)

    def observed(self) -> bool:
        """Whether a dispatch mode of this thread (FakeTensorMode, make_fx) is to see each operation, or tensors may
        have tangents: then no call is like an earlier one."""
        torch = sys.modules["torch"]
        if torch is not self.module:
            self.module, inside = torch, getattr(torch, "_C", None)
            self.modes = getattr(inside, "_len_torch_dispatch_stack", int)
            none = SimpleNamespace(_current_level=-1)
            self.forward_ad = getattr(getattr(torch, "autograd", None), "forward_ad", none)
        return bool(self.modes()) or self.forward_ad._current_level >= 0

    def look(self, x: Any, name: str, stream: int, write: bool = False) -> Look:
        torch = sys.modules["torch"]
        if type(x) not in self.tensors and self.knows(x) is not None and type(x) not in self.tensors:
            raise TypeError(f"{name} is {kind(x)}, a subclass of torch.Tensor with its own __torch_dispatch__, which "
                            "may have no memory; operators of tilewright.torch take what torch.compile traces with")
        if x.layout != torch.strided:
            raise TypeError(f"{name} is a sparse tensor ({x.layout}); it must be dense")
        if x.requires_grad and torch.is_grad_enabled():
            tensor = name if name.isidentifier() else "its tensor"
            raise ValueError(f"{name} requires a gradient, and tilewright's functions of arrays have no backward pass: "
                             "for products tilewright.torch.matmul has one, for contractions tilewright.torch.einsum; "
                             f"or pass {tensor}.detach(), or call inside torch.no_grad()")
        if self.observed() and self.forward_ad.unpack_dual(x).tangent is not None:
            raise ValueError(f"{name} has a tangent, and tilewright's functions of arrays have no forward-mode "
                             "derivative: those of tilewright.torch have one")
        dtype = dtype_of(x.dtype, name)
        # Views of a conjugate: memory holds the values of x, or of its imaginary part, with the other sign.
        for view, made in ((x.is_neg(), "negated"), (dtype.kind == "c" and x.is_conj(), "conjugated")):
            if view and write:
                raise ValueError(f"{name} is a lazily {made} view, which cannot be written to")
            if view:
                x = x.resolve_neg() if made == "negated" else x.resolve_conj()
        strides = tuple(s * dtype.itemsize for s in x.stride())
        return Look(shadow(x.data_ptr(), tuple(x.shape), strides, dtype, x), x)

    def plain(self, arrays: Collection[Any]) -> list[tuple[tuple[Any, ...], int] | None]:
        if "torch" not in sys.modules or self.observed():
            return super().plain(arrays)
        described: list[tuple[tuple[Any, ...], int] | None] = []
        for x in arrays:
            described.append(None)
            if x is not None and (type(x) in self.tensors or (self.knows(x) is not None and type(x) in self.tensors)):
                dtype = x.dtype
                # Only a part of a complex tensor can be negated; only strided ones have strides and an address.
                lazy = x.is_neg() if dtype in self.parts else getattr(dtype, "is_complex", False) and x.is_conj()
                if x.layout is self.strided and not (lazy or (
                        x.requires_grad and sys.modules["torch"].is_grad_enabled())):
                    described[-1] = (dtype, x.shape, x.stride(), x.device), x.data_ptr()
        return described

    def pointer(self, x: Any) -> int:
        return int(x.data_ptr())

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: int, stream: int) -> Any:
        torch, how = sys.modules["torch"], self.made.get((dtype, device))
        if how is None:  # to find these words takes longer than the allocation
            how = self.made[dtype, device] = getattr(torch, dtype.name), torch.device("cuda", device)
        return torch.empty(shape, dtype=how[0], device=how[1])


class _CuPy(Library):
    def knows(self, x: Any) -> bool:
        ndarray = getattr(sys.modules.get("cupy"), "ndarray", None)
        return ndarray is not None and isinstance(x, ndarray)

    def device(self, x: Any) -> int:
        return int(x.device.id)

    def stream(self, x: Any, device: int) -> int:
        return int(sys.modules["cupy"].cuda.get_current_stream(device).ptr)

    def look(self, x: Any, name: str, stream: int, write: bool = False) -> Look:
        dtype = dtype_of(x.dtype, name)
        return Look(shadow(int(x.data.ptr), x.shape, x.strides, dtype), x)

    def plain(self, arrays: Collection[Any]) -> list[tuple[tuple[Any, ...], int] | None]:
        return [((x.dtype, x.shape, x.strides, x.device.id), int(x.data.ptr)) if self.knows(x) else None
                for x in arrays]

    def pointer(self, x: Any) -> int:
        return int(x.data.ptr)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: int, stream: int) -> Any:
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device):
            return cupy.empty(shape, dtype)


class _Protocol(Library):
    """A library that is known by a protocol alone."""

    def result(self, new: Any, like: Any) -> Any:
        """By the library's own from_dlpack; as a DeviceArray if it has none."""
        take = taker(like)
        return take(new) if take else new


class _DLPack(_Protocol):
    waits = True

    def device(self, x: Any) -> int:
        return int(x.__dlpack_device__()[1])

    def stream(self, x: Any, device: int) -> int:
        return self.platform.default_stream

    def look(self, x: Any, name: str, stream: int, write: bool = False) -> Look:
        if write and not isinstance(x, DeviceArray):    # which is a new result
            check_writable(False, name, x)
        given = stream or self.platform.default_stream  # to which x is synchronised
        try:
            capsule = x.__dlpack__(stream=given, max_version=dlpack.VERSION)
        except TypeError:  # from before DLPack had versions
            capsule = x.__dlpack__(stream=given)
        tensor = dlpack.read(capsule)
        check_writable(write and tensor.readonly, name)
        dtype = dtype_of(tensor.dtype, name)
        return Look(shadow(tensor.pointer, tensor.shape, tensor.strides, dtype), (x, capsule))


class _Interface(_Protocol):
    """https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html"""

    def device(self, x: Any) -> int:
        from tilewright.runtime.cuda.driver import api, call

        what = api().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        pointer = x.__cuda_array_interface__["data"][0]
        return int(call("cuPointerGetAttribute", what, pointer)) if pointer else 0

    def stream(self, x: Any, device: int) -> int:
        return int(x.__cuda_array_interface__.get("stream") or LEGACY)

    def look(self, x: Any, name: str, stream: int, write: bool = False) -> Look:
        says = x.__cuda_array_interface__
        if says.get("mask") is not None:
            raise TypeError(f"{name} has a mask, which a product cannot honour")
        pointer, readonly = says["data"]
        check_writable(write and readonly, name)
        dtype = dtype_of(np.dtype(says["typestr"]), name)
        shape = tuple(says["shape"])
        strides = says.get("strides") or dlpack.contiguous(shape, dtype.itemsize)
        return Look(shadow(pointer, shape, tuple(strides), dtype), x)


class _Own(_Interface):
    """DeviceArrays on CUDA devices, whose dtype the interface may have no words for."""

    def look(self, x: Any, name: str, stream: int, write: bool = False) -> Look:
        return Look(shadow(x.pointer, x.shape, dlpack.contiguous(x.shape, x.dtype.itemsize), x.dtype), x)

    def result(self, new: Any, like: Any) -> Any:
        return new


TORCH, CUPY, DLPACK, INTERFACE, OWN = _Torch(CUDA), _CuPy(CUDA), _DLPack(CUDA), _Interface(CUDA), _Own(CUDA)
TORCH_HIP, DLPACK_HIP = _Torch(HIP), _DLPack(HIP)
CUDA.own, HIP.own = OWN, DLPACK_HIP
