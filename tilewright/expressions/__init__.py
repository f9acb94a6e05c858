"""Python functions of numbers as data: what an epilogue, a prologue or a product's own arithmetic computes.

A function is called once with symbols (tracing.py), and what it did to them is a short program of elementary operations
(program.py), each of which is defined in one place (operations.py). Kernels record that program
(kernels/expression.py), NumPy evaluates it (`Expression.evaluate`), and its text is what plans, caches and bundles
hold.
"""
