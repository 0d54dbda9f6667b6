"""Federated learning: data sets, partitions, models, clients and the server."""

# Other subpackages use the names imported as "X as X", which are not in `__all__`.
# ruff: noqa: I001

from pause_jax.learning.cohort import Execution
from pause_jax.learning.config import Learning, of_any_data as of_any_data
from pause_jax.learning.custom_model import FlaxModel
from pause_jax.learning.data import (
    Characters, DataConfig, Digits, Files, Given as Given, LinearRegression,
)  # fmt: skip
from pause_jax.learning.dataset import Dataset
from pause_jax.learning.learner import (
    Deferred as Deferred, StaleUpdates as StaleUpdates, Learner, LearnerState, Release as Release,
    Trained, bandit_only as bandit_only,
)  # fmt: skip
from pause_jax.learning.models import Cnn2, Cnn3, Gru, Linear, Mlp, Model, ResNet18
from pause_jax.learning.optimizer import (
    ConstantRate, CosineDecay, FedAdam, FedAvg, FedAvgM, FedYogi, RateSchedule,
    ServerOptimizer, StepDecay,
)  # fmt: skip
from pause_jax.learning.partition import (
    Dirichlet, DirichletLabels, Iid, Natural, Partition as Partition, PartitionConfig, Shards,
)  # fmt: skip
from pause_jax.learning.start import save_weights
from pause_jax.learning.task import TASKS as TASKS, Classification, NextToken, Regression, Task
from pause_jax.learning.work import EqualWork, PerClient, UniformWork, WorkLaw
from pause_jax.learning.tensorflow_datasets import Cifar10, FashionMnist, Mnist, Tfds
from pause_jax.learning.trained import Head, Lora, Matching, TrainedPart

DATASETS: tuple[type[DataConfig], ...] = (
    *(Digits, Mnist, FashionMnist, Cifar10, LinearRegression, Characters, Tfds, Files, Given),
)

__all__ = [
    "Characters", "Cifar10", "Classification", "Cnn2", "Cnn3", "ConstantRate", "CosineDecay",
    "DataConfig", "Dataset", "Digits", "Dirichlet", "DirichletLabels", "EqualWork", "Execution",
    "FashionMnist", "FedAdam", "FedAvg", "FedAvgM", "FedYogi", "Files", "FlaxModel", "Gru", "Head",
    "Iid", "Learner", "LearnerState", "Learning", "Linear", "LinearRegression", "Lora", "Matching",
    "Mlp", "Mnist", "Model", "Natural", "NextToken", "PartitionConfig", "PerClient", "RateSchedule",
    "Regression", "ResNet18", "ServerOptimizer", "Shards", "StepDecay", "Task", "Tfds", "Trained",
    "TrainedPart", "UniformWork", "WorkLaw", "save_weights",
]  # fmt: skip
