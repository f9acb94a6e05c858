"""GEMM kernels for AMD's Matrix Cores."""
