"""The products as type checkers see them: arrays give an array, tensors a tensor, a misspelt keyword is an error.

Read by type checkers alone, through tilewright/__init__.py. A test compares names and order of all parameters with the
functions. With an epilogue, and of other arrays (lists, CuPy, JAX, DLPack), results are Any. Where torch is not
installed a Tensor is Any.
"""

from typing import Any, Literal, TypedDict, TypeVar, overload

from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from typing_extensions import Unpack

from tilewright.compiled.packed_weights import PackedWeights
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import Scaled
from tilewright.runtime.cpu.packed import Packed

Array = NDArray[Any]
Narrow = Quantized | Scaled | Packed | PackedWeights
Trans = bool | Literal["n", "t", "c"]
Updated = TypeVar("Updated", Array, Tensor)

class _Run(TypedDict, total=False):
    deterministic: bool
    batch_invariant: bool
    threads: int | None

class _Product(_Run, total=False):
    trans_a: Trans
    trans_b: Trans
    scale_a: Any
    scale_b: Any
    prologue_a: Any
    prologue_b: Any
    operands: dict[str, Any] | None
    algorithm: str | None
    plan: Any

class _Matmul(_Product, total=False):
    out_dtype: Any
    alpha: complex
    beta: complex
    c: Any
    dtype: Any
    casting: str
    order: str
    axes: Any
    axis: Any
    subok: bool
    signature: Any

class _Sum(_Run, total=False):
    out_dtype: Any
    alpha: complex
    beta: complex
    c: Any
    operands: dict[str, Any] | None

class _Einsum(_Sum, total=False):
    optimize: Any
    order: str | None
    dtype: Any
    casting: Any

class _Grouped(_Run, total=False):
    out_dtype: Any
    alpha: float
    trans_a: Trans
    trans_b: Trans
    operands: dict[str, Any] | None
    plan: Any

@overload
def matmul(a: Array, b: Array | Narrow, out: Array | tuple[Array | None] | None = None, *, epilogue: None = None,
           **options: Unpack[_Matmul]) -> Array: ...
@overload
def matmul(a: Tensor, b: Tensor | Narrow, out: Tensor | tuple[Tensor | None] | None = None, *, epilogue: None = None,
           **options: Unpack[_Matmul]) -> Tensor: ...
@overload
def matmul(a: Any, b: Any, out: Any = None, *, epilogue: Any = None, **options: Unpack[_Matmul]) -> Any: ...
def gemm(alpha: complex, a: Any, b: Any, beta: complex, c: Updated, *,
         epilogue: Any = None, **options: Unpack[_Product]) -> Updated: ...
@overload
def einsum(subscripts: str, /, *given: Array, out: Array | tuple[Array | None, ...] | None = None,
           epilogue: None = None, **options: Unpack[_Einsum]) -> Array: ...
@overload
def einsum(subscripts: str, /, *given: Tensor, out: Tensor | tuple[Tensor | None, ...] | None = None,
           epilogue: None = None, **options: Unpack[_Einsum]) -> Tensor: ...
@overload
def einsum(*given: Any, out: Any = None, epilogue: Any = None, **options: Unpack[_Einsum]) -> Any: ...
@overload
def tensordot(a: Array, b: Array, axes: Any = 2, *, out: Array | tuple[Array | None, ...] | None = None,
              epilogue: None = None, **options: Unpack[_Sum]) -> Array: ...
@overload
def tensordot(a: Tensor, b: Tensor, axes: Any = 2, *, out: Tensor | tuple[Tensor | None, ...] | None = None,
              epilogue: None = None, **options: Unpack[_Sum]) -> Tensor: ...
@overload
def tensordot(a: Any, b: Any, axes: Any = 2, *, out: Any = None, epilogue: Any = None, **options: Unpack[_Sum]
              ) -> Any: ...
@overload
def grouped_matmul(a: Array, b: Array | Narrow, offsets: ArrayLike, out: Array | tuple[Array | None, ...] | None = None,
                   *, epilogue: None = None, **options: Unpack[_Grouped]) -> Array: ...
@overload
def grouped_matmul(a: Tensor, b: Tensor | Narrow, offsets: Tensor,
                   out: Tensor | tuple[Tensor | None, ...] | None = None, *, epilogue: None = None,
                   **options: Unpack[_Grouped]) -> Tensor: ...
@overload
def grouped_matmul(a: Any, b: Any, offsets: Any, out: Any = None, *, epilogue: Any = None, **options: Unpack[_Grouped]
                   ) -> Any: ...
