"""The comparison of servers: with a fake of them, and no model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bench_server
from peers.record import Record, read
from servers.client import Chat, ServerFailed, read_reply
from servers.measuring import FIXED, FORM, THEIRS, best_gamma, read_texts
from servers.program import Server, llama_server, opened

FAKE = '''
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Fake(BaseHTTPRequestHandler):
    """Answers in three words, and knows all of a prompt but its last message."""
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        sizes = [len(message["content"].split()) for message in body["messages"]]
        if "bad" in body["messages"][-1]["content"]:
            self.send_response(400); self.end_headers(); self.wfile.write(b"no"); return
        self.send_response(200); self.end_headers()
        for n, word in enumerate(("one ", "two ", "three")):
            piece = {"choices": [{"delta": {"content": word}}]}
            self.send({**piece, "timings": {"predicted_n": n + 1}})
        timings = {"predicted_n": 3, "predicted_per_second": float(len(sys.argv)), "draft_n": 4,
                   "draft_n_accepted": 2}
        self.send({"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": timings})
        cached = {"cached_tokens": sum(sizes[:-1])}
        usage = {"prompt_tokens": sum(sizes), "completion_tokens": 3}
        self.send({"choices": [], "usage": {**usage, "prompt_tokens_details": cached}})
        self.wfile.write(b"data: [DONE]\\n\\n")
    def send(self, chunk):
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\\n\\n"); self.wfile.flush()

port = int(sys.argv[sys.argv.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Fake).serve_forever()
'''


@pytest.fixture
def fake(tmp_path: Path) -> list[str]:
    path = tmp_path / "fake.py"
    path.write_text(FAKE)
    return [sys.executable, str(path)]


@pytest.fixture
def port(fake: list[str]) -> Iterator[int]:
    with Server(fake) as server:
        yield server.port


def test_a_chat_sends_its_own_answers_back_and_counts_what_was_read(port: int) -> None:
    talk = Chat(port, "be brief", {"max_tokens": 3})
    first, second = talk.say("a b c"), talk.say("d e")
    assert (first.text, first.n_prompt, first.n_read, first.n_tokens) == ("one two three", 5, 3, 3)
    assert (second.n_prompt, second.n_read) == (5 + 3 + 2, 2)
    assert (first.drafted, first.accepted) == (4, 2)


def test_a_refused_request_is_one_line(port: int) -> None:
    with pytest.raises(ServerFailed, match="400: no"):
        Chat(port, "", {}).say("bad")


def test_a_server_that_does_not_start_says_its_last_line() -> None:
    code = "import sys; print('first'); sys.exit('no such model')"
    with pytest.raises(ServerFailed, match="did not start: no such model"):
        Server([sys.executable, "-c", code])
    with pytest.raises(ServerFailed, match="cannot be started: No such file"):
        Server(["/no/such/program"])


def chunk(text: str | None, n: int, **more: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}}], "timings": {"predicted_n": n}, **more}


def test_the_times_are_those_of_the_pieces_of_text() -> None:
    end = {
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": 7},
        "timings": {"predicted_per_second": 8.0},
    }
    arriving = [(10.5, chunk(None, 0)), (11.0, chunk("a", 1)), (13.0, chunk("b", 7)), (13.5, end)]
    reply = read_reply(10.0, iter(arriving))
    assert (reply.first_s, reply.wall_tok_s, reply.tok_s) == (1.0, 3.0, 8.0)
    assert read_reply(10.0, iter([arriving[1], arriving[3]])).wall_tok_s is None


@pytest.mark.parametrize("chunks", [[], [chunk("a", 1)], [{"error": {"message": "out of luck"}}]])
def test_an_answer_without_its_end_is_no_answer(chunks: list[dict[str, Any]]) -> None:
    with pytest.raises(ServerFailed):
        read_reply(0.0, iter((1.0, each) for each in chunks))


def test_without_a_drafter_llama_server_gets_none() -> None:
    command = llama_server("p", ("v", "d"), 2, 512, 0)
    assert "-md" not in command
    assert "--spec-type" not in command
    assert llama_server("p", ("v", "d"), 2, 512, 3)[-2:] == ["--spec-draft-n-max", "3"]


def test_the_conversations_are_long_enough() -> None:
    texts = read_texts()
    assert [len(each.turns) for each in texts[:2]] == [10, 10]
    assert all(100 < len(turn.split()) < 200 for each in texts for turn in each.turns)


def measure(
    fake: list[str], path: Path, monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[int, list[int]]:
    """Exit code of the script with fakes of both servers, and how many were started each time."""
    started = []

    def counting(commands: Any) -> Any:
        started.append(len(commands))
        return opened(commands)

    monkeypatch.setattr("servers.measuring.opened", counting)
    monkeypatch.setattr("servers.measuring.psutil.cpu_percent", lambda interval: 3.0)
    monkeypatch.setattr(bench_server, "specx_serve", lambda *_: [*fake, "a", "b"])
    monkeypatch.setattr(bench_server, "llama_server", lambda *_: fake)
    code = bench_server.main(["-m", "v-f16.gguf", "-md", "d.gguf", "-o", str(path), *words])
    return code, started


def test_two_clients_alternate_and_a_second_call_measures_nothing(
    fake: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, words = tmp_path / "r.json", ("--alternate", "--turns", "2", "-r", "1")
    assert measure(fake, path, monkeypatch, *words) == (0, [2])
    turns = read(path, FORM).data["turns"]
    assert [(t["conversation"], t["turn"]) for t in turns] == [
        ("code", 0), ("garden", 0), ("code", 1), ("garden", 1)
    ]  # fmt: skip
    shown = capsys.readouterr().out
    assert "| 2 |" in shown
    assert "other programs took 3% of the machine" in shown
    assert measure(fake, path, monkeypatch, *words) == (0, [])
    assert capsys.readouterr().out == shown


def test_the_best_gamma_is_the_fastest_of_its_side_and_temperature() -> None:
    tried = [(FIXED, 1, 0, 9.0), (FIXED, 2, 0, 11.0), (FIXED, 3, 0.7, 20.0), (THEIRS, 5, 0, 30.0)]
    names = ("side", "gamma", "temperature", "tok_s")
    record = Record({"choice": [dict(zip(names, each, strict=True)) for each in tried]})
    assert best_gamma(record, FIXED, 0.0) == 2


def test_each_side_is_tried_with_each_gamma_and_then_all_take_turns(
    fake: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "r.json"
    words = ("--llama-server", "p", "--turns", "2", "-r", "1", "--temp", "0.5", "--gamma", "1,2")
    assert measure(fake, path, monkeypatch, *words) == (0, [1, 1, 1, 1, 4])
    record = read(path, FORM).data
    assert len(record["choice"]) == 4
    assert len(record["turns"]) == 4 * 2
    # The fake writes as many tokens per second as it has words: 5 for ours, 3 for theirs.
    assert "| 0.5 | specx serve, auto | llama-server | 1.67x" in capsys.readouterr().out
    record["turns"] = [t for t in record["turns"] if t["conversation"] != "history"]
    path.write_text(json.dumps(record))
    assert measure(fake, path, monkeypatch, *words) == (0, [4])
    assert len(read(path, FORM).data["turns"]) == 4 * 2


def test_other_settings_need_another_file(
    fake: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, words = tmp_path / "r.json", ("--alternate", "--turns", "2", "-r", "1")
    assert measure(fake, path, monkeypatch, *words) == (0, [2])
    assert measure(fake, path, monkeypatch, *words, "-n", "7") == (2, [])
    assert "was measured with n 24, not 7" in capsys.readouterr().err
