"""Workers of a study are killed at random moments, many times: nothing is lost, nothing counts twice.

python benchmarks/collect_kills.py --kills 20
python benchmarks/collect_kills.py --kills 20 --postgres
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests/collect"))
from postgres_server import MISSING, postgres, programs
from test_killed_workers import storm


def main() -> None:
    """Kill and check; an AssertionError says what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--postgres", action="store_true")
    chosen = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        sizes = {"users": chosen.users, "kills": chosen.kills}
        if not chosen.postgres:
            storm(Path(place) / "study", "", **sizes)
        elif programs() is None:
            sys.exit(MISSING)
        else:
            with postgres() as server:
                storm(Path(place) / "study", server.new_url("kills"), **sizes)
    seconds = time.perf_counter() - started
    print(f"{chosen.kills} kills, {chosen.users} reports: none lost, none counted twice ({seconds:.0f} s)")


if __name__ == "__main__":
    main()
