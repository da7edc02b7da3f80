"""`specx serve`: an HTTP server with OpenAI's interface."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import click

from specx import Result, Session
from specx.cli.drafting import DRAWING, GAMMA, DraftOptions
from specx.cli.files import Command
from specx.cli.generating import NO_DRAFT, RULE, VERBOSE, loading_of, settings_of, sides_of
from specx.cli.load import load_pair
from specx.cli.options import (
    MODELS,
    SAMPLING,
    TEMPLATE_INPUTS,
    add_options,
    chat_options,
    pick,
    runtime_options,
)
from specx.cli.progress import Progress
from specx.errors import BackendError, UsageError
from specx.runtime.prefill import PREFILL_SLICE
from specx.session.chat import has_template
from specx.session.parking import Parking

__all__ = ["serve"]

CONTEXT = 8192
NEEDED = ("prometheus_client", "starlette", "uvicorn")

ENDS = {
    "length": "length limit reached",
    "context": "context full",
    "interrupted": "broken off",
}

EPILOG = """\b
Clients of OpenAI's API use http://127.0.0.1:8080/v1 as their base URL; a page to chat with is at /.
The sampling options are defaults: a request may set its own. Requests are answered one after
another. A request without a seed draws one, and the answer names it."""

NETWORK = [
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at."),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=8080,
        show_default=True,
        help="Port to listen at; 0 for any free one.",
    ),
    click.option(
        "--api-key",
        envvar="SPECX_API_KEY",
        show_envvar=True,
        help="Key that clients must send; other users of this machine see it here, not in the "
        "variable.",
    ),
    click.option("--no-auth", is_flag=True, help="Serve a public address without a key."),
    click.option(
        "--cors-origin",
        multiple=True,
        metavar="ORIGIN",
        help="Let web pages of this origin use the server (* for all); repeatable.",
    ),
    click.option(
        "--queue",
        type=click.IntRange(min=0),
        default=32,
        show_default=True,
        help="Requests that may wait; more get 503.",
    ),
    click.option(
        "--cache-ram",
        type=click.IntRange(min=0),
        default=1024,
        show_default=True,
        metavar="MiB",
        help="Memory for caches of recent conversations, so that clients who take turns have only "
        "their last turn read; 0 for none.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Cut a client that sends or reads nothing for so long.",
    ),
]


@click.command(cls=Command, epilog=EPILOG)
@add_options(
    [
        *MODELS,
        *NETWORK,
        *TEMPLATE_INPUTS,
        RULE,
        *SAMPLING,
        NO_DRAFT,
        *GAMMA,
        *DRAWING,
        *runtime_options(f"{CONTEXT}, or the trained size if that is smaller"),
        click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors."),
        VERBOSE,
    ]
)
def serve(**given: Any) -> int:
    """Serve a model to editors, web interfaces and programs."""
    _require_extra()
    options = pick(ServeOptions, given)
    _require_key(options)
    drafting = pick(
        DraftOptions, {**given, "seed": None, "gamma_trace": None, "gamma_replay": None}
    )
    settings = settings_of(given, drafting, 0)
    loading = loading_of(given, drafting)
    sides = sides_of(loading)
    template = chat_options({**given, "raw": False})
    if options.template_date is None:
        template = replace(template, today=None)  # a server may run for days

    from specx.cli.chat import costs_of
    from specx.serve.app import Serving, make_app
    from specx.serve.engine import Engine
    from specx.serve.guard import Access
    from specx.serve.running import bind, run

    with ExitStack() as stack:
        sock = stack.enter_context(bind(options.host, options.port))
        pair = stack.enter_context(
            load_pair(
                sides,
                lambda tokenizer: CONTEXT,
                verbose=given["verbose"],
                cached=True,
                progress=Progress(enabled=not options.quiet),
            )
        )
        parking = Parking(options.cache_ram << 20) if options.cache_ram else None
        # Costs of a profile are not changed by live times: a seed must reproduce its text.
        costs = costs_of(pair, drafting.profile, live=False)
        session = stack.enter_context(
            Session(pair, costs=costs, defaults=settings, parking=parking)
        )
        engine = Engine(
            session,
            most_waiting=options.queue,
            template=template,
            slice_size=loading["n_batch"] or PREFILL_SLICE,
            report=(lambda result: None) if options.quiet else _report,
        )
        access = Access(
            host=options.host, api_key=options.api_key or None, origins=options.cors_origin
        )
        name = os.path.basename(pair.verifier.name.partition(":")[2])
        serving = Serving(engine=engine, name=name, access=access, patience=options.timeout)

        def ready() -> None:
            if not options.quiet:
                _greet(name, sock.getsockname(), chats=has_template(pair.verifier.tokenizer))

        run(make_app(serving), engine, sock, options.timeout, ready)
    return 0


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of NETWORK, and others that only the command itself reads."""

    host: str
    port: int
    api_key: str | None
    no_auth: bool
    cors_origin: tuple[str, ...]
    queue: int
    cache_ram: int
    timeout: float
    template_date: str | None
    quiet: bool


def _report(result: Result) -> None:
    from specx.cli.chat_output import quiet_line

    with suppress(OSError):  # nobody reads standard error any more; clients are served all the same
        click.echo(f"specx: {quiet_line(result, ENDS)}", err=True)


def _greet(name: str, address: tuple[Any, ...], *, chats: bool) -> None:
    host, port = address[:2]
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"specx: serving {name} at http://{shown}:{port}; Ctrl-C ends it", err=True)
    if not chats:
        click.echo(
            "specx: the model has no chat template, so it only continues texts (/v1/completions)",
            err=True,
        )


def _require_extra() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise BackendError(
            f"specx serve needs {', '.join(missing)}; install it: pip install 'specx[serve]'"
        )


def _require_key(options: ServeOptions) -> None:
    from specx.serve.guard import is_local

    if is_local(options.host) or options.api_key:
        return
    if not options.no_auth:
        raise UsageError(
            f"--host {options.host} lets other machines use this server; add --api-key KEY, or "
            "--no-auth if everybody may"
        )
