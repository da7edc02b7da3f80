"""A run whose runtime fails in mid-text keeps its text, its trace and its footer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specx.records.trace import read_trace

RUN = """
import itertools, sys
from specx_backends import llamacpp
from specx_backends.llamacpp_library import ggml, library
from specx.errors import BackendError
calls, forward = itertools.count(), llamacpp.LlamaCppModel.forward

def failing(model, tokens, n_logits=1):
    if n_logits and next(calls) > 12:
        {failure}
    return forward(model, tokens, n_logits)

llamacpp.LlamaCppModel.forward = failing
from specx.__main__ import main
sys.argv[1:] = ["run", "-p", "def f(x):", "-n", "200", "-s", "1", "--trace", {trace!r}]
main()
"""
ABORT = 'ggml(library(), "ggml_abort", None)(b"file.c", 7, b"no use")'
ERROR = 'raise BackendError("it failed")'


@pytest.mark.parametrize(("failure", "line"), [(ABORT, "file.c:7: no use"), (ERROR, "it failed")])
def test_text_trace_and_footer_are_there_after_a_failure(
    tmp_path: Path, failure: str, line: str
) -> None:
    trace = tmp_path / "trace.jsonl"
    code = RUN.format(failure=failure, trace=str(trace))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2, ended.stderr
    told = read_trace(trace)
    assert told.summary is not None
    assert told.summary.stop_reason == "failed"
    assert told.summary.n_tokens > 0
    assert ended.stdout.rstrip("\n") == told.text.rstrip("\n") != ""
    assert "stopped by a failure of the runtime" in ended.stderr
    assert line in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
