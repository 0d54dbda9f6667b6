"""``Learning``: what the clients learn and how, and the learner that is built from it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from pause_jax import keys
from pause_jax.bandit import Selection
from pause_jax.learning.client import LocalTraining, kept_in_training, local_loss
from pause_jax.learning.cohort import Execution
from pause_jax.learning.data import DataConfig, Dataset, Digits
from pause_jax.learning.fedavg import train_cohort
from pause_jax.learning.learner import Learner, LearnerState, Release, Trained, trained_part
from pause_jax.learning.models import Mlp, Model
from pause_jax.learning.partition import Iid, PartitionConfig
from pause_jax.learning.schedule import ConstantRate, RateSchedule
from pause_jax.learning.server import evaluate
from pause_jax.struct import Config, ConfigError, node, number, static

# Clients whose losses are computed side by side; bounds the memory when many are asked.
QUERY_BATCH = 16
OPTIMIZERS = {"adam": optax.adam, "sgd": optax.sgd}


class Learning(Config):
    """What the clients learn, and how: federated averaging of local SGD.

    Attributes:
      data: the data set.
      partition: which client holds which samples.
      model: the model.
      optimizer: ``adam`` or ``sgd``, at the clients.
      learning_rate: of the clients' optimiser in round 1.
      schedule: how it changes with the rounds of the run.
      batch_size: samples of a local step.
      max_steps: local steps a round at most; one pass over the client's data otherwise.
      keep_optimizer_state: whether a client's optimiser moments persist from one of its rounds to
        the next (as in the authors' code), or start anew.
    """

    data: DataConfig = node(factory=Digits, of=DataConfig)
    partition: PartitionConfig = node(factory=Iid, of=PartitionConfig)
    model: Model = node(factory=Mlp, of=Model)
    optimizer: str = static(default="adam", choices=tuple(OPTIMIZERS))
    learning_rate: float = number(default=0.01, above=0)
    schedule: RateSchedule = node(factory=ConstantRate, of=RateSchedule)
    batch_size: int = static(default=20, at_least=1)
    max_steps: int = static(default=100, at_least=1)
    keep_optimizer_state: bool = static(default=False)

    def load(self, num_clients: int, data: Dataset | None = None) -> Dataset:
        """The data to learn from, checked against the rest; the host's part, before any run.

        Args:
          num_clients: K.
          data: a data set to use instead of the one that is named here.

        Raises:
          ConfigError: if it cannot be read, or does not fit the clients or the model.
        """
        if data is not None and not isinstance(data, Dataset):
            raise ConfigError(
                f"data = {type(data).__name__}: must be a pause_jax.learning.Dataset, or None for "
                "the data set that the config names."
            )
        data = self.data.load() if data is None else data
        num_train = data.y_train.shape[0]
        used = self.data.num_train
        if used is not None and used > num_train:
            raise ConfigError(
                f"learning.data.num_train = {used}: must be <= {num_train}, the training samples "
                f"that {self.data.name} has."
            )
        self.partition.check_samples(self.num_samples(data), num_clients)
        self._check_model(data)
        return data

    def num_samples(self, data: Dataset) -> int:
        """Training samples in use."""
        return self.data.num_train or int(data.y_train.shape[0])

    def build(
        self, data: Dataset | None, num_clients: int, execution: Execution | None = None
    ) -> Learner:
        """The learner, for one network.

        Args:
          data: what ``load`` returned.
          num_clients: K.
          execution: how cohorts are trained; the library's choice if left out.
        """
        assert data is not None, "Learning.load gives the data that Learning.build needs"
        how = execution or Execution()
        largest = self.partition.max_size(self.num_samples(data), num_clients)
        training = self.local_training(data, largest)

        def init(streams: keys.Streams) -> LearnerState:
            partition = self.partition.assign(
                streams.data,
                data.y_train,
                self.num_samples(data),
                num_clients,
                data.num_classes,
            )
            variables = dict(training.module.init(streams.model, data.to_input(data.x_train[:1])))
            moments = None
            if self.keep_optimizer_state:
                fresh = training.optimizer.init(trained_part(variables))
                moments = jax.tree.map(
                    lambda x: jnp.broadcast_to(x, (num_clients, *x.shape)), fresh
                )
            return LearnerState(
                partition, variables, moments, streams.inputs, jnp.zeros((), jnp.int32)
            )

        def train(
            key: Array, state: LearnerState, selection: Selection, release: Release
        ) -> tuple[LearnerState, Trained]:
            round = jnp.asarray(state.rounds) + 1
            now = training._replace(optimizer=self.client_optimizer(round))
            return train_cohort(now, how, key, state._replace(rounds=round), selection, release)

        def ask(key: Array, state: LearnerState, clients: Array, batch_size: int | None) -> Array:
            def one(asked: tuple[Array, Array]) -> Array:
                client, key = asked
                return local_loss(
                    training,
                    state.model,
                    state.partition,
                    client,
                    key,
                    state.inputs,
                    batch_size,
                    largest,
                )

            asked = (clients, keys.of_clients(key, clients))
            return lax.map(one, asked, batch_size=QUERY_BATCH)

        def metrics(state: LearnerState) -> dict[str, Array]:
            loss, accuracy = evaluate(training.module, state.model, data)
            return {"test_loss": loss, "test_accuracy": accuracy}

        def kept(state: LearnerState) -> int:
            return kept_in_training(training, state.model)

        return Learner(init, train, ask, metrics, max_samples=training.max_samples, kept=kept)

    def client_optimizer(self, round: Array) -> optax.GradientTransformation:
        """The optimiser with its rate in round t >= 1; its state is of one form in all rounds."""
        return OPTIMIZERS[self.optimizer](self.schedule.rate(self.learning_rate, round))

    def local_training(self, data: Dataset, largest: int) -> LocalTraining:
        """The fixed parts of local training, for clients of at most ``largest`` samples.

        Its optimiser has the rate of round 1.
        """
        max_samples = min(self.max_steps * self.batch_size, largest)
        return LocalTraining(
            module=self.model.module(data.num_classes),
            optimizer=self.client_optimizer(jnp.ones((), jnp.int32)),
            dataset=data,
            batch_size=self.batch_size,
            max_samples=max_samples,
            equal_steps=-(-max_samples // self.batch_size) if self.partition.equal else None,
            noisy_inputs=self.partition.min_quality < 1,
        )

    def _check_model(self, data: Dataset) -> None:
        shape = data.x_train.shape[1:]
        module = self.model.module(data.num_classes)
        sample = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
        try:
            variables = jax.eval_shape(module.init, jax.random.key(0), sample)
        except Exception as error:
            raise ConfigError(
                f"learning.model = {self.model.name}: cannot be applied to inputs of shape {shape} "
                f"of {self.data.name} ({type(error).__name__}). Use the model mlp, or a data set "
                "with larger images."
            ) from error
        if any(0 in leaf.shape for leaf in jax.tree.leaves(variables)):
            raise ConfigError(
                f"learning.model = {self.model.name}: inputs of shape {shape} of "
                f"{self.data.name} are too small for it. Use the model mlp."
            )
