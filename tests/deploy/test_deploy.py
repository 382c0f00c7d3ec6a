"""The files in deploy/ are what their tools expect, and call this package as it is."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import typer.main
import yaml

import tuner
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
    if any(kind["min_workers"] < kind["max_workers"] for kind in kinds.values()):
        (types,) = re.findall(r"TUNER_NODE_TYPES=(\S+)", "\n".join(config["head_start_ray_commands"]))
        check_node_types(types, config)


def check_node_types(setting: str, config: Any) -> None:
    """Check that the service knows which nodes the autoscaler may add; otherwise it refuses the trials that need them."""
    kinds = [kind for name, kind in config["available_node_types"].items() if name != config["head_node_type"]]
    assert all(kind["resources"].get("CPU") for kind in kinds), "for other trials, Ray would not start such a node"
    assert [(kind.resources, kind.most) for kind in Settings.from_env({"TUNER_NODE_TYPES": setting}).node_types] == [
        ({name: kind["resources"][name] for name in ("CPU", "GPU") if name in kind["resources"]}, kind["max_workers"])
        for kind in kinds
    ]


def check_kuberay_node_types(service: Any, cluster: Any) -> None:
    """Compare what the service is told with what Ray's autoscaler for KubeRay takes from the cluster."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    cluster["metadata"].setdefault("namespace", "ml")  # the operator fills it in
    env = {one["name"]: one.get("value") for one in service["spec"]["template"]["spec"]["containers"][0]["env"]}
    check_node_types(env["TUNER_NODE_TYPES"], _derive_autoscaling_config_from_ray_cr(cluster))


def test_the_image_is_well_made() -> None:
    checked(BIN / "hadolint", DEPLOY / "Dockerfile")


def test_compose_can_read_its_file() -> None:
    checked(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


def test_the_settings_and_the_password_of_compose_stay_out_of_git_and_of_the_image() -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["tuner"]
    assert service["env_file"] == [{"path": "tuner.env", "required": False}]
    for name in (".gitignore", ".dockerignore"):
        assert "deploy/*.env" in (ROOT / name).read_text().splitlines()


def test_kubernetes_can_read_the_service() -> None:
    checked(BIN / "kubernetes-validate", "--strict", DEPLOY / "kubernetes" / "tuner.yaml")


def test_kuberay_can_read_the_cluster() -> None:
    cluster = yaml.safe_load((DEPLOY / "kubernetes" / "raycluster.yaml").read_text())
    kuberay_can_read(cluster)
    check_kuberay_node_types(next(yaml.safe_load_all((DEPLOY / "kubernetes" / "tuner.yaml").read_text())), cluster)


def kuberay_can_read(cluster: Any) -> None:
    """Check against the schema of KubeRay 1.7's RayCluster (Apache-2.0), stored without descriptions."""
    schema = json.loads(gzip.decompress((ROOT / "tests/fixtures/kuberay_raycluster_v1.json.gz").read_bytes()))
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


def pods(documents: Iterable[Any]) -> list[Any]:
    """Return the specs of all pods in these documents."""
    found = []
    for each in documents:
        spec = each["spec"]
        if each["kind"] == "RayCluster":
            found += [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
        elif each["kind"] == "Deployment":
            found.append(spec["template"]["spec"])
        elif each["kind"] == "Pod":
            found.append(spec)
    return found


def check_pods(documents: list[Any]) -> None:
    """Kubernetes sets TUNER_PORT to tcp://... in the pods of a namespace with a service named tuner, unless told not to."""
    assert len(pods(documents)) >= 4
    assert all(pod.get("enableServiceLinks") is False for pod in pods(documents))
    # If the head of Ray is lost, no operator starts Ray again in the pod of the service.
    probes = [
        one["livenessProbe"]["exec"]["command"]
        for pod in pods(documents)
        for one in pod["containers"]
        if "livenessProbe" in one
    ]
    assert len(probes) == 1
    assert "raylet" in probes[0][-1]
    assert "--no-proxy" in probes[0][-1], (
        "a pod with http_proxy would ask the proxy for its own address, and be restarted"
    )
    # All pods have the same image, which they pull with the same secrets, and the same account.
    shared = [(pod.get("imagePullSecrets"), pod.get("serviceAccountName")) for pod in pods(documents)]
    assert shared == shared[:1] * len(shared)


def token_pod(text: str) -> Any:
    """Return the pod that the `kubectl run token` in a text starts; it replaces the pod's spec by its own."""
    (overrides,) = re.findall(r"kubectl run token [^']*--overrides='([^']*)'", text)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "token"}, **json.loads(overrides)}


def test_the_pods_get_no_variables_from_a_service_of_that_name() -> None:
    files = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    documents = [each for file in files for each in yaml.safe_load_all(file.read_text())]
    check_pods([*documents, token_pod((ROOT / "docs" / "deploy.md").read_text())])


def walk_values() -> Any:
    """Return the values of the chart that docs/deploy.md shows."""
    return yaml.safe_load(re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), re.S)[0])


EVERYTHING = {
    "storage": "s3://bucket/tuner",
    "env": {"TUNER_LOG_BYTES": 20_000_000, "TUNER_USAGE_EVERY_S": 0.5, "TUNER_WEBHOOK_PRIVATE": 1, "HF_HUB_OFFLINE": True,
            "TUNER_LOG_FORMAT": "json"},
    "image": {"pullSecrets": ["registry"]},
    "serviceAccount": {"name": "trials"},
    "ingress": {"enabled": True, "host": "tuner.example.com", "className": "nginx", "tlsSecret": "tls",
                "annotations": {"cert-manager.io/issuer": "us"}},
    "ray": {"idleTimeoutSeconds": 2_000_000,
            "workers": [{"name": "cpu", "min": 1, "max": 2, "resources": {"requests": {"cpu": "4"}}, "sharedMemory": "1Gi",
                         "nodeSelector": {"pool": "cpu"}, "tolerations": [{"key": "spot", "operator": "Exists"}]},
                        {"name": "amd", "min": 0, "max": 3, "sharedMemory": "1Gi",
                         "resources": {"requests": {"cpu": 2}, "limits": {"cpu": "3500m", "amd.com/gpu": 2}}}]},
}  # fmt: skip


@pytest.mark.parametrize(
    "values", [{"storage": "s3://bucket/tuner"}, walk_values(), EVERYTHING], ids=["default", "docs", "all"]
)
def test_helm_renders_what_kubernetes_and_kuberay_can_read(values: Any, tmp_path: Path) -> None:
    """Render with Helm's own engine."""
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this machine")
    found = helm.lint(DEPLOY / "helm", values, strict=True)
    assert found["errors"] == []
    assert [each for each in found["messages"] if each["severity"] > 1] == []
    with helm.Chart.load(DEPLOY / "helm") as chart:
        files = chart.render(values, name="search", namespace="ml")
    token = token_pod(files.pop("tuner/templates/NOTES.txt"))
    assert token["spec"]["containers"][0]["command"][:3] == ["tuner", "token", "create"]
    (tmp_path / "token.yaml").write_text(yaml.safe_dump(token))
    documents = [each for text in files.values() for each in yaml.safe_load_all(text) if each is not None]
    kinds = sorted(each["kind"] for each in documents)
    assert kinds == ["Deployment", *(["Ingress"] if "ingress" in values else []), "RayCluster", "Service"]
    check_pods([*documents, token])
    for each in documents:
        if each["kind"] == "RayCluster":
            cluster = each
            kuberay_can_read(each)
            head = f"{each['metadata']['name']}-head-svc:6379"
        else:
            (tmp_path / f"{each['kind']}.yaml").write_text(yaml.safe_dump(each))
    for file in sorted(tmp_path.iterdir()):
        checked(BIN / "kubernetes-validate", "--strict", file)
    (service,) = (each for each in documents if each["kind"] == "Deployment")
    assert head in service["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    check_kuberay_node_types(service, cluster)
    secrets = [
        [source["secretRef"]["name"] for source in pod["containers"][0].get("envFrom", [])] for pod in pods(documents)
    ]
    assert [("tuner" in names) for names in secrets].count(True) == 1, "only the service knows the database"
    for pod in pods(documents):
        env = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
        assert {name: env[name] for name in values.get("env", {})} == {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in values.get("env", {}).items()
        }
        Settings.from_env(env)


def test_the_chart_refuses_what_it_does_not_know() -> None:
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this machine")
    with helm.Chart.load(DEPLOY / "helm") as chart:
        with pytest.raises(helm.HelmError, match="set storage"):
            chart.render({}, name="search")
        with pytest.raises(helm.HelmError, match="storge"):
            chart.render({"storge": "s3://bucket"}, name="search")


def test_the_chart_has_the_versions_of_the_package() -> None:
    chart = yaml.safe_load((DEPLOY / "helm" / "Chart.yaml").read_text())
    assert chart["appVersion"] == tuner.__version__


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
    named = [path for path in FILES if path.parent != DEPLOY / "helm" / "templates"]
    missing = [str(path.relative_to(ROOT)) for path in named if str(path.relative_to(ROOT)) not in text]
    assert missing == []
