"""The kernels: one sub-package per way of running one, and the slow right answer in reference.py."""
