import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import config_file
from pause_jax.bandit.search import Search
from pause_jax.base import struct
from pause_jax.base.checks import check_fields
from pause_jax.base.registry import choices
from pause_jax.base.struct import Config, ConfigError, node, number, static
from pause_jax.config import SimConfig, validate
from pause_jax.learning import DATASETS, Learning, Mlp, Model, PartitionConfig
from pause_jax.policies import POLICIES
from pause_jax.privacy import BUDGETS, MECHANISMS
from pause_jax.world.latency import LATENCIES
from tests.support.generated import kinds

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
        ({"weight": 1j}, "weight = 1j: must be a float32 number"),
        ({"free": math.nan}, "free = nan: must be a float32 number, finite."),
        ({"free": "x"}, "free = 'x': must be a float32 number"),
        ({"size": 1}, "size = 1: must be a whole number, >= 2 and <= 9."),
        ({"size": 10}, "size = 10: must be a whole number, >= 2 and <= 9."),
        ({"size": True}, "size = True: must be a whole number, >= 2 and <= 9."),
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


def test_defaults_of_every_config_keep_their_own_rules():
    for config in CONFIGS:
        check_fields(config())


# ---------------------------------------------------------------- pytrees


def test_structures_of_all_config_classes_differ():
    structures = [jax.tree.structure(config()) for config in CONFIGS]
    assert len(structures) > 20
    assert len(set(structures)) == len(structures)


def test_every_config_survives_flattening_and_a_file():
    found: set[type[Config]] = set()
    new = [("", SimConfig())]
    while new:
        path, config = new.pop()
        leaves, structure = jax.tree.flatten(config)
        assert jax.tree.unflatten(structure, leaves) == config, path
        read, kept = jax.tree.flatten(config_file.loads(config_file.dumps(config)))
        assert (kept, hash(kept)) == (structure, hash(structure)), path
        np.testing.assert_array_equal(np.float32(read), np.float32(leaves), path)
        part = functools.reduce(getattr, path.split("."), config) if path else config
        for name, _, rule, field in struct.fields(part):
            unseen = set(kinds(rule.kind)) - found if struct.is_node(field) else set()
            found |= unseen
            where = f"{path}.{name}".lstrip(".")
            new += [(where, config.override({where: kind()})) for kind in unseen]
    assert set(CONFIGS) <= found


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


def test_configs_are_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Outer().weight = 2.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        Outer(1.0)  # type: ignore[call-arg]


def test_nested_configs_are_listed_with_their_paths():
    assert [path for path, _ in struct.nested(Outer())] == ["", "inner", "extra"]
    assert [path for path, _ in struct.nested(Outer(extra=None))] == ["", "inner"]
    paths = {path for path, _ in struct.nested(SimConfig())}
    assert {"policy.search", "privacy.budget", "learning.partition"} <= paths
