import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import config_file
from pause_jax.bandit.search import Annealing, Search
from pause_jax.base import struct
from pause_jax.base.checks import check_fields
from pause_jax.base.registry import choices
from pause_jax.base.struct import Config, ConfigError, node, number, static
from pause_jax.config import SimConfig, validate
from pause_jax.learning import DATASETS, Iid, Learning, Mlp, Model, PartitionConfig
from pause_jax.policies import POLICIES, Pause
from pause_jax.privacy import BUDGETS, MECHANISMS
from pause_jax.world.latency import LATENCIES

CONFIGS = (
    *(*POLICIES, *LATENCIES, *BUDGETS, *MECHANISMS, *DATASETS),
    *(cls for base in (Search, Model, PartitionConfig) for cls in choices(base).values()),
)


class Inner(Config):
    rate: float = number(default=0.5, above=0, at_most=1)


class Outer(Config):
    weight: float = number(default=1.0, at_least=0)
    free: float = number(default=0.0)
    size: int = static(default=4, at_least=2, at_most=9)
    level: float = static(default=0.5, at_least=0)
    mode: str = static(default="a", choices=("a", "b"))
    limit: int | None = static(default=None, at_least=1, optional=True, kind=int)
    shape: tuple[int, ...] = static(default=(3, 2), at_least=1)
    inner: Inner = node(factory=Inner, of=Inner)
    extra: Inner | None = node(factory=Inner, of=Inner, optional=True)


# ---------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": -1.0}, "weight = -1.0: must be a float32 number, finite and >= 0."),
        ({"weight": math.nan}, "weight = nan: must be a float32 number, finite and >= 0."),
        ({"weight": math.inf}, "weight = inf: must be a float32 number, finite and >= 0."),
        ({"weight": "2"}, "weight = '2': must be a float32 number"),
        ({"weight": True}, "weight = True: must be a float32 number"),
        ({"weight": None}, "weight = None: must be a float32 number"),
        ({"free": math.nan}, "free = nan: must be a float32 number, finite."),
        ({"free": "x"}, "free = 'x': must be a float32 number"),
        ({"size": 1}, "size = 1: must be a whole number, >= 2 and <= 9."),
        ({"size": 10}, "size = 10: must be a whole number, >= 2 and <= 9."),
        ({"size": 4.0}, "size = 4.0: must be a whole number, >= 2 and <= 9."),
        ({"size": None}, "size = None: must be a whole number, >= 2 and <= 9."),
        ({"size": jnp.asarray(4)}, "must be a whole number"),
        ({"level": -0.5}, "level = -0.5: must be a number, >= 0."),
        ({"level": math.inf}, "level = inf: must be a number, >= 0."),
        ({"mode": "c"}, "mode = 'c': must be one of a, b."),
        ({"limit": 0}, "limit = 0: must be a whole number, >= 1."),
        ({"shape": (3, 0)}, "shape = (3, 0): must be a tuple of whole numbers, >= 1."),
        ({"shape": (3, 2.5)}, "shape = (3, 2.5): must be a tuple of whole numbers, >= 1."),
        ({"inner": 3}, "inner = 3: must be a config object of class Inner, such as Inner()."),
        ({"inner": None}, "inner = None: must be a config object of class Inner"),
        ({"inner": Inner(rate=0.0)}, "inner.rate = 0.0: must be a float32 number, finite and > 0"),
        ({"extra": Inner(rate=1.5)}, "extra.rate = 1.5: must be a float32 number, finite and > 0"),
        ({"weight": np.array([1.0, -2.0])}, "must be a single number"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_bad_field_error_names_value_and_rule(changes, message):
    with pytest.raises(ConfigError) as caught:
        check_fields(Outer(**changes))
    assert message in str(caught.value)
    assert next(iter(changes)) in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"weight": 0.0, "size": 2, "level": 0.0},
        {"weight": 3, "free": -1e9, "size": 9, "level": 7},
        {"weight": jnp.array(1.0), "limit": 1, "shape": (1,)},
        {"inner": Inner(rate=1.0), "extra": None, "mode": "b"},
    ],
)
def test_good_fields_pass(changes):
    check_fields(Outer(**changes))


def test_numpy_scalars_become_python_numbers():
    config = SimConfig(
        num_clients=np.int64(8), num_selected=np.int32(2), track_regret=np.bool_(False),
        learning=Learning(model=Mlp(hidden=(np.int64(3), 4))),
    )  # fmt: skip
    plain = SimConfig(
        num_clients=8, num_selected=2, track_regret=False,
        learning=Learning(model=Mlp(hidden=(3, 4))),
    )  # fmt: skip
    for given in (
        config,
        plain.replace(num_clients=np.int64(8)),
        plain.override({"num_rounds": np.int16(200)}),
    ):
        validate(given)
        assert jax.tree.structure(given) == jax.tree.structure(plain)
        assert config_file.dumps(given) == config_file.dumps(plain)
    assert type(config.num_clients) is int
    assert type(config.learning.model.hidden[0]) is int
    with pytest.raises(ConfigError, match=r"num_clients = 8\.0: must be a whole number"):
        validate(plain.replace(num_clients=np.float64(8.0)))


def test_config_error_is_a_value_error():
    assert issubclass(ConfigError, ValueError)


def test_rules_in_words():
    assert struct.Rule().describe() == "finite"
    assert struct.Rule(above=0, at_most=1).describe() == "> 0 and <= 1"
    assert struct.Rule(choices=("a", "b")).describe() == "one of a, b"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_defaults_of_every_config_keep_their_own_rules(config):
    check_fields(config())


# ---------------------------------------------------------------- pytrees


def test_structures_of_all_config_classes_differ():
    structures = [jax.tree.structure(config()) for config in CONFIGS]
    assert len(structures) > 20
    for one, other in itertools.combinations(range(len(CONFIGS)), 2):
        assert structures[one] != structures[other], (CONFIGS[one], CONFIGS[other])
    assert len(set(structures)) == len(structures)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_flatten_and_unflatten_return_the_same_config(config):
    config = config()
    leaves, structure = jax.tree.flatten(config)
    back = jax.tree.unflatten(structure, leaves)
    assert type(back) is type(config)
    assert back == config
    assert hash(structure) == hash(jax.tree.structure(back))


def test_leaves_are_the_traced_numbers_with_their_paths():
    config = Outer(weight=2.0, inner=Inner(rate=0.25), extra=None)
    paths = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(config)
    }
    assert paths == {".weight": 2.0, ".free": 0.0, ".inner.rate": 0.25}


def test_traced_numbers_share_a_compilation_and_static_ones_do_not():
    traces = []

    @jax.jit
    def run(config):
        traces.append(config.size)
        return config.weight * config.size + config.inner.rate

    assert run(Outer(weight=1.0)) == 4.5
    assert run(Outer(weight=2.0, inner=Inner(rate=0.25))) == 8.25
    assert traces == [4]
    assert run(Outer(weight=1.0, size=3)) == 3.5
    assert traces == [4, 3]
    run(Outer(mode="b"))
    assert traces == [4, 3, 4]


def test_tracers_pass_validation():
    def run(weight):
        check_fields(Outer(weight=weight))
        return weight

    assert jax.jit(run)(-1.0) == -1.0


def test_vmap_and_grad_over_a_traced_number():
    def energy(config):
        return config.weight**2 * config.size

    batch = Outer().replace(weight=jnp.array([1.0, 2.0]))
    axes = jax.tree.map(lambda leaf: 0 if jnp.ndim(leaf) else None, batch)
    np.testing.assert_allclose(jax.vmap(energy, in_axes=(axes,))(batch), [4.0, 16.0])
    gradient = jax.grad(energy)(Outer(weight=3.0))
    assert gradient.weight == 24.0
    assert gradient.size == 4


def test_replace_copies_and_leaves_the_original():
    config = Outer()
    changed = config.replace(weight=7.0, size=5)
    assert (changed.weight, changed.size, changed.inner) == (7.0, 5, config.inner)
    assert (config.weight, config.size) == (1.0, 4)
    assert type(changed) is Outer
    with pytest.raises(ConfigError, match="no_such_field"):
        config.replace(no_such_field=1)


def test_configs_are_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Outer().weight = 2.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        Outer(1.0)  # type: ignore[call-arg]


def test_fields_nested_and_kinds():
    kinds = {
        name: "node" if struct.is_node(field) else "static" if struct.is_static(field) else "number"
        for name, _, _, field in struct.fields(Outer())
    }
    assert kinds == {
        "weight": "number",
        "free": "number",
        "size": "static",
        "level": "static",
        "mode": "static",
        "limit": "static",
        "shape": "static",
        "inner": "node",
        "extra": "node",
    }
    assert [path for path, _ in struct.nested(Outer())] == ["", "inner", "extra"]
    assert [path for path, _ in struct.nested(Outer(extra=None))] == ["", "inner"]
    paths = {path for path, _ in struct.nested(SimConfig())}
    assert {"policy.search", "privacy.budget", "learning.partition"} <= paths


def test_override_by_dotted_path():
    config = SimConfig(learning=Learning(partition=Iid()))
    changed = config.override({"reward.gamma": 0.25, "policy.search": Annealing(steps=7)})
    assert changed.reward.gamma == 0.25
    assert isinstance(changed.policy, Pause)
    assert isinstance(changed.policy.search, Annealing)
    assert changed.policy.search.steps == 7
    assert config.reward.gamma != 0.25
    with pytest.raises(ConfigError, match=r"reward\.delta: Reward has no field 'delta'"):
        config.override({"reward.delta": 1.0})
