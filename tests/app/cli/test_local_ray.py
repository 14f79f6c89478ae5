import pytest

from app.cli.local_ray import explain


@pytest.mark.parametrize(
    ("error", "address", "text"),
    [
        (
            Exception("The current node timed out during startup. This could happen because\nof much."),
            "",
            "Ray did not start within 30 s: this machine is too busy, or short of memory; try again when it is quieter",
        ),
        (ValueError("two\n  lines"), "", "Ray did not start: two lines"),
        (OSError(), "", "Ray did not start: OSError"),
        (ConnectionError("nobody"), "10.0.0.1:6379", "no Ray cluster could be joined at 10.0.0.1:6379: nobody"),
    ],
)
def test_failure_is_one_sentence(error: Exception, address: str, text: str) -> None:
    assert explain(error, address) == text
