"""Benchmarks: ``python -m benchmarks SUBCOMMAND``, or ``--help`` for a list."""

import typer

from benchmarks import (
    accelerator,
    data_parts,
    kernels,
    peers,
    scaling,
    searches,
    server_steps,
    store_cost,
    study,
)

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command("peers")(peers.main)
app.command("accelerator")(accelerator.main)
app.command("data-parts")(data_parts.main)
app.command("searches")(searches.main)
app.command("server-steps")(server_steps.main)
app.command("store-cost")(store_cost.main)
app.command("kernels")(kernels.main)
app.command("study")(study.main)
app.command("sweep-on-devices", hidden=True)(scaling.sweep_on_devices)


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
