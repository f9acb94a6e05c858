"""Products inside JAX's programs: `tilewright.jax.matmul` and `einsum` in jit, grad, vmap, on CPUs and NVIDIA's GPUs.

    f = jax.jit(lambda x, w: tilewright.jax.matmul(x, w, epilogue=tw.gelu))

XLA calls tilewright by its foreign function interface, with its own buffers and on its own stream. See docs/arrays.md.
"""
from tilewright.text import install

try:
    import jax as jax
except ImportError as error:
    raise ImportError(f"tilewright.jax needs JAX: {install('jax')}") from error

from tilewright.jax import ffi
from tilewright.jax.products import einsum as einsum, matmul as matmul

ffi.register()
