"""`eagleray top`: what two states of a server look like in a terminal."""

import contextlib
import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from io import StringIO
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from app.cli.client.live_rates import quantile, rates_between
from app.cli.client.top import picture, top, typed_keys
from tests.e2e.test_terminal import Terminal
from tests.serving import EAGLERAY

BOUNDS = [100, 200, 300, 500, 1000]


def row(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "name": name, "version": 1, "state": "READY", "reason": "", "placement": "packed"} | more


def state(at_ms: int, *rows: dict[str, Any]) -> dict[str, Any]:
    server = {"name": "triton", "version": "1.0", "ready": True}
    return {
        "at_ms": at_ms,
        "server": server,
        "bounds_us": BOUNDS,
        "nodes": [{"id": "a", "address": "a"}],
        "models": list(rows),
    }


def drawn(states: list[dict[str, Any]], order: str, width: int, height: int | None) -> list[str]:
    out = StringIO()
    Console(file=out, width=width, highlight=False, force_terminal=False).print(picture(states, order, width, height))
    return out.getvalue().splitlines()


def test_rates_are_what_was_counted_between_two_states() -> None:
    first = state(1000, row("m", success=10, queue_us=100, compute_us=50, computed=10, latency=[4, 6], batches=1))
    last = state(
        3000,
        row(
            "m", success=30, queue_us=2100, compute_us=1050, computed=30, latency=[4, 16, 10], batches=6, inferences=20
        ),
        row("new", success=4, failed=2),
    )
    known, new = rates_between([first, last])
    assert (known.answered, known.queue_us, known.compute_us, known.batch) == (10.0, 100.0, 50.0, 4.0)
    assert known.p50_us == 200 and known.p99_us is not None and 295 < known.p99_us <= 300
    assert (known.answered, known.clients) == (10.0, 10.0)
    assert (new.answered, new.failed, new.p50_us) == (0, 0, None)  # it may have counted long before it was seen


def test_a_counter_that_fell_counts_as_nothing_and_the_window_begins_anew() -> None:
    before = state(0, row("m", success=1_000_000, latency=[0, 1_000_000]))
    fallen = state(1000, row("m", success=900_000, latency=[0, 900_000]))
    after = state(2000, row("m", success=900_007, latency=[0, 900_007]))
    (rates,) = rates_between([before, fallen])
    assert (rates.answered, rates.clients, rates.p50_us) == (0, 0, None)
    (rates,) = rates_between([before, fallen, after])
    assert (rates.answered, rates.clients) == (7, 7)


def test_what_a_node_had_counted_before_it_was_known_is_no_rate() -> None:
    both = [{"id": "a", "address": "a"}, {"id": "dead", "address": ""}]
    one, two = state(0, row("m", success=5)), state(1000, row("m", success=1_000_000)) | {"nodes": both}
    (rates,) = rates_between([one, two])
    assert rates.answered == 0
    (rates,) = rates_between([one, two, state(2000, row("m", success=1_000_003)) | {"nodes": both}])
    assert rates.answered == 3


def test_the_head_has_what_clients_got_and_not_each_step_of_an_ensemble() -> None:
    first = state(0, row("ensemble"), row("step"))
    last = state(1000, row("ensemble", success=5, latency=[5]), row("step", success=5))
    assert "5.0 req/s" in drawn([first, last], "name", 120, None)[0]


def test_a_quantile_beyond_the_last_bound_is_known_to_its_double() -> None:
    assert quantile([0] * 5 + [1], BOUNDS, 0.99) == 1000 + 0.99 * 1000
    assert quantile([], BOUNDS, 0.5) is None


def test_the_table_is_no_wider_and_no_higher_than_the_terminal_and_keeps_what_matters() -> None:
    rows = [row(f"model_{number}", success=number) for number in range(300)]
    first, last = state(0, *(each | {"success": 0} for each in rows)), state(1000, *rows)
    for width in (40, 60, 80, 120, 200):
        lines = drawn([first, last], "rate", width, 24)
        assert len(lines) <= 24 and max(map(len, lines)) <= width
        assert "req/s" in lines[1] and "model_299" in lines[2] and lines[-1].startswith("and ")
    assert "p99" in drawn([first, last], "rate", 60, 24)[1] and "queue" not in drawn([first, last], "rate", 60, 24)[1]
    assert len(drawn([first, last], "rate", 120, None)) == 302


def test_what_fails_comes_first_when_sorted_by_state() -> None:
    rows = state(0, row("a"), row("z", state="UNAVAILABLE", reason="gone"))
    assert drawn([rows], "state", 100, None)[2].startswith("z ")
    assert drawn([rows], "name", 100, None)[2].startswith("a ")


FIRST, LAST = state(0, row("m", success=1)), state(2000, row("m", success=21))
ONE_HOUR_AHEAD = state(3_600_000, row("m", success=1))


@pytest.mark.parametrize(
    "states",
    [(FIRST, FIRST, LAST), (ONE_HOUR_AHEAD, FIRST, LAST)],
    ids=["the same again", "after the server's clock was set back"],
)
def test_it_waits_for_a_state_that_is_newer(states: tuple[dict[str, Any], ...]) -> None:
    answers = iter(states)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(next(answers)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        done = CliRunner().invoke(top, [f"http://127.0.0.1:{server.server_port}", "--json"])
        server.shutdown()
        thread.join()
    assert done.exit_code == 0, done.output
    (model,) = json.loads(done.output)["models"]
    assert model["answered_per_s"] == 10.0


def test_it_goes_on_when_the_server_fails_or_hangs_and_hears_every_key() -> None:
    let_go, asked = threading.Event(), itertools.count()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = next(asked)
            if number == 2:
                let_go.wait(60)
            body = json.dumps(
                state(1000 * number, row("m", success=7 * number)) if number != 1 else {"error": "out of order"}
            )
            self.send_response(500 if number == 1 else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):  # who asked has given up
                self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        terminal = Terminal(EAGLERAY, "top", f"http://127.0.0.1:{server.server_port}")
        try:
            for text in ("out of order (500); what you see is from before", "timed out; what you see", "7.0"):
                terminal.wait_for(text)
            terminal.press(b"\x1b[A\x1bOBs")
            terminal.wait_for("; by p99")
            terminal.press(b"s\x1b[5~q")
            assert terminal.process.wait(30) == 0, terminal.screen
        finally:
            let_go.set()
            if terminal.process.is_running():
                terminal.process.kill()
            terminal.process.wait(10)
            terminal.close()
            server.shutdown()
            thread.join()


def test_keys_are_those_pressed_and_a_terminal_that_is_gone_ends_it() -> None:
    assert [typed_keys(each) for each in (b"sq", b"\x1b[A", b"\x1b", b"\x1b[1;5Cs", b"")] == [
        "sq",
        "",
        "\x1b",
        "s",
        "q",
    ]


def test_a_name_cannot_command_the_terminal() -> None:
    rows = state(0, row("\x1b[2J\x07evil"))
    shown = "\n".join(drawn([rows], "name", 100, None))
    assert "\x1b" not in shown and "\x07" not in shown and "evil" in shown


def test_a_url_that_is_given_twice_is_refused() -> None:
    done = CliRunner().invoke(top, ["http://127.0.0.1:1", "--url", "http://127.0.0.1:2"])
    assert (done.exit_code, "the server's URL is given twice" in done.output) == (2, True)
