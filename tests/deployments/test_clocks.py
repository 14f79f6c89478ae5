"""Nothing that waits or measures goes by the wall clock, which may jump."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("protocol", "repository_loader", "deployments", "app")
WALL_CLOCKS = {"time.time", "time.time_ns", "time.localtime", "datetime.now", "datetime.utcnow"}
SHOWN = {
    "app/cli/client/traffic.py": "when a step of a canary was taken",
    "app/console/live_state.py": "when the console's numbers were read",
    "app/http/head_ends.py": "the Date of an answer",
    "deployments/backends/python/process/environment.py": "how long ago an unpacked environment was begun to be used",
    "deployments/control/canary_watch.py": "when a step of a canary was taken, in its history",
    "deployments/control/traffic_commands.py": "when a canary was begun or stopped, in its history",
    "deployments/lane/trace_frames.py": "how far the clock of another node is ahead, for its times in a trace",
    "deployments/replica/node_counters.py": "when a model was asked last, in its statistics",
    "deployments/replica/region_mapping.py": "whether a file was written to just now",
}
"""Where a time of day is told to a client, or compared with that of a file."""


def test_no_time_is_taken_from_the_wall_clock_but_what_clients_are_shown() -> None:
    found = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in WALL_CLOCKS
    }
    assert found == set(SHOWN)
