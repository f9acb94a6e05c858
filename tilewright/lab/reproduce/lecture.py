"""The rows of the lecture "GPU MatMul and Compilers"."""
from __future__ import annotations

from tilewright.lab.reproduce.row import Rows

rows = Rows("lecture")
