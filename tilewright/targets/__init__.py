"""Which chip: frozen capability records, `detect()` for this machine and `target(name)` for a forced one."""
from tilewright.targets.base import CpuTarget
from tilewright.targets.x86 import detect, target

__all__ = ["CpuTarget", "detect", "target"]
