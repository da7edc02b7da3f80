"""A server that runs as a process of its own on a free port of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException

from servers.client import ServerFailed
from specx.closing import Closing
from specx_backends.openmp import SPINS

__all__ = ["Server", "llama_server", "opened", "specx_serve"]

STARTING = 120.0
"""Seconds that a server may take to load its models."""

Command = Sequence[str]


def specx_serve(pair: tuple[str, str], threads: int, n_ctx: int, *more: str) -> list[str]:
    """The command of our server."""
    own = [sys.executable, "-m", "specx", "serve", "-m", pair[0], "-md", pair[1]]
    return [*own, "-t", str(threads), "-c", str(n_ctx), *more]


def llama_server(
    program: str, pair: tuple[str, str], threads: int, n_ctx: int, gamma: int
) -> list[str]:
    """The command of llama-server, without a drafter for a gamma of 0."""
    command = [program, "-m", pair[0], "-t", str(threads), "-c", str(n_ctx), "--no-webui"]
    if gamma:
        command += ["-md", pair[1], "-td", str(threads)]
        command += ["--spec-type", "draft-simple", "--spec-draft-n-max", str(gamma)]
    return command


class Server(Closing):
    """A process that answers on `port`.

    Raises
    ------
    ServerFailed
        If it does not come up.
    """

    def __init__(self, command: Command) -> None:
        self.port, self._name = free_port(), command[0]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `close` closes it
        try:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                stdout=self._log,
                stderr=self._log,
                env={"GOMP_SPINCOUNT": SPINS, **os.environ},  # specx's own setting, for both sides
            )
        except OSError as error:
            self._log.close()
            raise ServerFailed(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        """Until it is ready."""
        ends = time.monotonic() + STARTING
        while not healthy(self.port):
            if self._process.poll() is not None or time.monotonic() > ends:
                self._log.seek(0)
                last = (self._log.read().splitlines() or ["no output"])[-1]
                raise ServerFailed(f"{self._name} did not start: {last}")
            time.sleep(0.1)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


@contextmanager
def opened(commands: Mapping[str, Command]) -> Iterator[dict[str, int]]:
    """Ports of the servers by name, all running within the block."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Server(command)).port for name, command in commands.items()
        }


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def healthy(port: int) -> bool:
    """Whether the server says that it is ready."""
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
