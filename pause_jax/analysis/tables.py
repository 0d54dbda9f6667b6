"""Tables for papers: means and paired differences of the configs of a sweep."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd
import xarray as xr

from pause_jax.analysis import metrics
from pause_jax.analysis.comparison import Difference, compare, differences
from pause_jax.base.struct import ConfigError

__all__ = ["comparison_table", "paper_table"]

# Cell and its best form, by markup.
_MARKUPS = {
    "plain": ("{}", "{}"),
    "markdown": ("{}", "**{}**"),
    "latex": ("${}$", r"$\mathbf{{{}}}$"),
}
# Significance level of all differences of a column together.
LEVEL = 0.05


def paper_table(
    columns: Mapping[str, xr.DataArray],
    against: str,
    *,
    correction: str = "bonferroni",
    lower_is_better: Collection[str] = (),
    digits: int = 1,
    markup: str = "plain",
) -> pd.DataFrame:
    """Build a table with the mean ± standard error of each config, and its paired difference.

    Configs with equal keys face the same worlds, so differences are taken seed by seed. Intervals
    of a column hold jointly with 95 % confidence (Bonferroni). ``*`` marks differences that are
    significant at 5 % after the correction. Write the table with ``.to_csv``, ``.to_markdown`` or
    ``.to_latex(escape=False)``.

    Args:
      columns: values [config, seed] by column title; NaN for a missing value.
      against: config that the others are compared with, chosen before seeing the results.
      correction: ``bonferroni`` or ``holm``, over the configs of a column.
      lower_is_better: titles of columns in which the lowest mean is the best.
      digits: decimal places.
      markup: ``plain``, ``markdown`` or ``latex``. The last two print the best mean in bold.

    Raises:
      ConfigError: if ``against`` is not a config, or a choice is unknown.

    Examples:
      >>> values = xr.DataArray(
      ...     [[80.0, 81.0, 82.0], [70.0, 71.5, 72.0]],
      ...     {"config": ["pause", "random"]}, ("config", "seed"))
      >>> print(paper_table({"%": values}, "random").to_csv(), end="")
      config,%,"%, against random"
      pause,81.0 ± 0.6,"+9.8 [+9.1, +10.6] *"
      random,71.2 ± 0.6,-
    """
    for name, value, choices in (
        ("correction", correction, ("bonferroni", "holm")),
        ("markup", markup, tuple(_MARKUPS)),
    ):
        if value not in choices:
            raise ConfigError(f"{name} = {value!r}: must be one of {', '.join(choices)}.")
    usual, best = _MARKUPS[markup]
    cells: dict[str, list[str]] = {}
    names = [str(name) for name in next(iter(columns.values())).config.values]
    for title, values in columns.items():
        mean, error = (x.sel(config=names).values for x in metrics.mean_and_error(values))
        # A mean without some of the seeds is not comparable.
        known = values.sel(config=names).notnull().all("seed").values
        sign = -1 if title in lower_is_better else 1
        top = max(sign * mean[known], default=np.nan)
        found = differences(values, against)
        significant = _significant(found, correction)
        cells[title] = [
            (best if sign * m == top else usual).format(f"{m:.{digits}f} ± {e:.{digits}f}")
            if whole
            else "-"
            for m, e, whole in zip(mean, error, known, strict=True)
        ]
        cells[f"{title}, against {against}"] = [
            usual.format(_difference(found[name], digits)) + " *" * (name in significant)
            if name != against and whole and known[names.index(against)]
            else "-"
            for name, whole in zip(names, known, strict=True)
        ]
    table = pd.DataFrame(cells, index=pd.Index(names, name="config"))
    if markup != "latex":
        return table
    table = table.map(lambda cell: cell.replace("±", r"\pm"))
    return table.rename(index=_escaped, columns=_escaped)


def _escaped(text: str) -> str:
    return re.sub(r"([%_&#$])", r"\\\1", text)


def comparison_table(
    result: xr.Dataset, target: float, against: str, *, markup: str = "plain"
) -> pd.DataFrame:
    """Build :func:`paper_table` with the main metrics of a sweep.

    These are the time to accuracy ``target`` and the final accuracy, or the final loss, the regret
    and the simulated seconds for runs without accuracy.
    """
    aims = compare(result, target, against).aims
    return paper_table(
        {aim.title: aim.values for aim in aims},
        against,
        lower_is_better=[aim.title for aim in aims if aim.sign < 0],
        digits=max(aim.digits for aim in aims),
        markup=markup,
    )


def _difference(each: Difference, digits: int) -> str:
    text = f"{each.mean:+.{digits}f}"
    if each.seeds == 1:
        return text
    return f"{text} [{each.low:+.{digits}f}, {each.high:+.{digits}f}]"


def _significant(found: Mapping[str, Difference], correction: str) -> set[str]:
    """Return the names with a significant difference; a config without all pairs never has one."""
    whole = {name: each.p for name, each in found.items() if each.pairs == each.seeds > 1}
    significant = set()
    for place, (name, p) in enumerate(sorted(whole.items(), key=lambda item: item[1])):
        if p * (len(found) - place * (correction == "holm")) > LEVEL:
            break
        significant.add(name)
    return significant
