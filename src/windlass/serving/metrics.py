"""Metrics of the server in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram of request durations, in seconds."""


class Metrics:
    """Counts requests to the model. `/ping`, `/live`, `/labels` and `/metrics` itself are not counted."""

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()
        """Number of answered requests by HTTP status."""
        self.batches = 0
        self.restarts = 0
        self.last_request_at = 0.0
        """Arrival time of the last request in Unix seconds; 0 before the first."""
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._sum_seconds = 0.0

    def observe(self, status: int, seconds: float) -> None:
        """Counts an answered request."""
        self.requests[status] += 1
        self._sum_seconds += seconds
        self._buckets[next((n for n, bound in enumerate(BUCKETS) if seconds <= bound), len(BUCKETS))] += 1

    def text(self, *, waiting: int, ready: int, workers: int) -> str:
        """Returns all metrics. The arguments are the gauges: requests in the queue, ready workers, and all workers."""
        lines: list[str] = []

        def add(name: str, kind: str, meaning: str, *samples: tuple[str, float]) -> None:
            lines.append(f"# HELP windlass_{name} {meaning}")
            lines.append(f"# TYPE windlass_{name} {kind}")
            lines.extend(f"windlass_{name}{labels} {value}" for labels, value in samples)

        counts = [(f'{{status="{status}"}}', float(count)) for status, count in sorted(self.requests.items())]
        add("requests_total", "counter", "Requests to the model by HTTP status.", *counts)
        total, histogram = 0, []
        for bound, count in zip((*BUCKETS, "+Inf"), self._buckets, strict=True):
            total += count
            histogram.append((f'_bucket{{le="{bound}"}}', float(total)))
        histogram += [("_sum", self._sum_seconds), ("_count", float(total))]
        add("request_seconds", "histogram", "Time from a request to its answer.", *histogram)
        add("batches_total", "counter", "Calls of the model, of one or more requests.", ("", self.batches))
        add("worker_restarts_total", "counter", "Workers that were started again.", ("", self.restarts))
        add("last_request_timestamp_seconds", "gauge", "Unix time of the last request.", ("", self.last_request_at))
        add("queue_requests", "gauge", "Requests that wait for a worker.", ("", waiting))
        add("workers", "gauge", "Worker processes.", ("", workers))
        add("workers_ready", "gauge", "Worker processes that have loaded the model.", ("", ready))
        return "\n".join(lines) + "\n"
