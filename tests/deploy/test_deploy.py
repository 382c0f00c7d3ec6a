"""The files in deploy/ are what their tools expect, and call this package as it is."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import typer.main
import yaml

from tuner.cli.commands import app
from tuner.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
CLUSTERS = sorted((DEPLOY / "ray").glob("*.yaml"))


def checked(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
def test_ray_can_read_its_cluster_files(path: Path) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(yaml.safe_load(path.read_text()))
    validate_config(config)
    kinds = config["available_node_types"]
    assert config["head_node_type"] in kinds


def test_the_image_is_well_made() -> None:
    checked(BIN / "hadolint", DEPLOY / "Dockerfile")


def test_compose_can_read_its_file() -> None:
    checked(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


def test_kubernetes_can_read_the_service() -> None:
    checked(BIN / "kubernetes-validate", "--strict", DEPLOY / "kubernetes" / "tuner.yaml")


def test_kuberay_can_read_the_cluster() -> None:
    """Check against the schema of KubeRay 1.7's RayCluster (Apache-2.0), stored without descriptions."""
    schema = json.loads(gzip.decompress((ROOT / "tests/fixtures/kuberay_raycluster_v1.json.gz").read_bytes()))
    cluster = yaml.safe_load((DEPLOY / "kubernetes" / "raycluster.yaml").read_text())
    jsonschema.validate(cluster, schema)
    assert cluster["spec"]["rayVersion"] == ray.__version__, "the version that is tested"
    unknown = _unknown(cluster["spec"], schema["properties"]["spec"])
    assert unknown == []


def _unknown(value: Any, schema: dict[str, Any], at: str = "") -> list[str]:
    """Return the fields that the schema does not name. Kubernetes would drop them silently."""
    if isinstance(value, list):
        return [name for item in value for name in _unknown(item, schema.get("items", {}), at)]
    known = schema.get("properties")
    if not isinstance(value, dict) or known is None:
        return []
    found = [f"{at}/{name}" for name in value if name not in known]
    return found + [each for n in value if n in known for each in _unknown(value[n], known[n], f"{at}/{n}")]


def test_the_slurm_script_is_sound() -> None:
    checked(BIN / "shellcheck", DEPLOY / "slurm" / "tuner.sbatch")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze on this machine")
def test_systemd_can_read_its_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd" / "tuner.service").read_text().replace("/opt/tuner/bin/tuner", "/bin/true")
    (tmp_path / "tuner.service").write_text(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "tuner.service"], capture_output=True, text=True, check=False
    )
    about = [line for line in done.stderr.splitlines() if "tuner.service" in line]
    assert about == []


def test_the_commands_and_settings_exist() -> None:
    group = typer.main.get_command(app)
    variables = {field.metadata["variable"] for field in Settings.__dataclass_fields__.values()}
    calls = 0
    for path in [*FILES, ROOT / "docs" / "deploy.md"]:
        text = re.sub(r"\[([^\]]*)\]", lambda m: m[1].replace('"', "").replace(",", ""), path.read_text())
        for verb, rest in re.findall(r"\btuner[ /]?(serve|token create|token|migrate|list)\b([^\n`&|>#]*)", text):
            command: Any = group
            for part in verb.split():
                command = command.commands[part]  # KeyError: there is no such command
            options = {name for parameter in command.params for name in parameter.opts}
            for option in re.findall(r"--[a-z-]+", rest):
                assert option in options, (path, verb, option)
            calls += 1
        for variable in re.findall(r"\bTUNER_[A-Z_]+\b", text):
            assert variable in variables, (path, variable)
    assert calls > 10


def test_every_file_has_its_place_in_the_docs() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text()
    missing = [str(path.relative_to(ROOT)) for path in FILES if str(path.relative_to(ROOT)) not in text]
    assert missing == []
