r"""specx serve against other servers: the same files, conversations and sampling settings.

    scripts/bench_server.py --alternate -m VERIFIER.gguf -md DRAFTER.gguf
    scripts/bench_server.py --llama-server PROGRAM -m VERIFIER.gguf -md DRAFTER.gguf
    scripts/bench_server.py --alternate --show

With `--alternate` two clients hold a conversation of ten turns each and take turns: beside specx
serve as it is, one that keeps only the last conversation, and llama-server if its program is given.
Otherwise specx serve runs beside llama-server: each looks for its best number of drafted tokens,
and then all hold the same conversations, turn by turn one after the other, and only ratios of
neighbouring answers are compared. Results are saved after each conversation, and a second call
continues from there.

llama-server comes with the source distribution of llama-cpp-python, from which specx's own
llama.cpp is built:

    pip download --no-deps --no-binary :all: llama-cpp-python && tar xf llama_cpp_python-*.tar.gz
    cmake -S llama_cpp_python-*/vendor/llama.cpp -B build -G Ninja -DCMAKE_BUILD_TYPE=Release \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF \
        -DLLAMA_BUILD_MTMD=OFF -DLLAMA_OPENSSL=OFF
    cmake --build build --target llama-server          # build/bin/llama-server
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from peers.page import RECORDS
from peers.record import Record, read, take_up
from peers.speculative_simple import version_of
from servers import measuring
from servers.measuring import ALONE, AUTO, FIXED, FORM, ONE_CACHE, PARKED, THEIRS, Plan
from servers.page import alternate_tables, compare_tables
from servers.program import llama_server, specx_serve
from specx import SpecxError
from specx.runtime.machine import provenance
from specx_backends.threads import physical_cores

LONGEST_TALK = 4096
"""Tokens of a context."""


def main(words: list[str] | None = None) -> int:
    """Measure the missing parts and print the tables; 2 on a wrong option or model."""
    options = parse_options(words)
    try:
        record = read(options.output, FORM) if options.show else run(options)
    except SpecxError as error:
        print(f"bench_server: {error}", file=sys.stderr)
        return 2
    print(alternate_tables(record) if options.alternate else compare_tables(record))
    return 0


def parse_options(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--alternate", action="store_true", help="two clients that alternate")
    parser.add_argument("--llama-server", metavar="PROGRAM", help="the program to compare with")
    parser.add_argument("-m", "--model", help="the verifier's GGUF file")
    parser.add_argument("-md", "--draft", help="the drafter's GGUF file")
    parser.add_argument("--gamma", default="1,2,3,5", type=whole_numbers, help="to choose from")
    parser.add_argument("--temp", default="0.7,0", type=numbers)
    parser.add_argument("--top-p", type=float, default=0.9)
    parser.add_argument("-t", "--threads", type=int, default=physical_cores())
    parser.add_argument("--turns", type=int, help="10 when alternating, else 3")
    parser.add_argument("-n", type=int, help="tokens; 24 when alternating, else 96")
    parser.add_argument("-r", type=int, default=2, help="repetitions")
    parser.add_argument("-o", "--output", type=Path, help="docs/benchmarks/server-NAME.json")
    parser.add_argument("--show", action="store_true", help="measure nothing, print the tables")
    options = parser.parse_args(words)
    if not options.show and not (options.model and options.draft):
        parser.error("-m and -md are needed to measure")
    if not (options.show or options.alternate or options.llama_server):
        parser.error("give --alternate, or --llama-server PROGRAM")
    if options.alternate:
        options.temp = [0.0]  # the same answers on all servers, so prompts of the same length
    options.turns = options.turns or (10 if options.alternate else 3)
    options.n = options.n or (24 if options.alternate else 96)
    options.output = options.output or file_of(options)
    return options


def whole_numbers(text: str) -> list[int]:
    """Whole numbers, separated by commas."""
    return [int(part) for part in text.split(",")]


def numbers(text: str) -> list[float]:
    """Numbers, separated by commas."""
    return [float(part) for part in text.split(",")]


def file_of(options: argparse.Namespace) -> Path:
    """Where the record is kept: a file for each quantisation of the verifier."""
    if options.alternate:
        return RECORDS / "server-alternate.json"
    quantisation = Path(options.model or "q4_k_m").stem.rpartition("-")[2]
    return RECORDS / f"server-{quantisation}.json"


def run(options: argparse.Namespace) -> Record:
    """Measure the parts that the record lacks."""
    options.output.parent.mkdir(parents=True, exist_ok=True)
    record = take_up(options.output, settings_of(options), FORM)
    record.data.setdefault("provenance", provenance({}, ["llamacpp"], sys.argv[1:]))
    if options.llama_server:
        record.data["provenance"][THEIRS] = version_of(Path(options.llama_server))
    measure = measuring.alternate if options.alternate else measuring.compare
    measure(plan_of(options), record, say)
    return record


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The settings on which two calls must agree to share a record."""
    return {
        "alternate": options.alternate,
        "verifier": Path(options.model).name,
        "drafter": Path(options.draft).name,
        "threads": options.threads,
        "temperatures": options.temp,
        "top_p": options.top_p,
        "gammas": options.gamma,
        "turns": options.turns,
        "n": options.n,
        "repetitions": options.r,
        "sides": sides_of(options),
    }


def sides_of(options: argparse.Namespace) -> list[str]:
    """The servers that take turns."""
    if not options.alternate:
        return [AUTO, FIXED, THEIRS, ALONE]
    return [PARKED, ONE_CACHE, *([THEIRS] if options.llama_server else [])]


def plan_of(options: argparse.Namespace) -> Plan:
    """What to measure."""
    pair, threads = (options.model, options.draft), options.threads

    def command(side: str, gamma: int) -> list[str]:
        """Ours with its own choice of gamma, but for the side that has a fixed one."""
        if side in (THEIRS, ALONE):
            return llama_server(options.llama_server, pair, threads, LONGEST_TALK, gamma)
        more = {FIXED: ["--gamma", str(gamma)], ONE_CACHE: ["--cache-ram", "0"]}
        return specx_serve(pair, threads, LONGEST_TALK, *more.get(side, []))

    return Plan(
        commands=command,
        sides=sides_of(options),
        conversations=measuring.read_texts(),
        temperatures=options.temp,
        top_p=options.top_p,
        turns=options.turns,
        n=options.n,
        repetitions=options.r,
        gammas=options.gamma,
    )


def say(line: str) -> None:
    """Print to standard error, unbuffered."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
