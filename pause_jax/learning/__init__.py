"""Learning: data sets, partitions, models, clients and server."""

from pause_jax.learning.cohort import Execution
from pause_jax.learning.config import Learning
from pause_jax.learning.custom_model import FlaxModel
from pause_jax.learning.data import Characters, DataConfig, Digits, Given, LinearRegression
from pause_jax.learning.dataset import Dataset
from pause_jax.learning.files import Files
from pause_jax.learning.label_skew import DirichletLabels, Shards
from pause_jax.learning.learner import (
    Held,
    LateTraining,
    Learner,
    LearnerState,
    Release,
    Trained,
    bandit_only,
)
from pause_jax.learning.models import Cnn2, Cnn3, Linear, Mlp, Model
from pause_jax.learning.natural import Natural
from pause_jax.learning.optimizer import (
    SERVER_OPTIMIZERS,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    ServerOptimizer,
)
from pause_jax.learning.partition import Dirichlet, Iid, Partition, PartitionConfig
from pause_jax.learning.recurrent import Gru
from pause_jax.learning.resnet import ResNet18
from pause_jax.learning.schedule import (
    SCHEDULES,
    ConstantRate,
    CosineDecay,
    RateSchedule,
    StepDecay,
)
from pause_jax.learning.task import TASKS, Classification, NextToken, Regression, Task
from pause_jax.learning.tensorflow_datasets import Cifar10, FashionMnist, Mnist, Tfds

DATASETS: tuple[type[DataConfig], ...] = (
    *(Digits, Mnist, FashionMnist, Cifar10, LinearRegression, Characters, Tfds, Files, Given),
)
MODELS: tuple[type[Model], ...] = (Linear, Mlp, Cnn2, Cnn3, ResNet18, Gru, FlaxModel)
PARTITIONS: tuple[type[PartitionConfig], ...] = (Iid, Dirichlet, Shards, DirichletLabels, Natural)

__all__ = [
    "DATASETS",
    "MODELS",
    "PARTITIONS",
    "SCHEDULES",
    "SERVER_OPTIMIZERS",
    "TASKS",
    "Characters",
    "Cifar10",
    "Classification",
    "Cnn2",
    "Cnn3",
    "ConstantRate",
    "CosineDecay",
    "DataConfig",
    "Dataset",
    "Digits",
    "Dirichlet",
    "DirichletLabels",
    "Execution",
    "FashionMnist",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedYogi",
    "Files",
    "FlaxModel",
    "Given",
    "Gru",
    "Held",
    "Iid",
    "LateTraining",
    "Learner",
    "LearnerState",
    "Learning",
    "Linear",
    "LinearRegression",
    "Mlp",
    "Mnist",
    "Model",
    "Natural",
    "NextToken",
    "Partition",
    "PartitionConfig",
    "RateSchedule",
    "Regression",
    "Release",
    "ResNet18",
    "ServerOptimizer",
    "Shards",
    "StepDecay",
    "Task",
    "Tfds",
    "Trained",
    "bandit_only",
]
