"""Sums of records that are clipped to a grid, in whole numbers."""

import numpy as np

from sqsgd._internal.kernels import compiled


@compiled
def add_records(rows, clip, soft, reach, most, codes, total):
    """total += round(row reach / max(clip, norm)) for each row. Returns the number of skipped rows.

    With ``soft`` above zero each row is scaled by reach / (norm + soft). A row is left out if it is not
    finite, or if the squares of its whole numbers add up to more than ``most``.
    """
    dropped = 0
    for i in range(rows.shape[0]):
        row, square = rows[i], 0.0
        for j in range(row.size):
            square += np.float64(row[j]) * np.float64(row[j])
        if not square < np.inf:
            dropped += 1
            continue
        norm, size = np.sqrt(square), np.int64(0)
        scale = reach / (norm + soft) if soft > 0 else reach / max(norm, clip)
        for j in range(row.size):
            codes[j] = np.int64(np.rint(np.float64(row[j]) * scale))
            size += codes[j] * codes[j]
        if size > most:
            dropped += 1
            continue
        for j in range(row.size):
            total[j] += codes[j]
    return dropped
