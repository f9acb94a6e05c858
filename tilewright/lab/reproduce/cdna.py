"""The rows of "Matrix Core Programming on AMD CDNA3 and CDNA4 architecture"."""
from __future__ import annotations

from tilewright.lab.reproduce.row import Rows

rows = Rows("cdna")
