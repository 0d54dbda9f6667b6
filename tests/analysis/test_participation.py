"""Participation of clients, against hand-made counts."""

import numpy as np
import pytest

from pause_jax.analysis.participation import Participation, by_client, labels, participation
from pause_jax.analysis.report import pictures, tables
from pause_jax.world.latency import Traces
from tests.support.results import made, small_config

pytestmark = pytest.mark.slow


def show(result):
    """The picture and the table of a report."""
    found = participation(result)
    return pictures.participation(result, found), tables.participation(result, found)


def test_clients_are_sorted_by_speed():
    result = made({"a": None})
    result["counts"][:] = np.array([12, 12, 6, 6, 3, 3])
    result["counts"][0, 0] = np.array([12, 12, 0, 0, 3, 3])
    result["num_played"][:] = 12
    picture, table = show(result)
    rows = picture.spec["data"]["values"]
    np.testing.assert_allclose([row["y"] for row in rows], [100, 100, 100 / 3, 100 / 3, 25, 25],
                               rtol=1e-4)  # fmt: skip
    assert [row["x"] for row in rows] == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(rows[2]["error"], 50 / 3, rtol=1e-4)
    assert "fastest to slowest" in picture.description
    cells = table.rows[0][1:4]
    assert [cell.split(" %")[0] for cell in cells] == ["100.0", "33.3", "25.0"]
    seconds = [float(cell.split("(")[1].split()[0]) for cell in cells]
    assert seconds == sorted(seconds)


def test_many_clients_are_averaged_with_neighbours():
    share = np.linspace(1, 0, 240)[None].repeat(2, axis=0)
    found = {"a": Participation(share, None)}
    (curve,) = by_client(found).values()
    assert curve.x.size == 60
    np.testing.assert_allclose(curve.x[:2], [2.5, 6.5])
    np.testing.assert_allclose(curve.mean[0], 100 * share[0, :4].mean())
    assert labels(found)[0] == "clients by number (neighbours averaged)"


def test_clients_are_sorted_by_number_without_the_latency_file(tmp_path):
    (tmp_path / "mine.csv").write_text("client,seconds\n" + "0,1\n" * 6)
    result = made({"a": small_config(latency=Traces(path=str(tmp_path / "mine.csv")))})
    (tmp_path / "mine.csv").unlink()
    picture, table = show(result)
    assert "because their expected latencies are unknown" in picture.caption
    assert table.headings == ("config", "fairness")
