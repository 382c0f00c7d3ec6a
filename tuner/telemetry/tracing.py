"""Traces with OpenTelemetry: spans of requests, commits, verdicts and segments.

The spans are sent to the collector that the settings name. If they name none, `span` does nothing, and OpenTelemetry is
not even imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tuner.errors import SpecError
from tuner.names import with_extra
from tuner.telemetry import log_format

PATH = "/v1/traces"
"""The path at which a collector accepts traces in OTLP over HTTP."""

_NOTHING: AbstractContextManager[Any] = nullcontext()
_tracer: Any = None


def configure(endpoint: str | None, part: str, version: str) -> None:
    """Send the spans of this process to a collector. Do nothing if `endpoint` is None.

    Args:
        endpoint: the collector's address, such as ``http://localhost:4318``.
        part: "service" or "driver", whichever this process runs.
        version: the version of this package.

    Raises:
        SpecError: OpenTelemetry is not installed.
    """
    if endpoint is None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise SpecError(f"needs the extra otel: {with_extra('otel')} ({error})", "/traces") from error
    whole = endpoint if endpoint.endswith(PATH) else endpoint.rstrip("/") + PATH
    provider = TracerProvider(resource=Resource.create({"service.name": f"tuner-{part}", "service.version": version}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=whole)))
    use(provider)


def use(provider: Any) -> None:
    """Use this OpenTelemetry tracer provider for the spans of this process; None turns spans off."""
    global _tracer
    _tracer = provider.get_tracer("tuner") if provider is not None else None


def span(name: str, carrier: Mapping[str, str] | None = None, **attributes: Any) -> AbstractContextManager[Any]:
    """Return a context manager that opens a span and yields it. If tracing is off, it yields None.

    The span's attributes include the ids that `log_format.about` has set. An exception is recorded and raised again.

    Args:
        name: the name of the span.
        carrier: the headers of a request, which may name the parent of the span (in W3C's header ``traceparent``).
        attributes: attributes of the span, named ``tuner.NAME``. Attributes that are None are left out.
    """
    if _tracer is None:
        return _NOTHING
    from opentelemetry.propagate import extract

    given = {**log_format.ids(), **attributes}
    named = {f"tuner.{key}": value for key, value in given.items() if value is not None}
    context = None if carrier is None else extract(carrier)
    found: AbstractContextManager[Any] = _tracer.start_as_current_span(name, context=context, attributes=named)
    return found


def record_error(span: Any, error: BaseException) -> None:
    """Record an error that is handled within a span, as the span does by itself if the error leaves it. span: may be None."""
    if span is None:
        return
    from opentelemetry.trace import Status, StatusCode

    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
