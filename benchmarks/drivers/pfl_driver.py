"""Driver of pfl-research: ``FederatedAveraging`` on ``SimulatedBackend``, with PyTorch.

pfl visits the samples of a user in stored order, without shuffling.
"""

from __future__ import annotations

import itertools
import sys

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel

from benchmarks.drivers.protocol import serve
from benchmarks.drivers.torch_models import (
    OPTIMIZERS,
    Clients,
    build,
    device_name,
    finish,
    from_torch,
)
from benchmarks.workloads import Weights, Workload, read_data, read_weights


class Pfl:
    """FedAvg in pfl, with metrics only in the first round of the warm-up."""

    def __init__(self, workload: Workload, data: str, weights: str, variant: str):
        self.workload, self.rounds, self.device = workload, 0, device_name()
        clients = Clients(workload, *read_data(data), channels_last=False)
        self.network = build(workload, read_weights(weights))
        cross_entropy = torch.nn.functional.cross_entropy
        self.network.loss = lambda x, y: cross_entropy(self.network(x), y)
        self.network.metrics = lambda x, y: {"count": Weighted(0, len(y))}
        order = itertools.count()
        users = FederatedDataset(
            lambda user: PyTorchTensorDataset(clients.of(user), user_id=str(user)),
            lambda: next(order) % workload.clients,
        )
        self.model = PyTorchModel(
            self.network,
            OPTIMIZERS[workload.optimizer],
            torch.optim.SGD(self.network.parameters(), lr=1.0),
        )
        self.backend = SimulatedBackend(training_data=users, val_data=users)
        self.algorithm = FederatedAveraging()

    def run(self, rounds: int) -> None:
        # The algorithm counts its iterations, and a new run continues from the last one.
        self.rounds += rounds
        self.algorithm.run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=self.rounds,
                evaluation_frequency=sys.maxsize,
                train_cohort_size=self.workload.cohort,
                val_cohort_size=None,
            ),
            backend=self.backend,
            model=self.model,
            model_train_params=NNTrainHyperParams(
                local_num_epochs=self.workload.epochs,
                local_learning_rate=self.workload.learning_rate,
                local_batch_size=self.workload.batch,
            ),
        )
        finish()

    def weights(self) -> Weights:
        return from_torch(self.workload, list(self.network.parameters()))


if __name__ == "__main__":
    serve(Pfl, "pfl", "torch")
