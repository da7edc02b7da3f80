"""Connections that send or read nothing for too long are ended, and so is what they wait for."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["protocol_with"]


def protocol_with(patience: float) -> type[H11Protocol]:
    """Uvicorn's HTTP protocol, which by itself waits forever for headers and for readers.

    Parameters
    ----------
    patience
        Seconds without progress after which a connection is cut.
    """

    class Patient(H11Protocol):
        """Cuts a connection whose request never gets whole, or whose answer nobody reads."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None:  # headers are whole; the body has its own limit
                self._stop_waiting()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._wait()

        def resume_writing(self) -> None:
            self._stop_waiting()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self._stop_waiting()
            self._timer = self.loop.call_later(patience, self.transport.abort)

        def _stop_waiting(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Patient
