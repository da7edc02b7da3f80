"""Counts for ``/metrics``, in Prometheus's form."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from specx.serve.engine import Engine, Progress

__all__ = ["Metrics"]


class Metrics:
    """What the server counts; nothing of what was said."""

    def __init__(self, engine: Engine) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "specx_requests", "Answered requests", ["path", "status"], registry=registry
        )
        self._tokens = Counter("specx_tokens", "Generated tokens", registry=registry)
        self._prompt = Counter(
            "specx_prompt_tokens", "Prompt tokens, read or reused", ["how"], registry=registry
        )
        self._drafted = Counter("specx_draft_tokens", "Proposed tokens", registry=registry)
        self._accepted = Counter(
            "specx_draft_tokens_accepted", "Proposed tokens that were accepted", registry=registry
        )
        self._first = Histogram(
            "specx_first_token_seconds",
            "Seconds from a request to its first token, waiting included",
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
            registry=registry,
        )
        gauges = {
            "specx_requests_waiting": ("Requests in the queue", lambda: engine.n_waiting),
            "specx_requests_running": ("Requests being answered", lambda: engine.n_running),
            "specx_parked_bytes": ("Memory of parked caches", lambda: _parked(engine)[0]),
            "specx_parked_texts": ("Parked conversations", lambda: _parked(engine)[1]),
        }
        for name, (words, value) in gauges.items():
            Gauge(name, words, registry=registry).set_function(value)

    def answered(self, path: str, status: int) -> None:
        """Count an answer."""
        self._requests.labels(path, str(status)).inc()

    def began(self, seconds: float) -> None:
        """Count a first token."""
        self._first.observe(seconds)

    def generated(self, progress: Progress) -> None:
        """Count a text, complete or broken off."""
        self._tokens.inc(progress.n_tokens)
        self._prompt.labels("reused").inc(progress.n_reused)
        self._prompt.labels("read").inc(progress.n_prompt - progress.n_reused)
        self._drafted.inc(progress.proposed)
        self._accepted.inc(progress.accepted)

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self._registry)


def _parked(engine: Engine) -> tuple[int, int]:
    parking = engine.session.parking
    return (0, 0) if parking is None else (parking.n_bytes, parking.n_texts)
