"""Spans of requests, commits, verdicts and segments, as OpenTelemetry's exporter gets them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.api.answering import Answers
from tests.driver.test_loop import Memory, driven
from tests.store.examples import a_spec, begin
from tuner.api import create_app
from tuner.domain.events import SegmentStarted
from tuner.domain.segments import Outcome, Report, SegmentRef
from tuner.domain.states import ExperimentState
from tuner.errors import SpecError
from tuner.hosts.driven import HostGroups, Running
from tuner.hosts.host import Host
from tuner.hosts.ray_executor import RayExecutor
from tuner.settings import Settings
from tuner.store import Store
from tuner.telemetry import log_format, tracing


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(provider)
    yield exporter
    tracing.use(None)


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


async def test_a_request_has_a_span_below_that_of_its_caller(
    spans: InMemorySpanExporter, sqlite_store: Store, tmp_path: Path
) -> None:
    made, _, _ = begin(sqlite_store)
    app = create_app(Settings(home=tmp_path), sqlite_store, web=tmp_path / "web")
    head = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Request-Id": "r1"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        await client.get(f"/api/v1/experiments/{made.public_id}", headers=head)
        await client.get("/api/v1/experiments/exp_x")
        await client.get("/healthz")
    found, missing = named(spans, "GET /api/v1/experiments/{experiment_id}")
    assert found.context is not None
    assert found.parent is not None
    assert f"{found.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{found.parent.span_id:016x}" == "b7ad6b7169203331"
    assert dict(found.attributes or {}) == {
        "http.response.status_code": 200,
        "tuner.request_id": "r1",
        "tuner.experiment": made.public_id,
    }
    assert (missing.attributes or {})["http.response.status_code"] == 404
    assert missing.parent is None
    assert len(spans.get_finished_spans()) == 2, "none of a probe"


async def test_the_span_of_a_request_that_failed_has_the_error(
    spans: InMemorySpanExporter, sqlite_store: Store, tmp_path: Path
) -> None:
    def broken() -> dict[str, Any]:
        raise ZeroDivisionError("a bug")

    app = create_app(Settings(home=tmp_path), sqlite_store, Answers(cluster=broken), web=tmp_path / "web")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        assert (await client.get("/api/v1/cluster")).status_code == 500
    [failed] = named(spans, "GET /api/v1/cluster")
    assert (failed.attributes or {})["http.response.status_code"] == 500
    assert failed.status.status_code is StatusCode.ERROR
    assert [event.name for event in failed.events] == ["exception"]


async def test_segments_and_commits_have_spans_with_the_experiment(spans: InMemorySpanExporter) -> None:
    memory = Memory()
    memory.failures = [OSError("away")]
    with log_format.about(experiment="exp_1"):
        assert await driven(memory).run(epoch=1, slots=None) is ExperimentState.COMPLETED
    segments = named(spans, "segment")
    assert sorted((span.attributes or {})["tuner.trial"] for span in segments) == [0, 1, 2]
    failed, again, *others = named(spans, "commit")
    assert (failed.status.status_code, again.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert [(span.attributes or {})["tuner.attempt"] for span in (failed, again)] == [1, 2]
    assert len(others) == len(memory.batches) - 1
    assert {(span.attributes or {})["tuner.experiment"] for span in (*segments, again, *others)} == {"exp_1"}


async def test_reports_and_verdicts_have_spans(
    spans: InMemorySpanExporter, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(Settings(home=tmp_path, database_url=sqlite_url), "host")

    async def run(self: HostGroups, segment: SegmentRef, milestone: int | None) -> Outcome:
        await self.inbound.loop.put(SegmentStarted(time=1.0, trial=segment.trial, segment=segment.ordinal))
        host.segments["seg_1"] = Running(self.record.id, segment, 0, self.inbound)
        for number, waits in ((1, False), (2, True)):
            await host.report("seg_1", [Report(report_no=number, metrics={"accuracy": 0.5}, time=1.0, waits=waits)])
        host.segments.clear()
        return Outcome(kind="returned")

    monkeypatch.setattr(RayExecutor, "capacity", lambda self, scaling: 1)
    monkeypatch.setattr(HostGroups, "run", run)
    made = host.store.experiments.create(a_spec(num_samples=1, search={"type": "random"}, scheduler={"type": "fifo"}))
    try:
        host.driving.begin(made)
        assert await host.driving.tasks[made.id] is ExperimentState.COMPLETED
    finally:
        host.store.close()
    [report], [verdict] = named(spans, "report"), named(spans, "verdict")
    assert dict(report.attributes or {}) == {
        "tuner.experiment": made.public_id,  # the report comes from inside its driver here
        "tuner.segment": "seg_1",
        "tuner.trial": 0,
        "tuner.reports": 1,
    }
    assert verdict.end_time is not None
    assert report.end_time is not None
    assert verdict.end_time > report.end_time
    assert {(span.attributes or {})["tuner.experiment"] for span in named(spans, "commit")} == {made.public_id}


def test_without_the_setting_nothing_is_loaded() -> None:
    code = (
        "import sys; from tuner.telemetry import tracing; tracing.configure(None, 'service', '1')\n"
        "with tracing.span('x') as span: assert span is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_extra_and_a_wrong_address_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SpecError, match=r"pip install 'tuner-hpo\[otel\]'"):
        tracing.configure("http://localhost:4318", "service", "1")
    with pytest.raises(SpecError, match="TUNER_TRACES"):
        Settings.from_env({"TUNER_TRACES": "localhost:4318"})
