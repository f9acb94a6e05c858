"""Types of the values in a kernel: scalars, short vectors, and pointers into one memory space."""
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from tilewright.forks import cached_property
from tilewright.targets.tensor_maps import Tile

_types: dict[tuple[str, int, int], Type] = {}


@dataclass(frozen=True, eq=False)
class Type:
    """A number, or a short vector of `length` of them (LLVM's `<length x scalar>`). Equal ones are one object, since
    recording compares types all the time."""
    kind: str           # "f": IEEE float, "bf": bfloat16, "i": integer (signedness belongs to the operation)
    bits: int
    length: int = 1

    def __new__(cls, kind: str, bits: int, length: int = 1) -> Type:
        return _types.setdefault((kind, bits, length), super().__new__(cls))

    def __getnewargs__(self) -> tuple[str, int, int]: return self.kind, self.bits, self.length

    def __str__(self) -> str:           # also LLVM's name mangling: f32, i64, v4f32
        return (f"v{self.length}" if self.length > 1 else "") + f"{self.kind}{self.bits}"

    @cached_property
    def is_float(self) -> bool:
        return self.kind != "i"

    @cached_property
    def scalar(self) -> Type:
        return self if self.length == 1 else replace(self, length=1)

    @cached_property
    def bytes(self) -> int:
        return max(self.bits // 8, 1) * self.length

    @cached_property
    def numpy(self) -> np.dtype:
        if self.kind == "bf":
            import ml_dtypes
            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(bool) if self.bits == 1 else np.dtype(f"{self.kind}{self.bits // 8}")


@dataclass(frozen=True)
class Pointer:
    """The address of elements of one scalar type, in "global", "shared", "cluster" (another CTA's shared) or "local"
    memory.

    The element type says only what the next index steps over: memory itself is bytes, and `Value.as_` looks at the
    same address as elements of another type.
    """
    element: Type
    space: str = "global"
    strided: bool = False       # a parameter's: the array may have any strides, which other parameters tell
    is_float = False

    def __str__(self) -> str:
        return f"{self.space} {self.element}*"


@dataclass(frozen=True)
class Texture:
    """A kernel parameter through which global memory is read as texels of `length` elements; outside it they are 0."""
    element: Type
    length: int = 4
    is_float = False

    def __str__(self) -> str:
        return f"texture of {self.texel}"

    @property
    def texel(self) -> Type:
        return replace(self.element, length=self.length)


@dataclass(frozen=True)
class TensorMap:
    """A kernel parameter, 128 bytes by value: how bulk copies find the tiles of a tensor. For the fields see
    `targets.tensor_maps.Tile`; ValueError for tiles that no device can copy."""
    element: Type
    box: tuple[int, ...]
    swizzle: int = 0
    steps: tuple[int, ...] = ()
    rounded: str = ""               # "tf32": loads round f32 to nearest, ties to even
    images: bool = False
    is_float = False

    def __post_init__(self) -> None:
        if why := list(self.tile.violations()):
            raise ValueError(f"{self}: {'; '.join(why)}")

    @property
    def tile(self) -> Tile:
        return Tile(self.rounded or str(self.element), self.box, self.swizzle, self.steps, self.images)

    def __str__(self) -> str:
        return str(self.tile)


f16, bf16, f32, f64 = Type("f", 16), Type("bf", 16), Type("f", 32), Type("f", 64)
i1, i8, i16, i32, i64 = (Type("i", bits) for bits in (1, 8, 16, 32, 64))


def scalar(t: object) -> Type:
    """t, if it is the type of one number; TypeError if it is not."""
    if not isinstance(t, Type) or t.length != 1:
        raise TypeError(f"elements must have a type of tilewright.ir, such as f32, i32 or i8, not {t!r}")
    return t


def number(t: object) -> Type:
    """t, if it is the type of a number or of a vector of them; TypeError if it is not."""
    if not isinstance(t, Type):
        raise TypeError(f"a number must have a type of tilewright.ir, such as f32, i32 or vec(f32, 4), not {t!r}")
    return t


@cache
def vec(scalar: Type, length: int) -> Type:
    return replace(scalar, length=length)


def ptr(element: Type, space: str = "global", strided: bool = False) -> Pointer:
    """The type of a parameter that is an array. `strided`: of any strides, which the kernel is given by other
    parameters; else the array must be contiguous."""
    return Pointer(scalar(element), space, strided)
