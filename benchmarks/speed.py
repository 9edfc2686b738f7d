"""The speed targets of the core, one line a figure; exits with 1 if one is missed.

The same as `sqsgd bench`. Run it on a quiet machine: `make bench`.
"""

import sys

from sqsgd.bench import all_figures

missed = []
for figure in all_figures():
    row = figure.to_dict()
    verdict = "" if row["target"] is None else f"{row['target']} {'met' if figure.met else 'MISSED'}"
    print(f"{figure.name:48} {figure.value:10.3f} {figure.unit:14} {verdict}", flush=True)
    if not figure.met:
        missed.append(figure.name)
sys.exit(f"missed: {', '.join(missed)}" if missed else 0)
