r"""`appa config`, as a user runs it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from appa.cli.config import app
from appa.config import load_config


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("preset", ["planet", "era5-1.5deg", "era5-0.25deg"])
def test_show_prints_what_loads_back(preset, tmp_path):
    result = run("show", preset)
    assert result.exit_code == 0
    file = tmp_path / "shown.yaml"
    file.write_text(result.stdout, encoding="utf-8")
    assert load_config(file) == load_config(preset)
    assert run("check", str(file)).exit_code == 0


def test_show_says_what_follows():
    lines = run("show", "era5-0.25deg").stdout.splitlines()
    facts = dict(line[2:].split(":", 1) for line in lines if line.startswith("# ") and ":" in line)
    facts = {name: value.strip() for name, value in facts.items()}
    assert facts["channels"].startswith("71 ")
    # 71 × 721 × 1440 × 4 bytes = 294,860,160; 8760 of them
    assert facts["size"] == "294.86 MB a state in float32, 2.58 TB a year of hours, uncompressed"
    assert facts["latent"] == "128 × 23 × 47"
    assert facts["compression"] == "532.7×"
    assert facts["tokens"].startswith("12,972 ")
    assert facts["parameters"] == "314.4 M autoencoder, 223.2 M denoiser"


def test_check_passes_and_fails(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: planet\nwindow: 12\nautoencoder: {latent_channels: 64}\n")
    result = run("check", str(file))
    assert result.exit_code == 0
    assert result.stdout == f"ok: {file}: latent 64 × 6 × 12, 71.0× compression\n"

    file.write_text("extends: planet\nautoencoder:\n  hiden_channels: [64]\n  latent_noise: -1\n")
    result = run("check", str(file))
    assert result.exit_code == 1
    assert result.stdout == ""
    told = "autoencoder.hiden_channels: unknown key; did you mean 'hidden_channels'?"
    assert told in result.stderr
    assert "autoencoder.latent_noise: found -1" in result.stderr

    assert run("check", str(tmp_path / "absent.yaml")).exit_code == 1


def test_command_line():
    def appa(*arguments):
        command = [sys.executable, "-c", "from appa.cli import main; main()", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    result = appa("config", "show", "planete")
    assert result.returncode == 2
    assert result.stderr.startswith("error: no file planete, and no preset of that name; did you")
    assert "Traceback" not in result.stderr
    for command in ("show", "check"):
        result = appa("config", command, "--help")
        assert result.returncode == 0
        assert f"Example: appa config {command}" in result.stdout
