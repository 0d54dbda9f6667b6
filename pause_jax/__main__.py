"""Entry point of ``python -m pause_jax``, an alias for ``pause-jax``."""

from pause_jax.cli import main

if __name__ == "__main__":
    main()
