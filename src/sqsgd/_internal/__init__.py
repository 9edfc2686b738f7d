"""What every room builds on: exact arithmetic, kernels, argument checks, durable files."""
