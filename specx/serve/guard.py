"""Refuses requests that must not get in, before anything of them is read.

A page of any website can send requests to a server on this machine. It cannot read answers of
another origin, but it could have texts generated, and with a name that it points to 127.0.0.1 (DNS
rebinding) it could read them too. So the Host and the Origin are checked.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specx.serve.wire import Refused

__all__ = ["Access", "Guard", "is_local", "refusal"]

OPEN = ("/", "/health")
"""Paths that need no key: the page asks for it, and who watches a server has none."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may ask."""

    host: str
    """The address that the server listens at."""
    api_key: str | None = None
    origins: Sequence[str] = ()
    """Origins of other web pages that may ask; ``*`` for all."""


def is_local(host: str) -> bool:
    """True if `host` names this machine and nothing beyond it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refusal(reason: Refused) -> JSONResponse:
    """The answer to a request that is refused."""
    return JSONResponse(reason.body, reason.status, headers=reason.headers)


class Guard:
    """ASGI middleware: host, origin and key.

    Parameters
    ----------
    answered
        Told the path and status of each answer.
    """

    def __init__(self, app: ASGIApp, access: Access, answered: Callable[[str, int], None]) -> None:
        self._app, self._access, self._answered = app, access, answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._answered(scope["path"], message["status"])
            await send(message)

        try:
            self._check(scope["path"], Headers(scope=scope))
        except Refused as reason:
            return await refusal(reason)(scope, receive, counted)
        return await self._app(scope, receive, counted)

    def _check(self, path: str, headers: Mapping[str, str]) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if is_local(self._access.host) and not is_local(_name(host)):
            raise Refused(
                f"this server does not answer for the host {host!a:.100}; use "
                "127.0.0.1 or localhost, or start it with a wider --host",
                421,
            )
        if origin is not None and not self._may_ask(origin, host):
            raise Refused(
                f"pages of {origin!a:.100} may not use this server; allow them with --cors-origin",
                403,
            )
        if self._access.api_key is not None and path not in OPEN:
            _check_key(self._access.api_key, headers.get("authorization", ""))

    def _may_ask(self, origin: str, host: str) -> bool:
        allowed = self._access.origins
        return "*" in allowed or origin in allowed or urlsplit(origin).netloc == host


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _check_key(key: str, given: str) -> None:
    scheme, _, word = given.partition(" ")
    # In constant time: how long it takes must not tell how much of a key was right.
    if scheme.lower() != "bearer" or not hmac.compare_digest(word.encode(), key.encode()):
        raise Refused(
            "a key is needed: send it as 'Authorization: Bearer KEY'", 401, code="invalid_api_key"
        )
