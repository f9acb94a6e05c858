"""Memory that emitted code and the runtime both read: the builtin's context, and NumPy's arrays.

Offsets in bytes. Nothing here needs the emission layer: a process whose kernels are all cached never loads it.
"""
from __future__ import annotations

# The context: 8 bytes each. SMALL is (small_gemm, its own context) for f32, then for f64.
PYTHON, VECTORCALL, NDARRAY, OUT, NEW, LARGEST, RELEASE_ABOVE, SMALL = 0, 8, 16, 24, 32, 40, 48, 56
CONTEXT_SIZE = SMALL + 32

# PyArrayObject, after the object's header; and PyArray_Descr
DATA, ND, DIMS, STRIDES, BASE, DESCR, FLAGS = 0, 8, 16, 24, 32, 40, 48
KIND, BYTEORDER, TYPE_NUM = 8, 10, 12           # KIND is one word that holds the two others
