"""Specs from JSON: what is accepted, and the message for each mistake."""

from __future__ import annotations

import copy
import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.conftest import SPEC
from tuner import schedulers
from tuner import search as searchers
from tuner.domain.experiment import CheckpointPolicy, Limits, Objective, Scaling, Spec
from tuner.driver.assemble import Parts, set_up
from tuner.errors import SpecError
from tuner.experiment.specs.spec import parse_spec
from tuner.options import build
from tuner.space import Space


def errors(**changes: Any) -> dict[str, str]:
    """Return pointer -> message for the example with these changes; `...` removes a field."""
    data = {name: value for name, value in {**copy.deepcopy(SPEC), **changes}.items() if value is not ...}
    with pytest.raises(SpecError) as caught:
        parse_spec(data)
    found = dict(caught.value.errors)
    assert len(found) == len(caught.value.errors)
    return found


def test_each_part_of_a_spec_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def counting(kind: type[Any], data: Any, pointer: str) -> Any:
        built.append(pointer)
        return build(kind, data, pointer)

    for module in (schedulers, searchers):
        monkeypatch.setattr(module, "build", counting)
    assert parse_spec(SPEC).resolved["scheduler"]["max_t"] == 27
    assert sorted(built) == ["/scheduler", "/search"]


def test_the_documents_example_is_taken_whole() -> None:
    spec = parse_spec(SPEC)
    assert spec == Spec(
        name="digits",
        space=SPEC["space"],
        objectives=(Objective("accuracy", "max"),),
        entrypoint="tests.api.trainables:train",
        num_samples=16,
        seed=1,
        search={"type": "random"},
        scheduler=SPEC["scheduler"],
        scaling=Scaling(num_workers=2, resources_per_worker={"CPU": 0.5}),
        limits=Limits(max_concurrent_trials=2, time_budget_s=600.0),
    )
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_the_least_that_is_needed() -> None:
    spec = parse_spec(
        {"entrypoint": "a.b:c.train", "space": {}, "metric": "x", "mode": "min", "scheduler": {"type": "fifo"}}
    )
    assert (spec.name, spec.seed, spec.search, spec.num_samples) == ("train", 0, {"type": "auto"}, None)
    assert (spec.scaling, spec.limits, spec.checkpoint) == (Scaling(), Limits(), CheckpointPolicy())


def test_a_function_by_value_needs_no_entrypoint() -> None:
    data = {name: value for name, value in SPEC.items() if name not in ("entrypoint", "name")}
    assert (parse_spec(data, code="abc").code, parse_spec(data, code="abc").name) == ("abc", "experiment")


def test_objectives() -> None:
    fifo = {"scheduler": {"type": "fifo"}, "metric": ["a", "b"]}
    assert parse_spec({**SPEC, **fifo, "mode": ["max", "min"]}).objectives == (
        Objective("a", "max"),
        Objective("b", "min"),
    )
    assert [o.mode for o in parse_spec({**SPEC, **fifo, "mode": "min"}).objectives] == ["min", "min"]
    assert errors(**fifo, mode=["max"]) == {"/mode": "expected one mode for each of the 2 metrics, got 1"}
    assert errors(metric=["a", "a"]) == {"/metric": "the same metric twice"}
    assert errors(metric=[]) == {"/metric": "must not be empty"}
    assert errors(metric=3, mode="up") == {
        "/metric": "expected the name of a metric, or a list of names, got 3",
        "/mode": 'expected "min" or "max", or a list with one of them for each metric, got "up"',
    }
    assert errors(metric=..., mode=...) == {"/metric": "is required", "/mode": "is required"}


def test_a_field_that_takes_several_types_has_one_error() -> None:
    assert errors(warm_start="digits", limits={"repeats": "two"}, checkpoint={"interval_s": "1 min"}) == {
        "/warm_start": 'expected "auto", or a list of ids or names of experiments, got "digits"',
        "/limits/repeats": 'expected a number of repeats, 0 or more, or "auto", got "two"',
        "/checkpoint/interval_s": 'expected a number of seconds above 0, "auto" or null, got "1 min"',
    }


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nme", "name"),
        ("Num_Samples", "num_samples"),
        ("search_alg", "search"),
        ("param_space", "space"),
        ("num_workers", "scaling.num_workers"),
        ("time_budget_s", "limits.time_budget_s"),
        ("storage_path", "checkpoint.storage"),
        ("direction", "mode"),
        ("n_trials", "num_samples"),
        ("n_jobs", "limits.max_concurrent_trials"),
        ("timeout", "limits.time_budget_s"),
        ("pruner", "scheduler"),
        ("sampler", "search"),
        ("max_epochs", "max_t"),
        ("trainable", "entrypoint"),
        ("resources_per_trial", "scaling.resources_per_worker"),
    ],
)
def test_an_unknown_field_says_what_is_near(name: str, meant: str) -> None:
    assert errors(**{name: 1}) == {f"/{name}": f"unknown field; did you mean {meant}?"}


ELASTIC = {"num_workers": {"min": 1, "max": 8}}


def test_a_range_of_workers_makes_trials_elastic() -> None:
    scaling = parse_spec({**SPEC, "scaling": ELASTIC}).scaling
    assert (scaling.num_workers, scaling.max_workers, scaling.elastic) == (1, 8, True)
    assert scaling == parse_spec({**SPEC, "scaling": {"num_workers": 1, "max_workers": 8}}).scaling
    assert not parse_spec({**SPEC, "scaling": {"num_workers": 2, "max_workers": 2}}).scaling.elastic


@pytest.mark.parametrize(
    ("changes", "pointer", "message"),
    [
        (
            {"scaling": {"num_workers": {"min": 1}}},
            "/scaling/num_workers",
            'expected an integer or {"min": 1, "max": 8}',
        ),
        ({"scaling": {"num_workers": {"min": 0, "max": 2}}}, "/scaling/num_workers", "expected at least 1, got 0"),
        (
            {"scaling": {"num_workers": {"min": 4, "max": 2}}},
            "/scaling/max_workers",
            "expected at least num_workers, 4",
        ),
        ({"scaling": {**ELASTIC, "max_workers": 4}}, "/scaling/max_workers", "num_workers is a range"),
        (
            {"scaling": {**ELASTIC, "placement_strategy": "STRICT_PACK"}},
            "/scaling/placement_strategy",
            "PACK or SPREAD",
        ),
        (
            {"scaling": {**ELASTIC, "resources_per_worker": {"CPU": 0}}},
            "/scaling/resources_per_worker",
            "must need some",
        ),
        ({"scaling": ELASTIC, "executor": "local"}, "/executor", "elastic trials need Ray"),
        ({"scaling": ELASTIC, "executor": "agents"}, "/executor", "elastic trials need Ray"),
        (
            {"scaling": ELASTIC, "time_attr": "time_total_s", "scheduler": "fifo"},
            "/time_attr",
            "seconds do not compare them",
        ),
    ],
)
def test_what_elastic_trials_do_not_work_with_is_refused(changes: Any, pointer: str, message: str) -> None:
    assert message in errors(**changes)[pointer]


def test_unknown_fields_of_sections() -> None:
    assert errors(scaling={"num_worker": 2}) == {"/scaling/num_worker": "unknown field; did you mean num_workers?"}
    assert errors(limits={"seed": 2}) == {"/limits/seed": "unknown field; it belongs to the top level"}
    assert "there are storage, frequency" in errors(checkpoint={"zzz": 2})["/checkpoint/zzz"]
    assert errors(scheduler={"type": "asha", "max_T": 27})["/scheduler/max_T"].endswith("did you mean max_t?")
    assert errors(search={"type": "tpee"})["/search/type"].endswith("did you mean tpe?")
    assert errors(search={"type": "sobol"})["/search/type"].endswith("did you mean qmc?")
    assert (
        errors(scheduler={"type": "asha", "eta": 3})["/scheduler/eta"]
        == "unknown option; did you mean reduction_factor?"
    )
    assert errors(scheduler={"type": "asha", "direction": "min"}) == {
        "/scheduler/direction": "unknown option; it belongs to the experiment, as mode"
    }
    assert errors(search={"type": "auto", "x": 1}) == {"/search/x": 'unknown option; "auto" takes none'}
    beside = 'unknown option; "auto" takes none; max_t belongs beside scheduler, not in it'
    assert errors(scheduler={"type": "auto", "max_t": 9}) == {"/scheduler/max_t": beside}
    assert list(errors(stop={"type": "plat"})) == ["/stop/type"]


@pytest.mark.parametrize(
    ("change", "pointer", "message"),
    [
        ({"num_samples": 0}, "/num_samples", "expected at least 1, got 0"),
        ({"num_samples": 1.5}, "/num_samples", "expected an integer, got 1.5"),
        ({"num_samples": "16"}, "/num_samples", 'expected an integer, got "16"'),
        ({"num_samples": True}, "/num_samples", "expected an integer, got true"),
        ({"seed": 2**63}, "/seed", f"expected at most {2**63 - 1}, got {2**63}"),
        ({"name": ""}, "/name", "must not be empty"),
        ({"name": " \u3000\u200b"}, "/name", "has no character that can be seen: choose another name"),
        ({"name": "n" * 201}, "/name", "is longer than 200 characters"),
        ({"name": "exp_0123456789abcdef0123"}, "/name",
         "has the form of an experiment's id, so it would be taken for one: choose another name"),
        ({"name": "a\0b"}, "/name", "has control characters"),
        ({"name": "\ud800"}, "/name", "has characters that cannot be stored"),
        ({"project": "my team"}, "/project",
         "expected up to 100 ASCII letters, digits, '.', '_' and '-', beginning with a letter or digit, got \"my team\""),
        ({"scaling": None}, "/scaling", "expected an object, got null"),
        ({"space": [1]}, "/space", "expected an object, got [1]"),
        ({"points_to_evaluate": {}}, "/points_to_evaluate", "expected a list, got {}"),
        ({"limits": {"time_budget_s": 0}}, "/limits/time_budget_s", "expected a number above 0, got 0"),
        ({"limits": {"time_budget_s": float("inf")}}, "/limits/time_budget_s", "expected a number, got Infinity"),
        ({"limits": {"repeats": -1}}, "/limits/repeats", 'expected a number of repeats, 0 or more, or "auto", got -1'),
        ({"scaling": {"use_gpu": "yes"}}, "/scaling/use_gpu", 'expected true or false, got "yes"'),
        ({"scope": "best"}, "/scope", "expected 'all' or 'last', got \"best\""),
        ({"scaling": {"resources_per_worker": {"CPU": -1}}}, "/scaling/resources_per_worker/CPU", "expected at least 0, got -1"),
        ({"scaling": {"resources_per_worker": {"GPU": 5e-5}}}, "/scaling/resources_per_worker/GPU",
         "expected 0 or at least 0.0001, Ray's smallest amount, got 5e-05"),
        ({"scaling": {"resources_per_worker": {"cpu": 1}}}, "/scaling/resources_per_worker/cpu",
         "unknown resource; did you mean CPU?"),
        ({"scaling": {"resources_per_worker": {"a/b": "x"}}}, "/scaling/resources_per_worker/a~1b", 'expected a number, got "x"'),
        ({"scaling": {"backend": "nccl"}}, "/scaling/backend", "nccl needs GPUs; set use_gpu"),
        ({"checkpoint": {"storage": "ckpts"}}, "/checkpoint/storage",
         "expected an absolute path, a URI such as s3://bucket/folder, or a path that begins with ~ or $NAME, "
         'got "ckpts", which would be a different directory in each process'),
        ({"checkpoint": {"storage": "s4://bucket/x"}}, "/checkpoint/storage",
         "unknown kind of storage s4://; expected a path or a URI with abfs://, abfss://, file://, gcs://, gs://, hdfs://, "
         "hf://, local://, s3://, viewfs:// or fsspec+NAME://"),
        ({"checkpoint": {"storage": "file://host/tmp/x"}}, "/checkpoint/storage",
         "file:// must be followed by an absolute path on this machine; expected file:///host/tmp/x"),
        ({"runtime_env": {"env_vars": {"A": 1}}}, "/runtime_env/env_vars/A", "expected a string, got 1"),
        ({"entrypoint": "train.py"}, "/entrypoint", 'expected "module:function", got "train.py"'),
        ({"entrypoint": ...}, "/entrypoint", 'is required; expected "module:function"'),
        ({"points_to_evaluate": [{"nope": 1}]}, "/points_to_evaluate/0/nope", "not in the search space"),
    ],
)  # fmt: skip
def test_a_wrong_value_says_what_was_expected(change: dict[str, Any], pointer: str, message: str) -> None:
    assert errors(**change) == {pointer: message}


@pytest.mark.parametrize("form", ["{}", "{}/below", "file://{}/below"])
def test_a_storage_below_a_file_is_refused(tmp_path: Path, form: str) -> None:
    (tmp_path / "results.csv").touch()
    wrong = errors(checkpoint={"storage": form.format(tmp_path / "results.csv")})
    assert wrong == {"/checkpoint/storage": f"expected a directory, but {tmp_path}/results.csv is a file"}
    parse_spec({**copy.deepcopy(SPEC), "checkpoint": {"storage": form.format(tmp_path / "results")}})


@pytest.mark.parametrize("storage", ["/proc/self", "file:///sys/kernel", "/tmp/../proc/1"])
def test_a_storage_of_the_kernel_is_refused(storage: str) -> None:
    message = f'expected a directory for files, got "{storage}", which belongs to the kernel'
    assert errors(checkpoint={"storage": storage}) == {"/checkpoint/storage": message}


@pytest.mark.parametrize(
    ("name", "meant"),
    [("CPUs", "CPU"), ("cpus", "CPU"), ("gpu", "GPU"), ("GPUS", "GPU"), ("num_gpus", "GPU"), ("Memory", "memory")],
)
def test_a_resource_that_is_nearly_one_of_rays_is_refused(name: str, meant: str) -> None:
    wrong = errors(scaling={"resources_per_worker": {name: 1}})
    assert wrong == {f"/scaling/resources_per_worker/{name}": f"unknown resource; did you mean {meant}?"}


def test_a_custom_resource_is_taken() -> None:
    own = {"CPU": 1.0, "memory": 1e9, "tpu": 4.0, "fast_disk": 1.0}
    assert parse_spec({**SPEC, "scaling": {"resources_per_worker": own}}).scaling.resources_per_worker == own


@pytest.mark.parametrize(
    "storage",
    [
        "s3://key:secret@b/x",
        "s3://key:se%2Fcret@b?region=x",
        "abfs://:secret@a.dfs.core.windows.net/c",
        "abfss://c@a.dfs.core.windows.net/x?tenant_id=t&client_id=i&client_secret=secret",
        "abfss://c@a.dfs.core.windows.net/x?sv=2024&sig=secret",
    ],
)
def test_a_storage_with_a_password_is_refused_without_repeating_it(storage: str) -> None:
    (message,) = errors(checkpoint={"storage": storage}).values()
    assert message.startswith(
        "the URI contains a password, which the page, logs and webhooks would show; expected a URI without it"
    )
    assert "cret" not in message
    assert ("AZURE_CLIENT_ID" in message, "AWS_ACCESS_KEY_ID" in message) == (storage[0] == "a", storage[0] == "s")


SHARED = [
    "/data/x", "~/x", "~me/x", "$SCRATCH/x", "${SCRATCH}/x", "s3://b/x", "file:///x", "/data/a:b@c", "s3://b/a:b@c",
    "hdfs://me@namenode:8020/x", "abfs://container@account.dfs.core.windows.net/x", "s3://key@b/x", "gs://b?x=a:b@c",
    "/data/x?sig=y", "abfss://c@a.dfs.core.windows.net/x?tenant_id=t&client_id=i",
]  # fmt: skip


@pytest.mark.parametrize("storage", SHARED)
def test_a_storage_that_every_process_can_tell_is_taken(storage: str) -> None:
    assert parse_spec({**SPEC, "checkpoint": {"storage": storage}}).checkpoint.storage == storage


def test_fractions_above_one_and_gpus_that_are_none() -> None:
    wrong = errors(scaling={"use_gpu": True, "resources_per_worker": {"CPU": 1.5, "GPU": 0}})
    assert "whole numbers" in wrong["/scaling/resources_per_worker/CPU"]
    assert "use_gpu is true" in wrong["/scaling/resources_per_worker/GPU"]


def test_everything_wrong_is_said_at_once_in_the_order_of_the_document() -> None:
    data = {
        "space": {"lr": {"type": "loguniform", "lower": 0, "upper": 1}, "w": {"type": "choice", "categories": []}},
        "zzz": 1,
        "scheduler": {"type": "asha", "grace_period": 0},
        "num_samples": -1,
        "mode": "max",
        "metric": "x",
        "scaling": {"resources_per_worker": {"cpu": 1}},
        "checkpoint": {"storage": "here"},
        "runtime_env": {"env_vars": {"A": 1}},
    }
    with pytest.raises(SpecError) as caught:
        parse_spec(data)
    assert [pointer for pointer, _ in caught.value.errors] == [
        "/space/lr/lower",
        "/space/w/categories",
        "/zzz",
        "/scheduler/grace_period",
        "/num_samples",
        "/scaling/resources_per_worker/cpu",
        "/checkpoint/storage",
        "/runtime_env/env_vars/A",
    ]


def test_parts_that_do_not_fit_each_other() -> None:
    assert list(errors(max_t=5, scheduler={"type": "asha", "grace_period": 10})) == ["/scheduler/max_t"]
    assert list(errors(scheduler={"type": "asha"}, metric=["a", "b"])) == ["/scheduler"]


def test_a_scheduler_and_a_searcher_that_are_both_wrong_are_told_of_together() -> None:
    given: dict[str, Any] = {"max_t": 5, "space": {"c": {"type": "grid_search", "values": [1, 2]}}}
    cmaes = {"type": "cmaes"}  # which runs no grid
    early = {"type": "asha", "grace_period": 10}  # which is beyond max_t
    for scheduler, search, more, pointers in (
        (early, cmaes, {}, {"/scheduler/max_t", "/search"}),
        ({"type": "asha", "eta": 3}, cmaes, {}, {"/scheduler/eta", "/search"}),
        (early, {"type": "tpee"}, {}, {"/scheduler/max_t", "/search/type"}),
        (early, cmaes, {"stop": {"type": "platau"}}, {"/scheduler/max_t", "/search", "/stop/type"}),
        (early, {"type": "auto"}, {"entrypoint": "x"}, {"/scheduler/max_t", "/entrypoint"}),
    ):
        assert set(errors(**given, scheduler=scheduler, search=search, **more)) == pointers


@pytest.mark.parametrize("data", [None, [], "x", 3, {"space": object()}, {"a": {1, 2}}])
def test_what_is_no_object_of_json(data: Any) -> None:
    with pytest.raises(SpecError, match=r"expected an object|not JSON"):
        parse_spec(data)


def test_numbers_of_numpy_are_read_as_numbers() -> None:
    data = {**copy.deepcopy(SPEC), "num_samples": np.int64(4), "seed": np.uint8(7)}
    data["points_to_evaluate"] = [{"lr": np.float32(0.0625), "width": np.int64(16)}]
    data["limits"] = {"time_budget_s": np.float32(2.5)}
    spec = parse_spec(data)
    assert (spec.num_samples, spec.seed, spec.limits.time_budget_s) == (4, 7, 2.5)
    assert spec.points_to_evaluate == ({"lr": 0.0625, "width": 16},)


def test_a_value_that_is_no_json_is_named() -> None:
    value = datetime.timedelta(hours=1)
    assert "/limits/time_budget_s" in errors(limits={"time_budget_s": value})
    assert "/points_to_evaluate/1/lr" in errors(points_to_evaluate=[{"lr": 0.01}, {"lr": value}])


class Meta:
    """Has no value, as a tensor of torch's device "meta"."""

    ndim = 0

    def item(self) -> float:
        raise RuntimeError("Tensor.item() cannot be called on meta tensors")


@pytest.mark.parametrize("value", [np.longdouble(1.5), Meta()], ids=["longdouble", "meta"])
def test_a_number_that_has_no_plain_form_is_named(value: Any) -> None:
    [(place, message)] = errors(limits={"time_budget_s": value}).items()
    assert place == "/limits/time_budget_s"
    assert "is not a JSON value" in message


def test_a_loop_is_no_json() -> None:
    data: dict[str, Any] = {}
    data["space"] = data
    with pytest.raises(SpecError, match="not JSON"):
        parse_spec(data)


@given(st.dictionaries(st.text(max_size=5), st.integers(), min_size=1, max_size=3))
def test_pointers_are_json_pointers(extra: dict[str, int]) -> None:
    """RFC 6901: following the pointer of an unknown field leads to it."""
    extra = {f"§{name}": value for name, value in extra.items()}
    data = {**SPEC, **extra}
    with pytest.raises(SpecError) as caught:
        parse_spec(data)
    found = {
        pointer[1:].replace("~1", "/").replace("~0", "~")
        for pointer, message in caught.value.errors
        if "unknown field" in message
    }
    assert found == set(extra)


@pytest.mark.parametrize(
    ("changes", "what"), [({}, "a command or a function"), ({"runtime_env": {"a": 1}}, "runtime_env")]
)
def test_agents_bring_their_own_code(changes: dict[str, Any], what: str) -> None:
    """`tuner.run(function, executor="agents")` was told to leave a command out, of which there was none."""
    with pytest.raises(SpecError, match=f"create the experiment on a service, without {what} "):
        parse_spec({**SPEC, "entrypoint": None, "executor": "agents", **changes}, code="by value")


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "a\x07", "a\x9bm"])
def test_names_have_no_control_characters(name: str) -> None:
    assert errors(name=name)["/name"] == "has control characters"


def test_a_scheduler_and_a_searcher_may_be_given_by_name() -> None:
    named = parse_spec({**SPEC, "scheduler": "fifo", "search": "tpe"})
    assert (named.scheduler, named.search) == ({"type": "fifo"}, {"type": "tpe"})
    with pytest.raises(SpecError, match="did you mean asha"):
        parse_spec({**SPEC, "scheduler": "ahsa"})


def test_a_grid_is_refused_with_define_by_run() -> None:
    space = {"a": {"type": "grid_search", "values": [1, 2]}, "b": {"type": "uniform", "lower": 0, "upper": 1}}
    found = errors(
        space=space, search={"type": "define_by_run", "search": {"type": "random"}}, scheduler={"type": "fifo"}
    )
    assert found["/search"].startswith("define_by_run cannot run a grid (a): use choice instead of grid_search")


def test_a_grid_is_run_as_often_as_when_its_search_began() -> None:
    """Earlier versions ran a grid beside other parameters 100 times if num_samples was not given, and recorded no number."""
    plain = {"a": {"type": "grid_search", "values": [1, 2]}, "b": {"type": "uniform", "lower": 0, "upper": 1}}
    data = {**copy.deepcopy(SPEC), "space": plain, "search": {"type": "random"}, "scheduler": {"type": "fifo"}}
    for name in ("num_samples", "limits", "max_t"):
        data.pop(name, None)
    spec = parse_spec(data)
    space = Space.from_json(plain)
    older = replace(spec, resolved={name: value for name, value in spec.resolved.items() if name != "num_samples"})
    assert [set_up(each, space)[0].num_samples for each in (spec, older)] == [1, 100]


def test_a_searcher_of_the_user_counts_even_if_it_has_no_length() -> None:
    class Queue(searchers.RandomSearch):
        TYPE = "python"

        def __len__(self) -> int:
            return 0

    spec = parse_spec({**SPEC, "search": {"type": "python"}}, parts=Parts(searcher=Queue()))
    assert spec.search["type"] == "python"


@pytest.mark.parametrize(
    ("section", "part", "pointers"),
    [
        ("scheduler", {"type": "asha", "max_t": 10**400, "brackets": -(10**400)}, ["/max_t", "/brackets"]),
        ("scheduler", {"type": "pbt", "perturbation_factors": [1.2, 10**400]}, ["/perturbation_factors/1"]),
        ("search", {"type": "tpe", "n_startup_trials": 10**400}, ["/n_startup_trials"]),
        ("stop", {"accuracy": 10**400}, ["/accuracy"]),
    ],
)
def test_an_integer_that_no_float_can_hold_is_a_mistake_in_its_option(
    section: str, part: dict[str, Any], pointers: list[str]
) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({**SPEC, section: part})
    assert {pointer for pointer, _ in caught.value.errors} == {f"/{section}{pointer}" for pointer in pointers}


def test_a_scheduler_takes_no_integer_that_no_float_can_hold() -> None:
    with pytest.raises(SpecError, match="expected a number, got int 1000"):
        schedulers.ASHAScheduler(max_t=10**400)
