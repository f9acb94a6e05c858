"""Formats that kernels for GPUs of all makers read, add up and store."""
FP8 = frozenset(("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"))
# What kernels/gpu/copy.py converts: formats of arrays in a GPU's memory that results, and operands, may have.
WRITTEN = frozenset(("f64", "f32", "f16", "bf16", "i8", "i32", "i16", "u16", "u8")) | FP8
READ = WRITTEN | {"i4", "u4", "i2", "u2", "e2m1", "e2m3", "e3m2", "e8m0"}
# What sums are stored as: the nearest float, an integer's lowest bits.
RESULTS = {
    "f64": ("f64",),
    "f32": ("f32", "f16", "bf16", "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"),
    "i32": ("i32", "i16", "u16", "i8", "u8"),
    "i64": ("i64", "i32", "i16", "u16", "i8", "u8"),
    "c64": ("c64",), "c128": ("c128",),
}
