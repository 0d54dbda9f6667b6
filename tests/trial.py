"""Inputs of a trial that once gave a wrong result without a word; none may do so again.

    python -m tests.trial

Each function is one input, through the public interface alone, and asserts the right result, a
refusal (ConfigError), or a warning. ``tests/test_trial.py`` runs them all.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
import runpy
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pause_jax import (
    ConfigError,
    Learning,
    SimConfig,
    latency,
    policies,
    presets,
    simulate,
    sweep,
    tuning,
)
from pause_jax.analysis import fleet
from pause_jax.bandit import Selection
from pause_jax.deploy.selector import Selector
from pause_jax.learning import Dataset, Linear, Natural, Task
from pause_jax.policies import Policy, PolicyConfig, no_info
from pause_jax.privacy import Geometric
from pause_jax.testing import check_policy

TRIALS: list[Callable[[], None]] = []
KEY = jax.random.key(0)
BANDIT = SimConfig(
    num_clients=6,
    num_selected=2,
    num_rounds=8,
    policy=policies.named("random"),
    learning=None,
    track_regret=False,
)


def trial(function: Callable[[], None]) -> Callable[[], None]:
    """Count a function among the trials."""
    TRIALS.append(function)
    return function


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Assert that the block ends with a refusal."""
    try:
        yield
    except (ConfigError, AssertionError):
        return
    raise AssertionError("taken without a word")


@contextlib.contextmanager
def warned(word: str) -> Iterator[None]:
    """Assert that the block warns, with a word in the text."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    assert any(word in str(each.message) for each in seen), "no warning"


def tuned(
    objective: str, axes: str, sampler: str | None, config: SimConfig | None = None
) -> tuning.Tuned:
    """A small search from ``digits_small``."""
    if config is None:
        config = presets.digits_small(policy="random").replace(num_rounds=6, num_clients=6)
        config = config.replace(track_regret=False).override({"learning.model": Linear()})
    config = config.replace(num_selected=2)
    return tuning.tune(
        config,
        dict([tuning.axis_of(axes, config)]),
        tuning.objective_of(objective),
        KEY,
        budget=6,
        seeds=2,
        width=3,
        sampler=sampler,
        progress=False,
    )


@trial
def tune_does_not_choose_a_rate_at_which_the_model_diverges() -> None:
    for sampler in (None, "RandomSampler"):
        found = tuned("accuracy", "learning.learning_rate=log:10..1000000", sampler)
        assert math.isfinite(found.finalists["mean"][found.chosen]), sampler


@trial
def seconds_to_a_target_that_was_never_reached_are_not_invented() -> None:
    found = tuned("seconds to 99.9 %", "reward.gamma=1..5", None)
    assert not found.finalists.scored.any()


@trial
def seconds_to_an_accuracy_are_refused_for_a_regression() -> None:
    config = presets.bsfl_linear().replace(num_rounds=4, num_clients=6)
    with refused():
        tuned("seconds to 80 %", "reward.alpha=1..5", None, config)


@trial
def accuracy_is_refused_without_learning() -> None:
    config = presets.digits_small(policy="random").replace(num_rounds=4, learning=None)
    with refused():
        tuned("accuracy", "reward.gamma=1..5", None, config)


class ReadsLosses(PolicyConfig):
    """Reads the clients' losses and does not say so."""

    def build(self, context: Any) -> Policy:
        def init() -> Any:
            return jnp.zeros(context.num_clients)

        def select(key: Any, state: Any, round: Any, available: Any) -> Any:
            _, clients = jax.lax.top_k(jnp.where(available, state, -jnp.inf), context.num_selected)
            present = available[clients]
            weights = present / jnp.maximum(present.sum(), 1)
            return Selection(clients, weights.astype(jnp.float32)), no_info()

        def update(state: Any, selection: Selection, observation: Any) -> Any:
            seen = jnp.where(selection.weights > 0, jnp.nan_to_num(observation.loss), 0.0)
            return state.at[selection.clients].add(seen)

        return Policy(init, select, update)


@trial
def a_policy_that_reads_losses_without_saying_so_does_not_pass() -> None:
    with refused():
        check_policy(ReadsLosses(), num_clients=6, num_selected=2)


class Counts(PolicyConfig):
    """Goes round by a counter in Python, which counts traces and not rounds."""

    def build(self, context: Any) -> Policy:
        calls: list[int] = []

        def select(key: Any, state: Any, round: Any, available: Any) -> Any:
            calls.append(0)
            turn = (jnp.arange(context.num_clients) + len(calls)) % context.num_clients
            _, clients = jax.lax.top_k(jnp.where(available, turn, -1), context.num_selected)
            present = available[clients]
            weights = present / jnp.maximum(present.sum(), 1)
            return Selection(clients, weights.astype(jnp.float32)), no_info()

        return Policy(lambda: (), select, lambda state, selection, observation: state)


@trial
def a_policy_with_a_counter_does_not_pass() -> None:
    with refused():
        check_policy(Counts(), num_clients=6, num_selected=2)


class Broken(PolicyConfig):
    """Chooses client 0 twice, with weights of 10."""

    name = "trial_broken"

    def build(self, context: Any) -> Policy:
        m = context.num_selected
        chosen = Selection(jnp.zeros(m, jnp.int32), jnp.full(m, 10.0))
        return Policy(
            init=lambda: (),
            select=lambda key, state, round, available: (chosen, no_info()),
            update=lambda state, selection, observation: state,
        )


@trial
def simulate_warns_of_broken_rules() -> None:
    with warned("chose"):
        jax.block_until_ready(simulate(BANDIT.replace(policy=Broken()), KEY))


@trial
def sweep_warns_of_broken_rules() -> None:
    with warned("chose"):
        sweep(BANDIT.replace(policy=Broken()), jax.random.split(KEY, 2), progress=False)


STORE = """
import jax, numpy as np
from pause_jax import Learning, SimConfig, sweep
from pause_jax.learning import Dataset, Linear, Task
from pause_jax.policies import Random

class Scaled(Task):
    name = "scaled"
    def outputs(self, data): return (1,)
    def loss(self, outputs, targets): return SCALE * (outputs[:, 0] - targets) ** 2

rng = np.random.default_rng(0)
data = Dataset.of(rng.normal(size=(60, 3)), rng.normal(size=60))
config = SimConfig(
    num_clients=4, num_selected=2, num_rounds=3, policy=Random(), track_regret=False,
    learning=Learning(task=Scaled(), model=Linear()),
)
keys = jax.random.split(jax.random.key(0), 2)
result = sweep(config, keys, data=data, store=FOLDER, progress=False)
loss = float(result.test_loss.isel(eval_round=0).mean())
"""


@trial
def a_store_does_not_return_the_results_of_another_constant() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "program.py"
        program.write_text(STORE)

        def loss(scale: float) -> float:
            given = {"SCALE": scale, "FOLDER": f"{folder}/kept"}
            return float(runpy.run_path(str(program), given)["loss"])

        first = loss(1.0)
        try:
            other = loss(34.0)
        except ConfigError:
            return
        assert other > 10 * first


def holdings(clients: list[Any]) -> Dataset:
    """Client c holds c + 1 samples."""
    x = np.random.default_rng(0).normal(size=(len(clients), 3))
    return Dataset.of(x, np.arange(len(clients)) % 2, x[:4], [0, 1, 0, 1], clients=clients)


def sizes_of(data: Dataset, num_clients: int) -> list[int]:
    config = SimConfig(
        num_clients=num_clients,
        num_selected=1,
        num_rounds=1,
        policy=policies.named("random"),
        learning=Learning(partition=Natural(), model=Linear(), optimizer="sgd", max_steps=1),
        track_regret=False,
    )
    return np.asarray(simulate(config, KEY, data=data).data_size).tolist()


@trial
def clients_named_by_numbers_in_text_are_in_their_order() -> None:
    names = [str(k) for k in range(12) for _ in range(k + 1)]
    assert sizes_of(holdings(names), 12) == list(range(1, 13))


@trial
def ids_with_gaps_are_not_renumbered_against_the_fleet() -> None:
    data = holdings([k for k in (0, 1, 5) for _ in range(k + 1)])
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "fleet.csv"
        rows = [f"{k},{s}" for k, s in ((0, 1.0), (1, 2.0), (2, 99.0)) for _ in range(8)]
        file.write_text("client,seconds\n" + "\n".join(rows) + "\n")
        config = SimConfig(
            num_clients=3,
            num_selected=3,
            num_rounds=1,
            policy=policies.named("all"),
            latency=latency.Traces(path=str(file)),
            learning=Learning(partition=Natural()),
        )
        with refused():
            simulate(config, KEY, data=data)


@trial
def nan_is_no_client() -> None:
    with refused():
        holdings([0.0, 0.0, 1.0, math.nan])


@trial
def fit_calls_lognormal_fleets_lognormal() -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        median = rng.uniform(0.5, 3, 30)
        seconds = median[:, None] * np.exp(0.3 * rng.normal(size=(30, 12)))
        assert law_of(seconds) == "lognormal", seed


@trial
def fit_does_not_call_few_shifted_exponentials_pareto() -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        least = rng.uniform(0.5, 3, 30)
        seconds = least[:, None] * (1 + 0.5 * rng.exponential(size=(30, 5)))
        assert law_of(seconds) != "pareto", seed


def law_of(seconds: np.ndarray) -> str:
    """The law that ``fit`` prints of a fleet, in a file as a user has it."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "fleet.csv"
        rows = [f"{k},{s!r}" for k, row in enumerate(seconds.tolist()) for s in row]
        file.write_text("client,seconds\n" + "\n".join(rows) + "\n")
        return named_law(fleet.read(str(file)))


def named_law(seen: fleet.Fleet) -> str:
    return seen.laws[0].name


@trial
def a_clock_of_many_short_rounds_is_right() -> None:
    traces = latency.Traces.of([[0.1]] * 2)
    config = SimConfig(
        num_clients=2, num_selected=2, num_rounds=200_000, latency=traces, learning=None
    )
    config = config.replace(policy=policies.named("all"))
    clock = simulate(config, KEY, record=("clock",)).clock
    np.testing.assert_allclose(clock[-1], 20_000.0, rtol=1e-6)


@trial
def a_small_decay_spends() -> None:
    for decay in (1e-8, 1e-6):
        budget = Geometric(total_epsilon=jnp.float32(10.0), decay=jnp.float32(decay))
        exact = -10.0 * math.expm1(-float(np.float32(decay)) * 3)
        np.testing.assert_allclose(budget.spent(jnp.int32(3)), exact, rtol=1e-6)


@trial
def a_selector_under_a_varying_law_chooses_as_the_simulation() -> None:
    traces = latency.Traces.of([[1.0, 9.0], [2.0, 1.0], [3.0, 2.0], [9.0, 3.0]])
    config = SimConfig(
        num_clients=4, num_selected=1, num_rounds=4, policy=policies.named("genie"), learning=None
    )
    config = config.replace(latency=traces.replace(order="played"), availability=1.0)
    simulated = simulate(config, KEY)
    selector, chosen = Selector(config, KEY, data_size=np.ones(4)), []
    for seconds in ([1.0, 2, 3, 9], [9.0, 1, 2, 3], [1.0, 2, 3, 9], [9.0, 1, 2, 3]):
        (client,) = np.asarray(selector.ask().clients).tolist()
        chosen.append(client)
        selector.tell({client: seconds[client]})
    assert chosen == np.asarray(simulated.clients)[:, 0].tolist()


class Broadcast(Task):
    """A loss that compares every output with every target of a batch."""

    def outputs(self, data: Dataset) -> tuple[int, ...]:
        return (1,)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return jnp.mean((outputs - targets) ** 2, axis=1)


@trial
def a_task_that_mixes_samples_is_refused() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    data = Dataset.of(x, x.sum(1))
    config = BANDIT.replace(learning=Learning(task=Broadcast()))
    with jax.numpy_rank_promotion("allow"), refused():
        simulate(config, KEY, data=data)


class TakesAName(Task):
    """Has a metric of its own under a name that is taken."""

    metrics = ("test_loss",)

    def outputs(self, data: Dataset) -> tuple[int, ...]:
        return (1,)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return (outputs[:, 0] - targets) ** 2

    def scores(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"test_loss": jnp.full(outputs.shape[:1], 7.0)}


@trial
def a_metric_does_not_replace_the_loss() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    config = BANDIT.replace(learning=Learning(task=TakesAName()))
    with refused():
        simulate(config, KEY, data=Dataset.of(x, x.sum(1)))


@trial
def equal_keys_are_refused() -> None:
    key = jax.random.key(3)
    with refused():
        sweep(BANDIT, jnp.stack([key, key]), progress=False)


@trial
def latencies_in_milliseconds_are_warned_of() -> None:
    traces = latency.Traces.of([[1000.0 + 50 * k] for k in range(6)])
    with warned("min_latency"):
        jax.block_until_ready(simulate(BANDIT.replace(latency=traces), KEY))


@trial
def rounds_that_are_missing_in_a_file_do_not_slide_clients() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "fleet.csv"
        file.write_text("client,seconds,round\n0,1,1\n0,2,2\n0,3,3\n0,4,4\n1,1,1\n1,3,3\n1,4,4\n")
        traces = latency.Traces(path=str(file), order="played")
        config = SimConfig(
            num_clients=2, num_selected=2, num_rounds=4, latency=traces, learning=None
        )
        config = config.replace(policy=policies.named("all"))
        try:
            result = simulate(config, KEY)
        except ConfigError:
            return
        seconds = np.diff(np.asarray(result.clock), prepend=0.0)
        np.testing.assert_allclose(seconds[[0, 2, 3]], [1.0, 3.0, 4.0], rtol=1e-6)


@trial
def the_expected_speed_of_a_network_is_right() -> None:
    law = latency.Network(
        download_bytes=jnp.float32(1e6),
        upload_bytes=jnp.float32(1e6),
        samples=jnp.float32(200.0),
        min_latency=jnp.float32(3.0),
    ).loaded()
    draws = jax.lax.map(lambda key: 3.0 / law.sample(key, 4), jax.random.split(KEY, 400_000))
    sampled = np.asarray(draws, np.float64)
    error = sampled.std(0) / np.sqrt(len(sampled))
    expected = jax.jit(lambda law: law.expected_speed(4))(law)
    assert (abs(expected - sampled.mean(0)) < 4 * error + 1e-5).all()


@trial
def pixels_have_a_largest_value() -> None:
    with refused():
        Dataset.of(np.zeros((20, 4), np.uint8), np.arange(20) % 2, pixel_max=math.nan)


@trial
def seconds_too_long_for_a_clock_are_refused() -> None:
    try:
        clock = simulate(BANDIT.replace(latency=latency.Traces.of([[1e38]] * 6)), KEY).clock
    except ConfigError:
        return
    assert np.isfinite(np.asarray(clock)).all()


@trial
def labels_may_be_true_and_false() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    try:
        data = Dataset.of(x, x[:, 0] > 0)
    except ConfigError:
        return
    assert data.num_classes == 2


@trial
def features_that_are_true_or_false_are_no_tokens() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)) > 0
    try:
        data = Dataset.of(x, x[:, 0].astype(int))
    except ConfigError:
        return
    assert data.sample.dtype == jnp.float32


def main() -> int:
    """Run all of them; return how many gave a wrong result in silence."""
    silent = 0
    for function in TRIALS:
        try:
            function()
            said = "ok"
        except AssertionError as error:
            silent += 1
            said = "SILENT: " + " ".join(str(error).split())[:40]
        except Exception as error:
            silent += 1
            said = f"{type(error).__name__}: " + " ".join(str(error).split())[:90]
        print(f"{said:70} {function.__name__.replace('_', ' ')}", flush=True)
    print(f"{len(TRIALS)} inputs, {silent} silently wrong")
    return silent


if __name__ == "__main__":
    sys.exit(min(main(), 1))
