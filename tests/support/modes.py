"""The library's core in a process of its own, under whatever mode of JAX its environment sets.

``python -m tests.support.modes`` prints nothing if it meets no fault.
"""

import functools
import gc
import itertools
import warnings

import jax
import jax.numpy as jnp

from pause_jax import Learning, SimConfig, simulate, sweep
from pause_jax.bandit import no_info
from pause_jax.config import canonical
from pause_jax.learning import (
    CosineDecay,
    Digits,
    Dirichlet,
    Iid,
    Linear,
    LinearRegression,
    StepDecay,
)
from pause_jax.policies import NAMED, Policy, PolicyConfig, check_selected
from pause_jax.policies.choose import equal_weights
from pause_jax.privacy import (
    MECHANISMS,
    GaussianMechanism,
    PerCoordinateLaplace,
    PrivUnitG,
    Uniform,
)
from pause_jax.run.driver import single_run
from pause_jax.run.preflight import prepare
from pause_jax.run.record.quantities import QUANTITIES
from pause_jax.run.record.quantity import quantity
from pause_jax.run.record.result import chosen
from pause_jax.world.latency import LATENCIES, Network, Traces
from tests.support import shapes

BANDIT = SimConfig(num_clients=8, num_selected=3, num_rounds=3, learning=None, availability=0.8)
LEARN = SimConfig(
    num_clients=6,
    num_selected=2,
    num_rounds=2,
    eval_every=1,
    availability=0.8,
    learning=Learning(
        data=Digits(num_train=120),
        partition=Dirichlet(min_quality=0.5),
        model=Linear(),
        max_steps=2,
        schedule=StepDecay(every=1),
        keep_optimizer_state=True,
    ),
)
# Policies that read what the clients' training or answers show.
READERS = (
    *("clustered_similarity", "oort", "power_of_choice", "rpow_d", "cpow_d", "rbcs_f"),
    *("divfl", "hics_fl", "fedcor"),
)


def settings():
    """(what it is, config, policies beside its own in one program): every policy, latency model and
    mechanism at least once.
    """
    measured = Traces.of([[0.1 * (k + 1), 0.5] for k in range(BANDIT.num_clients)])
    phones = Network(download_bytes=1e6, upload_bytes=1e6)
    given = {Traces: measured, Network: phones}
    latencies = [given.get(cls) or cls() for cls in LATENCIES]
    alone = [name for name in NAMED if name not in READERS and not together(name)]
    assert len(alone) < len(latencies)
    for name, latency in itertools.zip_longest(alone, latencies, fillvalue="random"):
        # The genie's choice is the same whoever plays beside it.
        with_genie = name in ("random", "genie")
        config = BANDIT.replace(policy=NAMED[name], latency=latency, track_regret=with_genie)
        yield f"{name}, {latency.name}", config, ()
    names = [name for name in NAMED if together(name)]
    yield str(names), BANDIT.replace(track_regret=False), tuple(NAMED[name] for name in names)
    # ``kinds`` has another kind of budget.
    mechanisms = [mechanism() for mechanism in MECHANISMS]
    for mechanism, name in zip(mechanisms, itertools.cycle(READERS), strict=False):
        config = LEARN.replace(policy=NAMED[name], privacy=mechanism, track_regret=False)
        yield f"{name}, {mechanism}", config, ()
    yield "stale updates", LEARN.override({"deadline": 0.5, "stale_updates": "next"}), ()
    yield (
        "silent clients, equal shares, regression by SGD",
        LEARN.override(
            {
                "when_spent": "drop",
                "privacy": PerCoordinateLaplace(budget=Uniform(horizon=1.0)),
                "learning.partition": Iid(),
                "learning.optimizer": "sgd",
                "learning.schedule": CosineDecay(horizon=2.0),
                "learning.data": LinearRegression(num_samples=100),
                "learning.keep_optimizer_state": False,
            }
        ),
        (),
    )


def together(name: str) -> bool:
    """Whether :class:`Together` can hold the policy."""
    policy = NAMED[name]
    sizes = BANDIT.num_clients, BANDIT.num_selected
    return not (policy.alone or policy.releases) and policy.cohort_size(*sizes) == sizes[1]


class Together(PolicyConfig):
    """Policies of one run: each chooses and learns in every round, and the first's choice counts.

    Unlike ``OneOf`` it leaves the dtypes of their states as they come.
    """

    reads = ("update",)
    policies: tuple[PolicyConfig, ...]

    def build(self, context):
        built = [policy.build(context) for policy in self.policies]

        def select(key, states, round, available):
            selected = []
            for place, (policy, state) in enumerate(zip(built, states, strict=True)):
                own = jax.random.fold_in(key, place)
                choice = policy.select(own, state, round, available)
                selected.append(check_selected(choice, context.num_selected))
            return selected[0]

        def update(states, selection, observation):
            return tuple(
                policy.update(state, selection, observation)
                for policy, state in zip(built, states, strict=True)
            )

        return Policy(lambda: tuple(policy.init() for policy in built), select, update)


def traced(config: SimConfig, policies: tuple[PolicyConfig, ...] = ()) -> None:
    """Trace a whole run without compiling it: JAX checks dtypes and keys while it traces.

    Policies take the place of the config's own, all in one run: most of a trace is the rest of it.
    """
    if not policies:
        jax.eval_shape(functools.partial(simulate, config), jax.random.key(0))
        return
    numbers = tuple(canonical(config.replace(policy=policy)).policy for policy in policies)
    config, data = prepare(config)
    config = config.replace(policy=Together(policies=numbers))
    jax.eval_shape(lambda key: single_run(config, data, key, chosen(None)), jax.random.key(0))


def core() -> None:
    """Trace every setting, and run a sweep in which two configs meet one world."""
    for label, config, policies in settings():
        try:
            traced(config, policies)
        except Exception as error:
            print(f"{label}: {type(error).__name__}: {error}")
    configs = [BANDIT.replace(policy=NAMED[name]) for name in ("pause", "round_robin")]
    sweep(configs, jax.random.split(jax.random.key(0), 2), progress=False)


@quantity("round", "slot", "entry")
def released(r):
    """What left the clients."""
    return r.trained.released


@quantity("round", "slot")
def weights(r):
    """Aggregation weights."""
    return r.selection.weights


def kinds() -> None:
    """Model and releases stay float32, and whole numbers int32."""
    whole = ("clients", "counts", "queried", "data_size", "first_nonfinite_round")
    lean = (*whole, released, weights)
    full = (*QUANTITIES.values(), released, weights)
    # One is compiled and run; dtypes of the others are known once they are traced.
    run, trace = (functools.partial(simulate, record=record) for record in (lean, full))
    ways = run, functools.partial(jax.eval_shape, trace), functools.partial(jax.eval_shape, trace)
    mechanisms = PerCoordinateLaplace(), PrivUnitG(), GaussianMechanism()
    for way, mechanism in zip(ways, mechanisms, strict=True):
        result = way(LEARN.replace(privacy=mechanism), jax.random.key(0))
        found = {name: result.values[name].dtype for name in whole}
        for name, dtype in {**found, "eval_rounds": result.eval_rounds.dtype}.items():
            if dtype != jnp.int32:
                print(f"{mechanism}: {name} is {dtype}")
        for leaf in (*jax.tree.leaves(result.variables), result.released, result.weights):
            if leaf.dtype != jnp.float32:
                print(f"{mechanism}: {leaf.shape} of the model or released is {leaf.dtype}")


class Twice(PolicyConfig):
    """Draws twice from one key."""

    def build(self, context):
        def select(key, state, round, available):
            lots = jax.random.uniform(key, available.shape)
            again = jax.random.uniform(key, available.shape)
            clients = jax.lax.top_k(lots + again, context.num_selected)[1]
            return equal_weights(clients, available[clients]), no_info()

        return Policy(lambda: (), select, lambda state, selection, observation: state)


class Widening(PolicyConfig):
    """Adds a number of JAX's widest kind to its state."""

    def build(self, context):
        def select(key, state, round, available):
            clients = jnp.arange(context.num_selected, dtype=jnp.int32)
            return equal_weights(clients, available[clients]), no_info()

        def update(state, selection, observation):
            return state + jnp.asarray(0.5, jnp.result_type(float))

        return Policy(lambda: jnp.float32(0), select, update)


if __name__ == "__main__":
    gc.set_threshold(50_000, 20, 50)  # as in tests/conftest.py
    shapes.watch_all()
    warnings.simplefilter("error")
    core()
    kinds()
