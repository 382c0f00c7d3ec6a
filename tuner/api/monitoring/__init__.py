"""Watch the service: metrics for Prometheus, a log of requests, readiness."""
