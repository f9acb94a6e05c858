"""How: a plan says how one problem runs on one chip. Plans are frozen, printable data; nothing here runs code."""
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.cpu_shape import Shape
from tilewright.plans.lowering import shape_of

__all__ = ["CpuPlan", "Shape", "shape_of"]
