"""Python functions of numbers as data: what an epilogue, a prologue or a product's own arithmetic computes.

A function is called once with symbols (tracing.py), and what it did to them is a short program of elementary operations
(program.py), each of which is defined in one place (operations.py). Kernels record that program
(kernels/expression.py), NumPy evaluates it (`Expression.evaluate`), and its text is what plans, caches and bundles
hold. A `Function` (function.py) is an expression with the arrays that it reads and the formats of its numbers.
"""
DEFAULT = "-"           # in a function's text in place of a result's format: that which C has without an epilogue
HALVES = "x2"           # after i4, u4 or e2m1: two elements of 4 bits to a byte, along what is contiguous
