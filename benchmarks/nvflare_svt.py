"""NVFlare's own filter with differential privacy (SVT) and sqsgd, on the same update at the same epsilon.

SVT has NVFlare's defaults; its accountant says what it spent, and sqsgd may spend that. The update of a model
is a Gaussian vector. SVT's error depends on the size of its entries, which it clips at gamma = 1e-5; that of
sqsgd does not.
"""

import argparse
import logging
import time

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from nvflare.fuel.utils import fobs

from sqsgd import Task, make_scheme
from sqsgd.nvflare import shareables
from sqsgd.randomness import secure_rng


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) or 1.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=7_033_290, help="weights of the model")
    parser.add_argument("--bytes", type=int, nargs="+", default=[25_000], help="budgets of a report")
    parser.add_argument("--deviation", type=float, default=1e-5, help="standard deviation of an entry")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    rng = np.random.default_rng(options.seed)
    update = rng.normal(0.0, options.deviation, options.dim).astype(np.float32)

    svt, began = SVTPrivacy(), time.perf_counter()
    result = svt.process(DXO(DataKind.WEIGHT_DIFF, data={"w": update.copy()}).to_shareable(), FLContext())
    sent, epsilon = from_shareable(result).data["w"], svt.get_privacy_spent()
    values = np.count_nonzero(sent)
    print(f"dim {options.dim}, epsilon {epsilon:.1f}, deviation {options.deviation:g}")
    print(
        f"SVT    cosine {cosine(sent, update):.4f}  {sent.nbytes} bytes, {values} values not zero,", end=" "
    )
    print(f"{time.perf_counter() - began:.1f} s")
    for size in options.bytes:
        scheme = make_scheme("sqsgd", dim=options.dim, epsilon=epsilon, bits=8 * size)
        norm = float(np.linalg.norm(update))
        task = Task(round=0, client=1, seed=options.seed, dim=options.dim, bound=norm)
        began = time.perf_counter()
        payload = scheme.encode(update, task, secure_rng())
        seconds, estimate = time.perf_counter() - began, scheme.decode(payload, task)
        whole = len(fobs.dumps(shareables.report(payload)))
        spent = scheme.privacy.epsilon
        print(
            f"sqsgd  cosine {cosine(estimate, update):.4f}  {whole} bytes, payload {len(payload)},", end=" "
        )
        print(f"epsilon {spent:.1f}, {seconds:.1f} s")


if __name__ == "__main__":
    main()
