"""`serve --help` under headings."""

import re

from tests.serving import EAGLERAY, run


def test_flags_stand_under_headings() -> None:
    text = run(EAGLERAY, "serve", "--help").stdout
    headings = re.findall(r"^(\w.*):$", text, re.MULTILINE)
    assert headings[0] == "Models"
    assert {"Access and TLS", "HTTP", "gRPC", "Metrics, logs and traces", "Ray", "Server"} <= set(headings)
    sections = dict(zip(headings, re.split(r"^\w.*:$", text, flags=re.MULTILINE)[1:], strict=True))
    for flag, heading in (
        ("--model-repository", "Models"),
        ("--http-port", "HTTP"),
        ("--http-server-cert", "Access and TLS"),
        ("--api-key-file", "Access and TLS"),
        ("--grpc-max-message-size", "gRPC"),
        ("--log-verbose", "Metrics, logs and traces"),
        ("--num-gpus", "Ray"),
    ):
        assert flag in sections[heading], flag
