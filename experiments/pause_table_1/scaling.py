"""Growth of neighbours and time with the number of clients."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.common import instances
from experiments.common.claims import Claim, exact
from experiments.common.outcome import Outcome
from experiments.search_laboratory import landscape as lab
from pause_jax.bandit.reward import Reward
from pause_jax.bandit.search import Problem, exhaustive
from pause_jax.bandit.search import exact as exact_search

REWARD = Reward(alpha=2.0, beta=1.0, gamma=1.0)
LISTS = {"pause": 3, "alsa": 2, "vanilla": 0}
STEPS = 500


@functools.partial(jax.jit, static_argnums=(2, 3))
def all_degrees(key: Array, problems: Problem, num_selected: int, number: int) -> dict[str, Array]:
    """Count neighbours by rule, float [n, number + 2]: random sets, optimum, m highest ucb."""
    drawn = lab.random_sets(key, problems.index.shape[1], num_selected, number)

    def one(problem: Problem) -> dict[str, Array]:
        best, _ = exact_search(problem.index, problem.weight, num_selected)
        fastest = jax.lax.top_k(problem.index, num_selected)[1]
        nobody = jnp.zeros((2, problem.index.shape[0]), bool)
        special = nobody.at[0, best].set(True).at[1, fastest].set(True)
        members = jnp.concatenate([drawn, special])
        landscape = lab.landscape_for(key, problem, num_selected, "pause")
        # The other rules use the first lists of pause, so one sort serves all rules.
        return {
            rule: lab.degrees(landscape._replace(ranks=landscape.ranks[:lists]), members)
            for rule, lists in LISTS.items()
        }

    return jax.vmap(one)(problems)


def neighbours(outcome: Outcome, sizes: list[int], sets: int, within: float, axes: Any) -> None:
    """Count neighbours of random sets, the optimum and the m highest ucb, for m = K/6 and 5."""
    key = jax.random.key(0)
    outcome.add(
        "slopes of the number of neighbours against K; mean over random sets, their largest, that "
        "of the optimum",
        f"{'kind':8} {'m':4} {'rule':8} {'mean':>15} {'largest':>15} {'at optimum':>15}"
        f"   mean/m(K-m) and optimum/m(K-m) at the largest K",
    )
    bounded = worst = True
    slopes: dict[Any, float] = {}
    for kind in instances.KINDS:
        for cohort in ("K/6", "5"):
            picks = [k // 6 if cohort == "K/6" else 5 for k in sizes]
            found = {rule: np.zeros((3, len(sizes))) for rule in LISTS}
            for i, (k, m) in enumerate(zip(sizes, picks, strict=True)):
                problems = instances.draw(key, 4, k, m, REWARD, kind)
                for rule, values in all_degrees(key, problems, m, sets).items():
                    each = np.asarray(values, np.float64)
                    drawn, optimum, fastest = each[:, :-2], each[:, -2], each[:, -1]
                    found[rule][:, i] = drawn.mean(), drawn.max(), optimum.mean()
                    worst &= bool((fastest == m * (k - m)).all())
                    if rule != "vanilla":
                        error = drawn.std() / np.sqrt(drawn.size)
                        bounded &= bool(drawn.mean() <= 2 * LISTS[rule] * (k - m) + 4 * error)
            for rule, rows in found.items():
                fits = [lab.fit_slope(sizes, row) for row in rows]
                slopes[kind, cohort, rule] = fits[0][0]
                if (rule, cohort) == ("pause", "K/6"):
                    slopes[kind, "at optimum"] = fits[2][0]
                k, m = sizes[-1], picks[-1]
                outcome.add(
                    f"{kind:8} {cohort:4} {rule:8}"
                    + "".join(f" {slope:7.3f}+-{error:5.3f}" for slope, error in fits)
                    + f"   {rows[0, -1] / (m * (k - m)):.4f} {rows[2, -1] / (m * (k - m)):.4f}"
                )
                if cohort == "K/6" and kind == "uniform":
                    (line,) = axes.loglog(sizes, rows[0], "o-", label=rule)
                    axes.loglog(sizes, rows[2], "--", color=line.get_color(), lw=1)
    axes.set(xlabel="clients K, m = K/6", ylabel="neighbours (dashed: at the optimum)")
    axes.legend(fontsize="small")
    vanilla = _near(slopes, "vanilla", "K/6", 2, 1e-3)
    outcome.check("vanilla: slope 2 for m = K/6", vanilla)
    for rule in ("pause", "alsa"):
        outcome.check(
            f"{rule}: mean slope within {within} of 1 for m = K/6",
            _near(slopes, rule, "K/6", 1, within),
        )
    outcome.check("mean <= 2 lists (K - m): 6 (K - m) for pause, 4 (K - m) for alsa", bounded)
    steepest = min(slopes[kind, "at optimum"] for kind in instances.KINDS)
    outcome.check(
        f"pause: the optimum has of the order of K^2 neighbours (slope {steepest:.2f} or more)",
        steepest > 1.8,
    )
    outcome.check("worst case: the set of the m highest ucb has all m (K - m) neighbours", worst)
    outcome.judge(claims_on_neighbours(vanilla, bounded, worst))


def claims_on_neighbours(vanilla: bool, bounded: bool, worst: bool) -> list[Claim]:
    """Return the claims of PAUSE's Table I and of BSFL on Fig. 3 about the neighbours."""
    highest = "the set of the m highest ucb has all m (K - m)"
    return [
        exact("Table I: Vanilla-SA has O(K^2) neighbours", vanilla, "m (K - m), slope 2"),
        exact("Table I: Algorithm 2 has O(K log K) on average", bounded, "at most 6 (K - m)"),
        exact("Table I: Algorithm 2 has O(K^2) at worst", worst, highest),
        exact("Fig. 3: ALSA has at most 4 (K - m) neighbours on average", bounded, "random sets"),
        exact("Fig. 3: every state of ALSA has O(K) neighbours", not worst, highest),
    ]


def _near(slopes: dict[Any, float], rule: str, cohort: str, value: float, within: float) -> bool:
    return all(abs(slopes[kind, cohort, rule] - value) <= within for kind in instances.KINDS)


def seconds(outcome: Outcome, sizes: list[int], axes: Any) -> None:
    """Measure the times of an annealing step and of whole searches on this machine."""
    key = jax.random.key(1)
    step, whole = [], []
    search = jax.jit(exact_search, static_argnums=2)
    for k in sizes:
        m = k // 6
        problems = instances.draw(key, 1, k, m, REWARD, "uniform")
        index, weight = problems.index[0], problems.terms[0].sum(axis=0)
        keys = jax.random.split(key, 1)
        step.append(lab.median_seconds(lambda: lab.traces(keys, problems, m, steps=STEPS)) / STEPS)  # noqa: B023
        whole.append(lab.median_seconds(lambda: search(index, weight, m)))  # noqa: B023
    small = [k for k in (12, 18, 24, 30) if k <= max(sizes)]
    brute = []
    score = jax.jit(exhaustive, static_argnums=2)
    for k in small:
        weight = jax.random.uniform(key, (k,))
        brute.append(lab.median_seconds(lambda: score(jnp.flip(weight), weight, k // 6)))  # noqa: B023
    for name, x, times in (("a step", sizes, step), ("exact", sizes, whole)):
        slope, error = lab.fit_slope(x, times)
        listed = ", ".join(f"{1e6 * t:.0f}" for t in times)
        outcome.add(f"microseconds of {name}, m = K/6: {listed}; slope {slope:.2f}+-{error:.2f}")
    listed = ", ".join(f"{1e6 * t:.0f}" for t in brute)
    outcome.add(f"microseconds of exhaustive, K = {small}: {listed}")
    outcome.add(
        f"exact takes as long as {whole[0] / step[0]:.0f} annealing steps at K = {sizes[0]} and "
        f"as {whole[-1] / step[-1]:.0f} at K = {sizes[-1]}"
    )
    axes.loglog(sizes, step, "o-", label="one annealing step")
    axes.loglog(sizes, np.array(step) * 3000, "o-", label="3,000 steps")
    axes.loglog(sizes, whole, "s-", label="exact")
    axes.loglog(small, brute, "^-", label="exhaustive")
    axes.set(xlabel="clients K, m = K/6", ylabel="seconds")
    axes.legend(fontsize="small")
    longest = max(a / b for a, b in zip(whole, step, strict=True))
    outcome.check(
        f"exact takes less than the authors' 500 or 3,000 steps at every K (at most {longest:.0f})",
        longest < STEPS,
    )
    log_sets = [math.log(math.comb(k, k // 6)) for k in sizes]
    slope, error = lab.fit_slope(sizes, log_sets)
    outcome.add(
        f"sets at K = {sizes[-1]}: e^{log_sets[-1]:.0f}; ln of their number grows as K^"
        f"{slope:.3f}+-{error:.3f}"
    )
    outcome.check("brute force is exponential: ln C(K, K/6) grows as K", abs(slope - 1) <= 0.1)
