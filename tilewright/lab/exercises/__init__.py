"""Exercises of the notebooks in docs/notebooks, and what tells whether an answer is right.

    exercises.check("cpu.peak", peak)           # run, simulated, compiled or counted; a sentence says what came out
    exercises.progress("cpu")                   # what is solved in this session
    exercises.picture("cpu/matmul_kernel")      # a drawing of lab.drawing

mechanism           registers exercises, calls their checkers, words the verdict
cpu, nvidia, amd, compilers     the checkers of one notebook each
"""
from tilewright.lab.exercises.mechanism import Picture as picture, Verdict, check, progress

__all__ = ["Verdict", "check", "picture", "progress"]
