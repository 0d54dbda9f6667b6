"""Colours of configs: distinct for colour-blind readers, with contrast on both pages."""

import itertools

import numpy as np
import pytest

from pause_jax.analysis import curves as looks
from pause_jax.analysis.curves import KNOWN, style_at, styles

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SEEN = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                   [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                     [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                   [0.004733, 0.691367, 0.303900]],
}  # fmt: skip
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour):
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(values):
    xyz = TO_XYZ @ np.clip(values, 0, 1) / TO_XYZ.sum(axis=1)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def least_distance(chosen, seen):
    points = [lab(np.asarray(seen) @ linear(colour)) for colour in chosen]
    return min(np.linalg.norm(a - b) for a, b in itertools.combinations(points, 2))


def contrast(colour, page):
    low, high = sorted(float(TO_XYZ[1] @ linear(each)) for each in (colour, page))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("chosen", [looks.LIGHT, looks.DARK])
def test_colours_differ_for_colour_blind_readers(chosen):
    assert min(least_distance(chosen, seen) for seen in SEEN.values()) > 15


def test_matplotlib_cycle_fails_the_colour_blindness_test():
    tab10 = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")
    assert min(least_distance(tab10, seen) for seen in SEEN.values()) < 10


@pytest.mark.parametrize(
    ("chosen", "page"),
    [(looks.LIGHT, looks.LIGHT_PAGE), (looks.DARK, looks.DARK_PAGE)],
)
def test_colours_contrast_with_their_page(chosen, page):
    assert min(contrast(colour, page) for colour in chosen) >= 2.95


def test_first_64_styles_are_distinct():
    each = [style_at(place) for place in range(64)]
    assert len({(style.colour, style.dash) for style in each}) == 64
    assert len({(style.marker, style.dash) for style in each}) == 64


def test_first_eight_styles_differ_without_colour():
    for start in range(0, 64, 8):
        each = [style_at(start + place) for place in range(8)]
        assert len({style.marker for style in each}) == 8
        assert len({style.shape for style in each}) == 8


def test_style_of_a_policy_does_not_depend_on_other_configs():
    alone = {name: styles([name])[name] for name in KNOWN}
    assert len(set(alone.values())) == len(KNOWN)
    found = styles(["mine", "random", "yours", "pause"])
    assert (found["random"], found["pause"]) == (alone["random"], alone["pause"])
    # The free places in their order: 0 and 2 are those of PAUSE and random choice.
    assert (found["mine"], found["yours"]) == (style_at(1), style_at(3))
    many = styles([*KNOWN, *map(str, range(40))])
    assert len(set(many.values())) == 48
