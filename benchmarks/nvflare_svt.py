"""NVFlare's own filter with differential privacy (SVT) and sqsgd, on the same update at the same epsilon.

SVT has NVFlare's defaults; its accountant says what it spent, and sqsgd may spend that. The update of a model
is a Gaussian vector. Both depend on a guess of its size: SVT clips entries at gamma = 1e-5, sqsgd clips what
it encodes at a bound. Vectors far below the bound come back with either sign, right only on average: the
first bound here fits entries of 1e-5, as gamma does, the second is the default.
"""

import argparse
import itertools
import logging
import time

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from nvflare.fuel.utils import fobs

from sqsgd import Task, make_scheme
from sqsgd.core.random import secure_rng
from sqsgd.federation.nvflare.client import REPORT


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) or 1.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=7_033_290, help="weights of the model")
    parser.add_argument("--bytes", type=int, nargs="+", default=[25_000], help="budgets of a report")
    parser.add_argument("--deviation", type=float, default=1e-5, help="standard deviation of an entry")
    parser.add_argument("--bounds", type=float, nargs="+", default=[0.0025, 1.0], help="bounds on the norm")
    parser.add_argument("--reports", type=int, default=16, help="reports of sqsgd, with fresh noise each")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    rng = np.random.default_rng(options.seed)
    update = rng.normal(0.0, options.deviation, options.dim).astype(np.float32)

    svt, began = SVTPrivacy(), time.perf_counter()
    result = svt.process(DXO(DataKind.WEIGHT_DIFF, data={"w": update.copy()}).to_shareable(), FLContext())
    sent, epsilon = from_shareable(result).data["w"], svt.get_privacy_spent()
    seconds, values = time.perf_counter() - began, np.count_nonzero(sent)
    print(f"dim {options.dim}, epsilon {epsilon:.1f}, deviation {options.deviation:g}")
    print(f"SVT    cosine {cosine(sent, update):.4f}  {sent.nbytes} bytes, {values} values, {seconds:.1f} s")
    for size, bound in itertools.product(options.bytes, options.bounds):
        scheme = make_scheme("sqsgd", dim=options.dim, epsilon=epsilon, bytes=size)
        cosines = []
        for number in range(options.reports):
            task = Task(round=number, client=1, seed=options.seed, dim=options.dim, bound=bound)
            payload = scheme.encode(update, task, secure_rng())
            cosines.append(cosine(scheme.decode(payload, task), update))
        size, negative = len(fobs.dumps(Shareable({REPORT: payload}))), sum(each < 0 for each in cosines)
        spread = f"{min(cosines):.4f} to {max(cosines):.4f}, {negative} of {options.reports} negative"
        print(f"sqsgd  cosine {np.mean(cosines):.4f} ({spread})  {size} bytes, bound {bound:g}")


if __name__ == "__main__":
    main()
