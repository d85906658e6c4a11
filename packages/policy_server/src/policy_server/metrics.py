"""What a server counts, in Prometheus' own format; nothing of it reaches an action."""

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

Result = Literal["ok", "refused", "fault"]
RESULTS: tuple[Result, ...] = ("ok", "refused", "fault")

# From a tiny model to the full size on a CPU, which takes minutes.
LATENCY_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 180.0)


class Metrics:
    """The numbers of one server."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        """Start at zero, with every result there from the beginning."""
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "policy_requests", "Requests by result.", ["result"], registry=self._registry
        )
        for result in RESULTS:
            self._requests.labels(result)
        self._latency = Histogram(
            "policy_request_seconds",
            "From a request's arrival to its answer, waiting included.",
            buckets=LATENCY_BUCKETS_S,
            registry=self._registry,
        )
        self.connections = Gauge("policy_connections", "Open websockets.", registry=self._registry)
        self.unanswered = Gauge(
            "policy_unanswered_requests", "Requests waiting or running.", registry=self._registry
        )
        self.unauthorized = Counter(
            "policy_unauthorized", "HTTP requests without the key.", registry=self._registry
        )

    def answered(self, result: Result, seconds: float) -> None:
        """Count one answer."""
        self._requests.labels(result).inc()
        self._latency.observe(seconds)

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self._registry)
