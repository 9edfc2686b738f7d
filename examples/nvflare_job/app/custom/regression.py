"""A linear regression at each site, in NumPy: nothing in this file knows about privacy."""

import zlib

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.app_common.np.np_model_persistor import NPModelPersistor

DIM, ROWS, KEY = 1000, 4000, "numpy_key"
TRUTH = np.sin(np.arange(DIM)).astype(np.float32)


class ZerosPersistor(NPModelPersistor):
    """Training starts from zero; the server saves the model to models/server.npy."""

    def __init__(self) -> None:
        super().__init__(model=[0.0] * DIM)


class RegressionExecutor(Executor):
    """A few steps of gradient descent on the site's own rows."""

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        """The trained model, as any executor returns it."""
        rng = np.random.default_rng(zlib.crc32(fl_ctx.get_identity_name().encode()))
        x = rng.standard_normal((ROWS, DIM), np.float32)
        y = x @ TRUTH + rng.standard_normal(ROWS, np.float32)
        weights = from_shareable(shareable).data[KEY]
        for _ in range(5):
            weights = weights - 0.1 * x.T @ (x @ weights - y) / ROWS
        return DXO(DataKind.WEIGHTS, data={KEY: weights.astype(np.float32)}).to_shareable()
