"""The web application: routes, bodies, streams."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from specx.serve.answers import DONE, Answer, event_of
from specx.serve.engine import Engine, Event, Failed, Job, Over, Said
from specx.serve.guard import Access, Guard, refusal
from specx.serve.metrics import Metrics
from specx.serve.wire import Refused, Wanted, read_chat, read_completion

__all__ = ["Serving", "make_app"]

MOST_BYTES = 16 << 20
"""Of a body: longer than any context."""
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A server's parts."""

    engine: Engine
    name: str
    """The model's name in answers."""
    access: Access
    patience: float
    """Seconds that a body may take."""


def make_app(serving: Serving) -> Starlette:
    """The application."""
    metrics = Metrics(serving.engine)
    endpoints = _Endpoints(serving, metrics)
    paths = {route.path for route in endpoints.routes}
    middleware = [
        Middleware(
            Guard,
            access=serving.access,
            answered=lambda path, status: metrics.answered(
                path if path in paths else "other", status
            ),
        )
    ]
    if serving.access.origins:
        middleware.insert(
            0,
            Middleware(
                CORSMiddleware,
                allow_origins=list(serving.access.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            ),
        )
    return Starlette(
        routes=endpoints.routes,
        middleware=middleware,
        exception_handlers={Refused: _refused, HTTPException: _no_such, Exception: _broken},
    )


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return refusal(error)


async def _no_such(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: "there is no such path", 405: "this path has other methods"}
    reason = Refused(words.get(error.status_code, error.detail), error.status_code)
    return JSONResponse(reason.body, error.status_code, headers=error.headers)


async def _broken(request: Request, error: Exception) -> Response:
    traceback.print_exception(error)
    return refusal(Refused("the server failed on this request; see its log", 500))


class _Events:
    """Events of a job, from the engine's thread to the event loop."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def deliver(self, event: Event) -> None:
        """Take an event, in any thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def next(self) -> Event:
        """The next event."""
        return await self._queue.get()


class _Endpoints:
    def __init__(self, serving: Serving, metrics: Metrics) -> None:
        self._serving, self._metrics = serving, metrics
        self._fingerprint = f"specx-{version('specx')}"
        self._created = int(time.time())
        self._page, self._policy = _page()
        self.routes = [
            Route("/", self.page),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/v1/models", self.models),
            Route("/v1/models/{name}", self.model),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        return HTMLResponse(self._page, headers={"Content-Security-Policy": self._policy})

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._serving.name:
            raise Refused(
                f"there is no model {name!a:.100}; this server has {self._serving.name}",
                404,
                code="model_not_found",
            )
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        models = self._serving.engine.session.pair.models
        return {
            "id": self._serving.name,
            "object": "model",
            "created": self._created,
            "owned_by": "specx",
            "meta": {"n_ctx": min(model.n_ctx for model in models), "draft": len(models) > 1},
        }

    async def chat(self, request: Request) -> Response:
        return await self._answer(request, read_chat)

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, read_completion)

    async def _answer(self, request: Request, read: Callable[[bytes], Wanted]) -> Response:
        begun = time.perf_counter()
        try:
            wanted = read(await self._body(request))
        except ClientDisconnect:
            return Response(status_code=400)
        events = _Events()
        job = Job(wanted, events.deliver)
        self._serving.engine.submit(job)
        answer = Answer(wanted, self._serving.name, self._fingerprint)
        async with _watched(request, job):
            first = await events.next()
            self._metrics.began(time.perf_counter() - begun)
            if isinstance(first, Failed):
                raise first.reason
            if not wanted.stream:
                return await self._whole(answer, first, events)
        stream = self._stream(job, answer, first, events)
        return StreamingResponse(stream, media_type="text/event-stream", headers=STREAM_HEADERS)

    async def _whole(self, answer: Answer, event: Event, events: _Events) -> Response:
        last: Said | None = None
        while not isinstance(event, Over):
            if isinstance(event, Failed):
                self._count(last)
                raise event.reason
            if isinstance(event, Said):
                last = event
                answer.gathered(event)
            else:
                last = None
                self._metrics.generated(event.progress)
                answer.finished(event)
            event = await events.next()
        self._count(last)
        if last is not None or not answer.complete:
            return Response(status_code=400)  # the client is gone
        return JSONResponse(answer.whole())

    async def _stream(
        self, job: Job, answer: Answer, event: Event, events: _Events
    ) -> AsyncIterator[str]:
        last: Said | None = None
        try:
            while not isinstance(event, Over):
                if isinstance(event, Failed):
                    yield event_of(event.reason.body)
                    yield DONE
                    return
                if isinstance(event, Said):
                    last = event
                    chunks = answer.said(event)
                else:
                    last = None
                    self._metrics.generated(event.progress)
                    chunks = answer.ended(event)
                # One write for each event: a round's chunks belong together.
                if sent := "".join(chunks):
                    yield sent
                event = await events.next()
            yield "".join(answer.closing())
        finally:
            job.cancel()
            self._count(last)

    def _count(self, last: Said | None) -> None:
        """Count a text that was broken off."""
        if last is not None:
            self._metrics.generated(last.progress)

    async def _body(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # Browsers send other types to any server without asking it first.
            raise Refused("the body must be sent as Content-Type: application/json", 415)
        length = request.headers.get("content-length", "0")
        if len(length) > 12 or int(length) > MOST_BYTES:
            raise _too_large()
        try:
            return await asyncio.wait_for(_read(request), self._serving.patience)
        except asyncio.TimeoutError as error:
            raise Refused(
                f"the body took more than {self._serving.patience:g} s; send it faster, or start "
                "the server with a longer --timeout",
                408,
                headers={"Connection": "close"},
            ) from error


async def _read(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise _too_large()
    return bytes(body)


def _too_large() -> Refused:
    return Refused(
        f"the body has more than {MOST_BYTES:,} bytes; send a shorter text",
        413,
        headers={"Connection": "close"},
    )


@asynccontextmanager
async def _watched(request: Request, job: Job) -> AsyncIterator[None]:
    """Within the block, the job is cancelled when its client leaves."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        job.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def _page() -> tuple[str, str]:
    """The page, and the policy that lets it run its own script and style and nothing else."""
    page = files("specx.serve").joinpath("page.html").read_text(encoding="utf-8")
    named = partial(_hashed, page)
    policy = [
        "default-src 'none'",
        f"script-src {named('script')}",
        f"style-src {named('style')}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    return page, "; ".join(policy)


def _hashed(page: str, tag: str) -> str:
    """The hash of the page's only element of this kind, as a policy names it."""
    found = re.search(rf"<{tag}[^>]*>(.*?)</{tag}>", page, re.DOTALL)
    assert found is not None
    digest = hashlib.sha256(found[1].encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
