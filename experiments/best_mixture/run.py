"""Rewards of policies, compared with the best stationary mixture of cohorts and the greedy genie.

python -m experiments.best_mixture.run
"""

from __future__ import annotations

import pathlib
from typing import Annotated, NamedTuple

import jax
import numpy as np
import typer
import xarray as xr
from scipy import optimize

from experiments.common import regret_setting
from experiments.common.outcome import Outcome
from pause_jax import simulate
from pause_jax.policies import (
    Genie,
    Pause,
    PolicyConfig,
    Random,
    RoundRobin,
    SpeedTurns,
    Thompson,
    Ucb,
    named,
)

HERE = pathlib.Path(__file__).parent
POLICIES: dict[str, PolicyConfig] = {
    "genie": Genie(),
    "pause": Pause(index=Ucb()),
    "pause_thompson": Pause(index=Thompson()),
    "mixture": named("mixture"),
    "round_robin": RoundRobin(),
    "speed_turns": SpeedTurns(),
    "random": Random(),
}
SETTING = regret_setting.config(Genie(), 1)
# Clients are numbered from the fastest to the slowest.
SPEED = np.asarray(SETTING.latency.expected_speed(SETTING.num_clients), np.float64)
K, M = SETTING.num_clients, SETTING.num_selected
ALPHA, BETA = float(SETTING.reward.alpha), float(SETTING.reward.beta)
# Relative tolerance of the reward that the best mixture earns when it is played.
WITHIN = 0.01


class Mixture(NamedTuple):
    """Distribution of cohorts, reduced to the numbers that determine its reward.

    Attributes:
      slowest: [K], frequency of cohorts whose slowest client is k.
      faster: [K, K], frequency of cohorts with slowest client k that contain client l < k. Each is
        at most slowest[k], and they sum to (m - 1) slowest[k]. Any numbers with these properties
        belong to some distribution.
    """

    slowest: np.ndarray
    faster: np.ndarray

    @property
    def share(self) -> np.ndarray:
        """Share of rounds in which each client takes part, [K]."""
        return self.slowest + self.faster.sum(axis=0)

    @property
    def rate(self) -> float:
        """Reward per round in the long run, where T_k / t equals the share."""
        return float(SPEED @ self.slowest + ALPHA / M * self.share @ generalization(self.share))


def generalization(rate: np.ndarray) -> np.ndarray:
    """Compute the reward g (8) of clients with equal data, from their participation rates."""
    x = M / K - rate
    return np.sign(x) * np.abs(x) ** BETA


def best_of_blocks() -> Mixture:
    """Compute the best mixture of the m fastest clients, the next m, and so on."""
    ends = np.arange(M - 1, K, M)

    def rate(share: np.ndarray) -> float:
        return float(SPEED[ends] @ share + ALPHA * share @ generalization(share))

    found = optimize.minimize(
        lambda share: -rate(share),
        np.full(len(ends), 1 / len(ends)),
        method="SLSQP",
        bounds=[(0, 1)] * len(ends),
        constraints={"type": "eq", "fun": lambda share: share.sum() - 1},
        options={"ftol": 1e-14},
    )
    slowest, faster = np.zeros(K), np.zeros((K, K))
    slowest[ends] = found.x
    for end, share in zip(ends, found.x, strict=True):
        faster[end, end - M + 1 : end] = share
    return Mixture(slowest, faster)


def best_of_all(rng: np.random.Generator) -> Mixture:
    """Search all mixtures for the best one, from a random start."""
    ends = np.arange(M - 1, K)
    slowest, faster = np.nonzero(np.tri(K, k=-1)[ends])
    equal = np.zeros((1 + len(ends), len(ends) + len(slowest)))
    equal[0, : len(ends)] = 1
    equal[1:, : len(ends)] = -(M - 1) * np.eye(len(ends))
    equal[1 + slowest, len(ends) + np.arange(len(slowest))] = 1
    target = np.eye(len(equal))[0]
    within = np.hstack([np.eye(len(ends))[slowest], -np.eye(len(slowest))])

    def unpacked(x: np.ndarray) -> Mixture:
        found = Mixture(np.zeros(K), np.zeros((K, K)))
        found.slowest[ends] = x[: len(ends)]
        found.faster[ends[slowest], faster] = x[len(ends) :]
        return found

    def slope(x: np.ndarray) -> np.ndarray:
        share = unpacked(x).share
        steepness = BETA * np.abs(M / K - share) ** (BETA - 1)
        of_share = ALPHA / M * (generalization(share) - share * steepness)
        return np.concatenate([SPEED[ends] + of_share[ends], of_share[faster]])

    corners = [
        optimize.linprog(
            rng.normal(size=equal.shape[1]), -within, np.zeros(len(within)), equal, target
        ).x
        for _ in range(8)
    ]
    found = optimize.minimize(
        lambda x: -unpacked(x).rate,
        np.mean(corners, axis=0),
        jac=lambda x: -slope(x),
        method="SLSQP",
        bounds=[(0, 1)] * equal.shape[1],
        constraints=[
            {"type": "eq", "fun": lambda x: equal @ x - target, "jac": lambda _: equal},
            {"type": "ineq", "fun": lambda x: within @ x, "jac": lambda _: within},
        ],
        options={"maxiter": 500, "ftol": 1e-10},
    )
    return unpacked(found.x)


def earned(clients: np.ndarray) -> np.ndarray:
    """Compute the expected reward of each round of cohorts [n, m], given the earlier rounds."""
    counts, rewards = np.zeros(K), np.empty(len(clients))
    for t, cohort in enumerate(clients, start=1):
        value = generalization(counts / t)
        rewards[t - 1] = SPEED[cohort].min() + ALPHA / M * value[cohort].sum()
        counts[cohort] += 1
    return rewards


def played(mixture: Mixture, rounds: int, rng: np.random.Generator) -> np.ndarray:
    """Draw cohorts [n, m] from a mixture of blocks, independently in each round."""
    ends = rng.choice(K, rounds, p=mixture.slowest / mixture.slowest.sum())
    return ends[:, None] - np.arange(M)


def main(
    rounds: int = 100_000,
    seeds: int = 4,
    starts: Annotated[int, typer.Option(help="Of the search among all mixtures.")] = 10,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print, check and draw. Exit with status 1 if a check fails."""
    outcome = Outcome(f"{seeds} seeds, {rounds} rounds, K = 20, m = 5, two_groups")
    blocks, rng = best_of_blocks(), np.random.default_rng(0)
    others = np.array([best_of_all(rng).rate for _ in range(starts)])
    outcome.add(
        f"the best mixture of blocks: {blocks.rate:.5f} a round; shares of the blocks, the "
        f"fastest first: {', '.join(f'{x:.3f}' for x in blocks.slowest[M - 1 :: M])}",
        f"a search among all mixtures, {starts} starts: {others.min():.5f} to {others.max():.5f}",
    )
    rewards, regrets = {}, {}
    rewards["best mixture"] = np.stack([earned(played(blocks, rounds, rng)) for _ in range(seeds)])
    for name, policy in POLICIES.items():
        config = regret_setting.config(policy, rounds)
        runs = [
            simulate(config, key, record=("clients", "regret"))
            for key in jax.random.split(jax.random.key(0), seeds)
        ]
        rewards[name] = np.stack([earned(np.asarray(run.clients)) for run in runs])
        regrets[name] = np.mean([np.asarray(run.regret, np.float64).mean() for run in runs])
    outcome.add(
        "reward a round over the second half; regret a round of all rounds: against the genie on "
        "the policy's own history, against the best mixture"
    )
    for name, values in rewards.items():
        behind = f"{blocks.rate - values.mean():8.4f}"
        genie = f"{regrets[name]:8.4f}" if name in regrets else " " * 8
        outcome.add(f"{name:16} {values[:, rounds // 2 :].mean():8.4f} {genie} {behind}")
    late = {name: values[:, rounds // 2 :].mean() for name, values in rewards.items()}
    outcome.check("no other mixture was found that earns more", others.max() < blocks.rate + 1e-6)
    outcome.check(
        f"played, it earns its rate within {WITHIN:.0%}",
        abs(late["best mixture"] / blocks.rate - 1) < WITHIN,
    )
    outcome.check("the genie earns less than it", late["genie"] < (1 - WITHIN) * blocks.rate)
    outcome.check("pause earns more than the genie", late["pause"] > late["genie"])
    outcome.check("so do turns in order of speed", late["round_robin"] > late["genie"])
    outcome.check(
        f"mixture learns to earn the rate of the best mixture within {WITHIN:.0%}",
        abs(late["mixture"] / blocks.rate - 1) < WITHIN,
    )
    outcome.check(
        f"speed_turns learns to earn as much as turns in known order within {WITHIN:.0%}",
        abs(late["speed_turns"] / late["round_robin"] - 1) < WITHIN,
    )
    draw(rewards, blocks.rate, out)
    outcome.finish(out)


def draw(rewards: dict[str, np.ndarray], rate: float, out: pathlib.Path) -> None:
    """Draw regret against the best mixture, without random, whose curve would hide the others."""
    drawn = {name: rate - rewards[name] for name in POLICIES if name != "random"}
    curves = xr.DataArray(
        np.cumsum(list(drawn.values()), axis=2),
        dims=("config", "seed", "round"),
        coords={"config": list(drawn), "round": np.arange(1, rewards["genie"].shape[1] + 1)},
    )
    title = "against the best stationary mixture"
    regret_setting.draw({title: curves}, out, scale="linear")


if __name__ == "__main__":
    typer.run(main)
