"""The hot loops: rotate, round, scramble, sum, pack, unpack, select. The only package that imports numba.

Everything here is deterministic: random words are arguments. Each kernel has a plain NumPy reference in
tests/reference.py, and tests/kernels compares the two. No kernel calls one in another file, because numba's
cache does not notice edits to helpers in other files. Callers import a kernel inside the function that uses
it, so that ``import sqsgd`` does not load numba.
"""
