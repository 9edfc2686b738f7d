"""Numerical helpers without privacy: ball arithmetic, exact sums of epsilons, spheres, Gaussian averages."""
