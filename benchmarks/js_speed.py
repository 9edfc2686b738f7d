"""How long the JavaScript client takes for a report in Chromium: 3,920 weights, soft-hog features included.

make js && python benchmarks/js_speed.py
"""

from __future__ import annotations

import base64
import json
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/report"))

from chromium import Chromium, find_chromium  # noqa: E402

SCHEMES = {
    "privunit-index, ε = 8": "privunit-index 3920\nrotate 2 shared=0\nnearest 25 of 8192 vertices 8.0",
    "sparse, ε = 20": "sqsgd-stateless 3920\nrotate 2 shared=0\nsparse 4096 23 3 3 20.0 (coin)",
    "sparse, ε = 400": "sqsgd-stateless 3920\nrotate 2 shared=0\nsparse 4096 198 100 99 400.0 (coin)",
    "signs, ε = 400": (
        "sqsgd 3920\nsubsample 2048 shared=0 rescale=0\nrotate 2 shared=0\n"
        "direction 0.000244140625 (privquant 2048 2 1630 boundary 394.0) (scalardp 8 6.0)"
    ),
}
PAGES = 9
MEASURE = """(async () => {
  const clock = (work) => { const start = performance.now(); work(); return performance.now() - start; };
  const task = sqsgd.makeTask({round: 0, client: 1, seed: 2, dim: 3920, bound: 0.5});
  const x = Float32Array.from({length: 3920}, (_, i) => Math.sin(i * i) / 100);
  let scheme;
  const made = clock(() => { scheme = new sqsgd.Scheme(%s); });
  const times = Array.from({length: 200}, () => clock(() => scheme.encode(x, task)));
  const first = times[0];
  times.sort((a, b) => a - b);
  return [made, first, times[100], times[190], scheme.bytes];
})()"""
LEARN = """(() => {
  const image = Float32Array.from({length: 784}, (_, i) => Math.sin(i));
  const weights = new Float32Array(3920);
  const times = Array.from({length: 100}, () => {
    const start = performance.now();
    sqsgd.softmaxGradient(weights, [{features: sqsgd.softHog(image, 28, 28), label: 3}]);
    return performance.now() - start;
  });
  return [times[0], times.sort((a, b) => a - b)[50]];
})()"""


def main() -> None:
    """Print a row for each scheme: medians over new pages."""
    code = (ROOT / "clients/js/dist/sqsgd.min.js").read_bytes()
    print(f"minified: {len(code):,} bytes")
    with tempfile.TemporaryDirectory() as folder:
        browser = Chromium(find_chromium(), folder)
        address = f"data:text/javascript;base64,{base64.b64encode(code).decode()}"
        page = Path(folder) / "page.html"
        page.write_text("<!doctype html>")
        load = f"import('{address}').then((all) => {{ globalThis.sqsgd = all; }})"
        for name, identity in SCHEMES.items():
            rows = []
            for _ in range(PAGES):  # nothing is compiled yet in a new page
                browser.open(page)
                browser.run(load)
                rows.append(browser.run(MEASURE % json.dumps(identity)))
            made, first, middle, late, size = map(statistics.median, zip(*rows, strict=True))
            least = min(row[1] for row in rows)
            print(
                f"{name}: {size} bytes; scheme made in {made:.1f} ms, "
                f"first report {first:.1f} ms (fastest page {least:.1f}), "
                f"median {middle:.2f} ms, 95 % within {late:.2f} ms"
            )
        first, middle = browser.run(LEARN)
        print(f"features and gradient of one image: first {first:.1f} ms, median {middle:.2f} ms")
        browser.close()


if __name__ == "__main__":
    main()
