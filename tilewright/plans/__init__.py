"""How: a plan says how one problem runs on one chip. Plans are frozen, printable data; nothing here runs code."""
from tilewright.plans.choose import plan, shape_of
from tilewright.plans.cpu import CpuPlan, Shape

__all__ = ["CpuPlan", "Shape", "plan", "shape_of"]
