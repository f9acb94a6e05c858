"""CPU kernels, each emitted: the micro-kernel, packing, the five loops around them, and what small and skinny need."""
