"""Learning: data sets, partitions, models, clients and server."""

from pause_jax.learning.cohort import Execution
from pause_jax.learning.config import Learning
from pause_jax.learning.data import (
    DATASETS,
    Cifar10,
    DataConfig,
    Dataset,
    Digits,
    FashionMnist,
    LinearRegression,
    Mnist,
)
from pause_jax.learning.learner import Learner, LearnerState, Release, Trained, bandit_only
from pause_jax.learning.models import Cnn2, Cnn3, Linear, Mlp, Model
from pause_jax.learning.partition import PARTITIONS, Dirichlet, Iid, Partition, PartitionConfig
from pause_jax.learning.resnet import ResNet18
from pause_jax.learning.schedule import (
    SCHEDULES,
    ConstantRate,
    CosineDecay,
    RateSchedule,
    StepDecay,
)

MODELS = (Linear, Mlp, Cnn2, Cnn3, ResNet18)

__all__ = [
    "DATASETS",
    "MODELS",
    "PARTITIONS",
    "SCHEDULES",
    "Cifar10",
    "Cnn2",
    "Cnn3",
    "ConstantRate",
    "CosineDecay",
    "DataConfig",
    "Dataset",
    "Digits",
    "Dirichlet",
    "Execution",
    "FashionMnist",
    "Iid",
    "Learner",
    "LearnerState",
    "Learning",
    "Linear",
    "LinearRegression",
    "Mlp",
    "Mnist",
    "Model",
    "Partition",
    "PartitionConfig",
    "RateSchedule",
    "Release",
    "ResNet18",
    "StepDecay",
    "Trained",
    "bandit_only",
]
