"""Weights that other programs stored in few bits, as tilewright multiplies them: read in place, never quantised again.

    checkpoint = tilewright.checkpoints.load("model.gguf")          # or a file of safetensors, or a folder of them
    weight = checkpoint["blk.0.attn_q.weight"]                      # a Weight, or an array of what has no few bits
    y = weight.matmul(x)                                            # x [..., inputs]; decoded on the way
    weight.numbers                                                  # a Scaled or Quantized [outputs, inputs]
    tilewright.checkpoints.save("model.safetensors", checkpoint)    # in tilewright's layout, which is used in place

GGUF, GPTQ, AWQ, compressed-tensors, fp8 by block, nvfp4 and mxfp4; docs/checkpoints.md has the table of what is taken,
what is exact, and what is refused. tilewright.torch makes layers of them, and reads models of torchao.

    checkpoint.py   load, save, Checkpoint: files, and which format a layer has
    record.py       Weight
    safetensors.py  the file format: read by memory map, written
    gguf.py         the file format; blocks.py: its blocks
    words.py        numbers of 2 to 8 bits in words of 32
    gptq.py, awq.py, compressed.py, floats.py   the arrays of a layer → Weight
"""

from tilewright.checkpoints.checkpoint import Checkpoint, load, save
from tilewright.checkpoints.record import Weight

__all__ = ["Checkpoint", "Weight", "load", "save"]
