"""Laws of measured latencies, and how well each predicts them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from pause_jax.world.latency import Latency, LogNormal, Pareto, ShiftedExponential, SpacedLatency

Floats = NDArray[np.float64]
# Nats by which a law must predict better than another; odds of 150 to 1.
DECISIVE = 5.0
_NODES, _WEIGHTS = np.polynomial.laguerre.laggauss(16)


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float


class Law(NamedTuple):
    """A law of all clients, each with its own scale.

    Attributes:
      name: ``lognormal``, ``shifted_exponential``, ``pareto`` or ``normal``.
      log_density: float [C], nats: how well the law predicts all but one of a client's
        measurements from that one, on average over which one is given. The client's scale is
        integrated out, with a density that does not depend on units (of its logarithm; of the mean
        for ``normal``). The parameter common to all clients, one for each law, is at its best
        value. So no law needs a penalty (the geometric intrinsic Bayes factor; Berger and Pericchi
        1996, "The intrinsic Bayes factor for model selection and prediction").
      parameters: fields of the latency model of that name, with standard errors.
      scale: float [C], of each client in the order of its number, seconds: the median of a
        lognormal, the least of a shifted exponential and a Pareto law, the mean of a normal one.
    """

    name: str
    log_density: Floats
    parameters: dict[str, Estimate]
    scale: Floats

    def model(self, min_latency: float) -> Latency | None:
        """The latency model, its clients from the fastest to the slowest; None for a normal law,
        for which the library has no model with such scales.
        """
        models: tuple[type[SpacedLatency], ...] = (LogNormal, ShiftedExponential, Pareto)
        cls = next((model for model in models if model.name == self.name), None)
        values = {name: float(np.float32(each.value)) for name, each in self.parameters.items()}
        return None if cls is None else cls(min_latency=min_latency, **values)


def fitted(each: list[Floats]) -> tuple[Law, ...]:
    """The four laws of the measurements of each client, best first."""
    laws = [law(each) for law in (_lognormal, _shifted_exponential, _pareto, _normal)]
    return tuple(sorted(laws, key=lambda law: -law.log_density.sum()))


def rivals(laws: tuple[Law, ...]) -> tuple[str, ...]:
    """Names of the laws that the data cannot tell from the first, the best one.

    The best must predict better by more than ``DECISIVE`` nats, also without the client that
    favours it most: one client alone decides nothing.
    """
    best, *others = laws
    ahead = {law.name: best.log_density - law.log_density for law in others}
    return tuple(name for name, by in ahead.items() if by.sum() - by.max() <= DECISIVE)


def _ends(scale: Floats, error: Floats) -> dict[str, Estimate]:
    """``fastest`` and ``slowest`` of geometrically spaced scales.

    From the estimate of each client, [C], and its relative standard error, [C].
    """
    order = np.argsort(scale)
    place = np.linspace(0, 1, scale.size)
    design, weight = np.stack([1 - place, place], axis=1), 1 / error[order]
    covariance = np.linalg.inv(design.T @ (weight[:, None] ** 2 * design))
    logs = covariance @ design.T @ (weight**2 * np.log(scale[order]))
    # If the scales are not spaced equally the line is off by more than the estimates' own errors.
    residual = (np.log(scale[order]) - design @ logs) * weight
    off = max(1.0, float(residual @ residual) / max(scale.size - 2, 1))
    ends = np.exp(logs), np.sqrt(off * np.diag(covariance))
    return {
        name: Estimate(float(ends[0][i]), float(ends[0][i] * ends[1][i]))
        for i, name in enumerate(("fastest", "slowest"))
    }


def _sizes(each: list[Floats]) -> Floats:
    return np.asarray([len(row) for row in each], np.float64)


def _squares(rows: list[Floats]) -> Floats:
    return np.asarray([float(((row - row.mean()) ** 2).sum()) for row in rows])


def _gaussian(size: Floats, squares: Floats) -> Floats:
    """Log density of normal rows, their means integrated out, at the best common variance."""
    variance = squares.sum() / (size - 1).sum()
    common = (size - 1) * math.log(2 * math.pi * variance)
    return np.asarray(-0.5 * (common + np.log(size) + squares / variance))


def _from_logs(each: list[Floats]) -> Floats:
    """What a density of logarithms lacks to one of seconds, all but one measurement counted."""
    return np.asarray([-(len(row) - 1) * np.log(row).mean() for row in each])


def _lognormal(each: list[Floats]) -> Law:
    logs, size = [np.log(row) for row in each], _sizes(each)
    squares, free = _squares(logs), float((size - 1).sum())
    scale, sigma = np.exp([row.mean() for row in logs]), math.sqrt(squares.sum() / free)
    return Law(
        "lognormal",
        _gaussian(size, squares) + _from_logs(each),
        {
            **_ends(scale, sigma / np.sqrt(size)),
            "sigma": Estimate(sigma, sigma / math.sqrt(2 * free)),
        },
        scale,
    )


def _log_upper_gamma(n: Floats, z: Floats) -> Floats:
    """Logarithm of e^z times the upper incomplete gamma function, which itself may underflow."""
    with np.errstate(divide="ignore"):
        upper = special.gammaincc(n, z)
        near = np.log(upper) + special.gammaln(n) + z
    # Where it underflows z is far above n, and e^z Gamma(n, z) / z^n a smooth Laplace integral.
    beyond = np.maximum(z - n + 1, 1.0)[:, None]
    t = _NODES / beyond
    smooth = np.exp((n[:, None] - 1) * (np.log1p(t) - t)) @ _WEIGHTS
    far = n * np.log(z) - np.log(beyond[:, 0]) + np.log(smooth)
    return np.where(upper > 1e-250, near, far)


def _shifted_exponential(each: list[Floats]) -> Law:
    size = _sizes(each)
    least, mean = (np.asarray([f(row) for row in each]) for f in (np.min, np.mean))
    total, many = size.sum(), np.maximum(size, 2)
    # The least of n is above the shift by the n-th part of the mean excess: taken off.
    shift = np.maximum((many * least - mean) / (many - 1), least * 0.5)
    above = float(size @ (mean / shift - 1)) / total
    logs = np.asarray([np.log(row).mean() for row in each])

    def log_density(log_straggling: float) -> Floats:
        rate = size * math.exp(-log_straggling)
        at_least = rate * mean / least
        found = _log_upper_gamma(size, at_least) + rate - at_least
        return np.asarray(found - size * np.log(size * mean) + logs)

    best = optimize.minimize_scalar(
        lambda x: -log_density(x).sum(),
        bounds=(math.log(above) - 4, math.log(above) + 4),
        method="bounded",
    )
    return Law(
        "shifted_exponential",
        log_density(best.x),
        {
            **_ends(shift, above / size),
            "straggling": Estimate(above, above / math.sqrt(max(total - len(each), 1))),
        },
        shift,
    )


def _pareto(each: list[Floats]) -> Law:
    size, least = _sizes(each), np.asarray([row.min() for row in each])
    excess = np.asarray([np.log(row / low).sum() for row, low in zip(each, least, strict=True)])
    free, every = max(size.sum() - len(each) - 1, 1.0), float(excess.sum())
    shape, best = free / every, float((size - 1).sum()) / every
    scale = least * np.exp(-1 / (size * shape))
    return Law(
        "pareto",
        (size - 1) * math.log(best) - np.log(size) - best * excess + _from_logs(each),
        {**_ends(scale, 1 / (size * shape)), "shape": Estimate(shape, shape / math.sqrt(free))},
        scale,
    )


def _normal(each: list[Floats]) -> Law:
    size, mean, squares = _sizes(each), np.asarray([row.mean() for row in each]), _squares(each)
    free = float((size - 1).sum())
    std = math.sqrt(squares.sum() / free)
    spread = {"std": Estimate(std, std / math.sqrt(2 * free))}
    return Law("normal", _gaussian(size, squares), spread, mean)
