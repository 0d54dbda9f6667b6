"""A fleet with planted delays, its client app, and the config of all tests in this folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pause_jax import SimConfig
from pause_jax.deploy.flower import PrivateRelease, introduce
from pause_jax.policies import named
from pause_jax.privacy import PerCoordinateLaplace, Uniform
from pause_jax.world.latency import TwoGroups

KEY = jax.random.key(3)


def config_of(horizon: float = 25.0, policy: str = "pause_thompson", **changes: Any) -> SimConfig:
    """Ten clients, three a round, all of whose choices depend on the seconds alone."""
    base: dict[str, Any] = {
        "num_clients": 10, "num_selected": 3, "num_rounds": 40, "learning": None,
        "latency": TwoGroups(min_latency=0.05), "policy": named(policy),
        "privacy": PerCoordinateLaplace(budget=Uniform(horizon=horizon)),
    }  # fmt: skip
    return SimConfig(**(base | changes)).override({"reward.alpha": 0.0, "reward.gamma": 0.0})


def model() -> ArrayRecord:
    """Floats of two kinds, one without dimensions, and a counter."""
    arrays = {
        "w": np.zeros((2, 3), np.float32),
        "steps": np.asarray(7),
        "b": np.ones(4),
        "scale": np.asarray(2.0, np.float32),
    }
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def without_mod(
    reply: Callable[[dict[str, Any], int], tuple[dict[str, Any], dict[str, Any]]],
) -> ClientApp:
    """Return an app without the mod whose clients send what ``reply`` returns.

    Args:
      reply: (arrays of the server, client) -> (arrays, metrics).
    """
    app = introduce(ClientApp())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        came = {name: array.numpy() for name, array in message.content["arrays"].items()}
        arrays, metrics = reply(came, int(context.node_config["partition-id"]))
        packed = {
            name: each if isinstance(each, Array) else Array(np.asarray(each))
            for name, each in arrays.items()
        }
        content = {"arrays": ArrayRecord(packed), "metrics": MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=message)

    return app


def client_app(
    delays: list[float],
    ledger: str,
    *,
    privacy: Any = None,
    faults: dict[int, str] | None = None,
    reported: list[list[float]] | None = None,
    seed: int | None = 0,
) -> ClientApp:
    """Each client adds 0.001 to every weight, after its delay.

    Args:
      delays: seconds of each client.
      ledger: as for the mod.
      privacy: the mechanism; that of ``config_of()`` by default.
      faults: of a client: ``raise``, or ``nan``.
      reported: what each client says that it took, in each round, in place of its clock.
      seed: of the mod.
    """
    mod = PrivateRelease(
        privacy or config_of().privacy,
        ledger,
        clear=("num-examples", *(["pause-seconds"] if reported else [])),
        seed=seed,
    )
    app = introduce(ClientApp())

    @app.train(mods=[mod])
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        time.sleep(delays[client])
        fault = (faults or {}).get(client)
        if fault == "raise":
            raise RuntimeError("out of memory, as planted")
        step = np.nan if fault == "nan" else 0.001
        arrays = {
            name: array.numpy() + (step if array.numpy().dtype.kind == "f" else 0)
            for name, array in message.content["arrays"].items()
        }
        metrics = MetricRecord({"num-examples": 10 + client, "secret": 1.0})
        if reported:
            metrics["pause-seconds"] = reported[message.content["config"]["server-round"]][client]
        trained = ArrayRecord({name: Array(np.asarray(a)) for name, a in arrays.items()})
        return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)

    return app
