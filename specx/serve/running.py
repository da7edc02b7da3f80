"""Keeps the server up: its socket, its signals, its end."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from specx.errors import UsageError
from specx.serve.engine import Engine
from specx.serve.limits import protocol_with

__all__ = ["bind", "run"]

LAST_EVENTS = 15
"""Seconds that open answers have at the end: a round, or a slice of a prompt, then a last event."""


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address; nobody can connect before the server listens.

    Raises
    ------
    UsageError
        If the address does not exist here, or the port is in use.
    """
    try:
        kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(kind)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
        except BaseException:
            made.close()
            raise
    except OSError as error:
        raise UsageError(
            f"cannot listen at {host} port {port}: {error.strerror or error}; choose another "
            "--port (0 for any free one) or --host"
        ) from error
    return made


def run(
    app: Starlette, engine: Engine, sock: socket.socket, patience: float, ready: Callable[[], None]
) -> None:
    """Serve until SIGINT or SIGTERM; open answers then get a last event.

    Parameters
    ----------
    patience
        Seconds without progress after which a connection is cut.
    ready
        Called when clients can connect.
    """
    config = uvicorn.Config(
        app,
        http=protocol_with(patience),
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=LAST_EVENTS,
    )
    engine.start()
    try:
        _Server(config, engine, ready).run([sock])
    finally:
        engine.close()


class _Server(uvicorn.Server):
    """Ends answers at a signal, and does not raise the signal again: that is a proper end."""

    def __init__(self, config: uvicorn.Config, engine: Engine, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._engine, self._ready = engine, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._engine.interrupt()
