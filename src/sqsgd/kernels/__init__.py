"""The hot loops: rotate, round, scramble, sum, pack, unpack, select. The only room with numba.

Everything here is deterministic: random words come in as arrays. Each kernel has a plain NumPy twin
in tests/reference.py and is held equal to it by the tests in tests/kernels. No kernel calls one in
another file, because numba's cache does not notice when a helper elsewhere was edited. Callers
import a kernel inside the function that uses it, so that ``import sqsgd`` does not load numba.
"""
