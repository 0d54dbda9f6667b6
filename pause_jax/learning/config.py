"""Config class ``Learning`` for federated averaging."""

from __future__ import annotations

import functools
import math
import re
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.base.registry import label
from pause_jax.base.spelling import shown
from pause_jax.base.struct import Config, ConfigError, Sizes, node, number, static
from pause_jax.learning.client import LocalTraining
from pause_jax.learning.cohort import Execution
from pause_jax.learning.data import DataConfig, Digits, Given
from pause_jax.learning.dataset import Dataset, checked, form, with_weights
from pause_jax.learning.learner import Deferred, Learner, Variables
from pause_jax.learning.models import Mlp, Model
from pause_jax.learning.optimizer import (
    ConstantRate,
    FedAvg,
    RateSchedule,
    ServerOptimizer,
    is_transformation,
    made,
)
from pause_jax.learning.partition import Iid, PartitionConfig, num_held_out
from pause_jax.learning.server import FederatedAveraging, no_updates
from pause_jax.learning.start import given_weights, start_weights, with_start
from pause_jax.learning.task import (
    Task,
    check_outputs,
    in_short,
    metrics_of,
    shape_of_outputs,
    task_of,
)
from pause_jax.learning.trained import TrainedPart, part_of
from pause_jax.learning.work import EqualWork, LocalWork, WorkLaw, is_linear

if TYPE_CHECKING:
    import optax

# Cache of ``Learning._checked_task``: variable shapes, keyed by model, task and data shapes.
_FITTING: dict[Any, Variables] = {}


class Learning(Config):
    """Config for the data, the model, local training and federated averaging.

    Attributes:
      data: data set.
      partition: assignment of training samples to clients.
      task: learning task; by default inferred from the targets (labels, floats or tokens).
      model: model architecture.
      trained: weights to train: ``"all"``, ``"head"``, a regular expression for leaf paths such as
        ``hidden_0/kernel``, or :class:`Lora`. All other weights are frozen and not sent.
      start: initial weights, keyed by leaf path; None to draw all weights. Accepts an ``.npz`` or
        ``.safetensors`` file, an Orbax checkpoint folder or, in Python, nested dicts of arrays.
      start_missing: ``error`` to reject a ``start`` that lacks weights; ``initial`` to draw them.
      optimizer: optax name of the client optimiser, such as ``adam`` (static). In Python, it can be
        a ``GradientTransformation`` (fixed rate) or a function of the rate that returns one.
      learning_rate: client learning rate in round 1.
      schedule: client learning-rate schedule over rounds.
      batch_size: number of samples per local step.
      epochs: number of passes over a client's data per round, each in a new random order. Fractions
        of a pass are rounded up to whole steps.
      local_steps: local steps per round (replaces ``epochs``). Clients cycle through their data.
      max_steps: maximum number of local steps, both in a round and in a pass over a client's data.
        A pass that would need more steps covers only a random part of the data.
      work: distribution of the factors that multiply each client's ``epochs`` or ``local_steps``.
      aggregation: ``fedavg`` averages updates (Eq. (2) of PAUSE). ``fednova`` (Wang et al., 2020)
        divides each update by its gradient weight ``|a_i|_1`` and scales the mean by the mean
        gradient weight, to keep clients with more steps from dominating. Clipping, noise and
        epsilon apply to the divided updates. Step counts are assumed to be public.
      keep_optimizer_state: whether clients keep their optimiser state between rounds (as in the
        authors' code) instead of reinitialising it in every round.
      proximal: coefficient mu of ``mu / 2 |w - w_global|^2``, which FedProx (Li et al., 2020) adds
        to the local loss; None for no proximal term.
      server: server optimiser.
      stale_damping: beta in REFL's weights for updates averaged one round late
        (``stale_updates="next"``); None for no damping. Abdelmoniem et al. (2023) use 0.35.
      validation: number of samples at the end of the test set that are reserved for computing
        ``server_loss`` for policies and excluded from test metrics.
      holdout: share of each client's samples to hold out from training (at least one sample if
        > 0). Metrics such as ``client_accuracy`` score the model on the held-out samples. A client
        with a single sample trains on it and has no score.
    """

    data: DataConfig = node(factory=Digits, of=DataConfig)
    partition: PartitionConfig = node(factory=Iid, of=PartitionConfig)
    task: Task | None = node(factory=lambda: None, of=Task, optional=True)
    model: Model = node(factory=Mlp, of=Model)
    trained: TrainedPart = node(factory=TrainedPart, of=TrainedPart)
    start: str | None = static(default=None, optional=True, kind=str)
    start_missing: str = static(default="error", choices=("error", "initial"))
    optimizer: Any = static(default="adam", kind=object)
    learning_rate: float = number(default=0.01, above=0)
    schedule: RateSchedule = node(factory=ConstantRate, of=RateSchedule)
    batch_size: int = static(default=20, at_least=1)
    epochs: float = number(default=1.0, above=0)
    local_steps: int | None = static(default=None, at_least=1, optional=True, kind=int)
    max_steps: int = static(default=100, at_least=1)
    work: WorkLaw = node(factory=EqualWork, of=WorkLaw)
    aggregation: str = static(default="fedavg", choices=("fedavg", "fednova"))
    keep_optimizer_state: bool = static(default=False)
    proximal: float | None = number(default=None, at_least=0, optional=True)
    server: ServerOptimizer = node(factory=FedAvg, of=ServerOptimizer)
    stale_damping: float | None = number(default=None, at_least=0, at_most=1, optional=True)
    validation: int = static(default=0, at_least=0)
    holdout: float = static(default=0.0, at_least=0, at_most=0.9)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "trained", part_of(self.trained))
        object.__setattr__(self, "start", given_weights(self.start))

    def check(self, path: str, sizes: Sizes) -> None:
        made(self.optimizer, 0.1)
        if is_transformation(self.optimizer) and not (isinstance(self.schedule, ConstantRate)):
            raise ConfigError(
                f"{path}.schedule = {self.schedule.name}: cannot change the fixed rate of a "
                "GradientTransformation. Set learning.optimizer to a function of the rate, such as "
                "lambda rate: optax.chain(..., optax.sgd(rate))."
            )
        known = not isinstance(self.epochs, jax.core.Tracer)
        if self.local_steps is not None and known and self.epochs != 1:
            raise ConfigError(
                f"{path}.epochs = {self.epochs}: local_steps = {self.local_steps} replaces epochs. "
                "Set only one of them."
            )
        if self.aggregation != "fednova":
            return
        where = f"{path}.aggregation = 'fednova'"
        if not is_linear(made(self.optimizer, 0.1)):
            raise ConfigError(
                f"{where}: is not defined for {path}.optimizer = {shown(self.optimizer)}, whose "
                "update is not a weighted sum of gradients. Use sgd, or a function of the rate "
                "such as lambda rate: optax.sgd(rate, momentum=0.9)."
            )
        if self.keep_optimizer_state:
            raise ConfigError(
                f"{where}: requires a new optimiser state in every round. Set "
                f"{path}.keep_optimizer_state = False."
            )
        if self.validation:
            raise ConfigError(
                f"{where}: the server cannot score normalised updates on {path}.validation = "
                f"{self.validation} samples. Set {path}.validation = 0."
            )

    def load(self, num_clients: int, data: Dataset | None = None) -> Dataset:
        """Load the data set and check its compatibility with the clients, the task and the model.

        If not None, ``data`` replaces the config's data set. Raises ConfigError if a check fails.
        """
        whose = f" of {self.data.name}" if data is None else ""
        data = checked(self.data.load() if data is None else data)
        num_train = data.y_train.shape[0]
        used = self.data.num_train
        if used is not None and used > num_train:
            raise ConfigError(
                f"learning.data.num_train = {used}: must be <= {num_train}, the number of "
                f"training samples{whose}."
            )
        num_test = data.y_test.shape[0]
        if self.validation >= num_test:
            raise ConfigError(
                f"learning.validation = {self.validation}: must be < {num_test}, the number of "
                f"test samples{whose}, to leave some for test metrics. Lower learning.validation."
            )
        self.partition.check_data(data, self.num_samples(data), num_clients)
        model = self._checked_task(data, whose)
        self.trained.check_model(model)
        self._check_steps(data, num_clients)
        start = self.start
        weights = None if start is None else start_weights(start, self.start_missing, model)
        return with_weights(data, weights)

    def _check_steps(self, data: Dataset, num_clients: int) -> None:
        """Raise ConfigError if ``max_steps`` is too low for an average-sized client."""
        size = -(-self.num_samples(data) // num_clients)
        size -= int(num_held_out(np.asarray(size), self.holdout, np)) if self.holdout else 0
        if cut := self.cut_steps(size):
            raise ConfigError(
                f"learning.max_steps = {self.max_steps}: must be >= {cut}, the number of local "
                f"steps of an average-sized client ({size} samples, batches of {self.batch_size})."
            )

    def cut_steps(self, size: int) -> int:
        """Return the number of steps for ``size`` samples if it exceeds ``max_steps``, otherwise 0.

        Also returns 0 if a round has at most one epoch, or if ``epochs`` or ``work`` is traced.
        """
        numbers = (self.epochs, *jax.tree.leaves(self.work))
        if any(isinstance(x, jax.core.Tracer) for x in numbers):
            return 0
        passes = float(np.max(self.epochs)) * self.work.most
        wanted = passes * -(-size // self.batch_size)
        if self.local_steps is not None:
            passes, wanted = math.inf, self.local_steps * self.work.most
        return math.ceil(wanted) if passes > 1 and wanted > self.max_steps else 0

    def num_samples(self, data: Dataset) -> int:
        """Return the number of samples to partition."""
        return self.data.num_train or int(data.y_train.shape[0])

    def build(
        self, data: Dataset | None, num_clients: int, execution: Execution | None = None
    ) -> Learner:
        """Build the federated-averaging learner.

        Args:
          data: data set returned by :meth:`load`.
          num_clients: number of clients K.
          execution: execution options for cohort training; by default ``Execution()``.
        """
        assert data is not None, "Learning.build requires the data returned by Learning.load"
        largest = self.partition.max_size(self.num_samples(data), num_clients)
        if self.holdout:
            largest -= int(num_held_out(np.asarray(largest), self.holdout, np))
        local = self.local_training(data, largest)
        averaging = FederatedAveraging(
            local=local,
            optimizer_at=self.client_optimizer,
            execution=execution or Execution(),
            server=self.server.transformation(),
            partition=self.partition,
            num_samples=self.num_samples(data),
            num_clients=num_clients,
            equal_work=self.work.equal,
            keeps_state=self.keep_optimizer_state,
            scored=slice(data.y_test.shape[0] - self.validation),
            holdout=self.holdout,
        )
        none = functools.partial(no_updates, normalised=local.normalised)
        return Learner(
            init=averaging.init,
            train=averaging.train,
            ask=averaging.ask,
            evaluate=averaging.evaluate,
            metrics=metrics_of(local.task),
            local_samples=self.local_samples,
            client_bytes=averaging.client_bytes,
            deferred=Deferred(none, averaging.train_cohort, averaging.average),
            stale_damping=self.stale_damping,
            server_loss=averaging.server_loss if self.validation else None,
            evaluate_clients=averaging.evaluate_clients if self.holdout else None,
        )

    def client_optimizer(self, round: Array) -> optax.GradientTransformation:
        """Return the client optimiser for ``round`` (1, 2, ...)."""
        return made(self.optimizer, self.schedule.rate(self.learning_rate, round))

    def local_training(self, data: Dataset, largest: int) -> LocalTraining:
        """Return the local training settings, with the client optimiser for round 1."""
        task = task_of(data) if self.task is None else self.task
        network = self.model.network(shape_of_outputs(task, data)[-1])
        return LocalTraining(
            network=self.trained.network(with_start(network, data.start or {})),
            task=task,
            optimizer=self.client_optimizer(jnp.ones((), jnp.int32)),
            dataset=data,
            work=self.local_work,
            largest=largest,
            equal=self.partition.equal and self.work.equal,
            noisy_inputs=self.partition.min_quality < 1,
            proximal=self.proximal,
            normalised=self.aggregation == "fednova",
        )

    @property
    def local_work(self) -> LocalWork:
        """Settings that determine the number of local steps of each client."""
        return LocalWork(self.batch_size, self.max_steps, self.epochs, self.local_steps)

    def local_samples(self, size: Array, factors: Array | None = None) -> Array:
        """Return the number of samples that each client processes per round, float [K]."""
        work = self.local_work
        return work.samples(size, work.steps(size, factors))

    def _checked_task(self, data: Dataset, whose: str) -> Variables:
        """Check that data, task and model are compatible. Return the model's variable shapes."""
        task = task_of(data) if self.task is None else self.task
        sample = data.sample
        task.check_data(data)
        wanted = shape_of_outputs(task, data)
        tokens = jnp.issubdtype(sample.dtype, jnp.integer)
        if tokens and self.partition.min_quality < 1:
            raise ConfigError(
                f"learning.partition.min_quality = {self.partition.min_quality}: must be 1, "
                "because noise cannot be added to the tokens in x_train. Set "
                "learning.partition.min_quality = 1."
            )
        where = f"learning.model = {label(self.model)}"
        of = f"inputs of shape {sample.shape}{whose}"
        if tokens and not self.model.takes_tokens:
            raise ConfigError(
                f"{where}: requires float inputs, but x_train contains integers, which are "
                "treated as tokens. For tokens, use a FlaxModel, or gru for next-token prediction. "
                "For features, use x.astype(numpy.float32). For pixels, use numpy.uint8."
            )
        # Tracing a deep model takes tenths of a second, so each combination is checked only once.
        structure = jax.tree.structure((self.model, task))
        question = (structure, wanted, sample.shape, form(data.y_train), tokens)
        if question in _FITTING:
            return _FITTING[question]
        network = self.model.network(wanted[-1])
        one = jax.ShapeDtypeStruct((1, *sample.shape), sample.dtype)
        try:
            variables = jax.eval_shape(network.init, jax.random.key(0), one)
            if not jax.tree.leaves(variables.get("params")):
                raise ConfigError(
                    f"{where}: has no parameters to train. Use a model with parameters."
                )
            outputs = jax.eval_shape(network.predict, variables, one)
            key = jax.random.key(0) if network.draws else None
            jax.eval_shape(network.train, variables, one, jnp.ones(1, bool), key)
        except ConfigError:
            raise
        except Exception as error:
            why = f"cannot be applied to {of} ({in_short(error)})"
            if widths := re.search(r"got \((\d+),\) and \((\d+),\)", str(error)):
                why = (
                    f"has a layer that expects {widths[2]} features, but receives {widths[1]} "
                    f"from {of}"
                )
            larger = ", or a data set with larger images" if len(sample.shape) == 3 else ""
            raise ConfigError(
                f"{where}: {why}. Use a model for inputs of this shape, such as mlp{larger}."
            ) from error
        if any(0 in leaf.shape for leaf in jax.tree.leaves(variables)):
            raise ConfigError(f"{where}: {of} are too small for this model. Use the mlp model.")
        check_outputs(task, data, outputs, where)
        _FITTING[question] = variables
        return variables


def of_any_data(learning: Any) -> Any:
    """Return ``learning`` without its data source and ``start``, which do not affect compilation.

    Subclasses of ``Learning`` may read these fields, so their configs are returned unchanged.
    """
    if type(learning) is not Learning:
        return learning
    given = Given(num_train=learning.data.num_train)
    return learning.replace(data=given, start=None, start_missing="error")
