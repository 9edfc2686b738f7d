"""The seeds of repeatable runs."""


def noise_seed(seed: int, round: int, client: int) -> int:
    """A different seed for each report of a repeatable run; ``client`` is the number in its task."""
    return (seed << 128) | (round << 64) | client
