"""Sphinx configuration of the documentation site, which ``make docs`` builds in build/site.

Sphinx reads pages in place (docs/, notebooks/, experiments/), so relative links work on the site
and in a checkout. ``tools/site_pages.py`` first generates the API reference, the galleries and the
command-line help from the code. The build works offline.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import MockFinder  # type: ignore[attr-defined]

import pause_jax
from tools import cross_references, site_pages

# Flower needs a separate environment, so mock it. Its names then appear as plain text.
sys.meta_path.insert(0, MockFinder(["flwr"]))

project = "pause_jax"
author = "The pause_jax authors"
copyright = author
release = version = pause_jax.__version__

root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "docs/*/*.md",
    "docs/*/*.rst",
    "notebooks/*.ipynb",
    "experiments/README.md",
    "experiments/*/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]
exclude_patterns = [".*", "**/.*", "build", "dist", "results", "shared", "**/runs"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
nitpicky = True

# Show the notebooks' stored outputs.
nb_execution_mode = "off"
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "dollarmath"]

# Docstrings follow Google style, with shapes and units in prose.
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 80

html_theme = "furo"
html_title = f"pause_jax {release}"
html_extra_path = ["site_root"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}


def setup(app: Sphinx) -> None:
    """Generate pages from the code, and register the site's resolvers and checks."""
    site_pages.write()
    cross_references.setup(app)
    app.connect("env-check-consistency", site_pages.check_promises)
    app.connect("build-finished", site_pages.check_offline)
