"""The rows of "Advanced Matrix Multiplication Optimization on NVIDIA GPUs"."""
from __future__ import annotations

from tilewright.lab.reproduce.row import Rows

rows = Rows("nvidia")
