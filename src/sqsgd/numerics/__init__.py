"""Mathematics without privacy: ball arithmetic, exact sums of epsilons, the sphere, Gaussian averages."""
