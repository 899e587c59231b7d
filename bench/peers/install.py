"""An environment of its own for DuckLake: its extension is a wheel that fits one version of duckdb only."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HOME = Path(sys.prefix) / "peers" / "ducklake"
PYTHON = HOME / "bin" / "python"


def install_ducklake() -> Path:
    """Make the environment beside the one that runs this; gives its folder."""
    venv.create(HOME, with_pip=True)
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # The wheel of the extension asks for the very duckdb that it was built for.
    subprocess.run([*pip, "duckdb-extension-ducklake", "numpy", "pyarrow"], check=True)
    return HOME
