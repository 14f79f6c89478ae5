"""What is measured against what, and how fast Eagleray has to be."""

from dataclasses import dataclass

PLACEMENTS = ("isolated", "embedded", "packed")

MIN_MEAN_BATCH = 4.0
"""At BATCHED_CONCURRENCY clients, an execution must serve so many requests on average: proof that they are batched."""
BATCHED_CONCURRENCY = 64


@dataclass(frozen=True, slots=True)
class Row:
    """One model of Eagleray, in one placement, by one protocol, with so many clients, beside one model of Triton."""

    protocol: str
    placement: str
    model: str
    triton_model: str
    concurrency: int
    floor: float | None
    """The least throughput, as a multiple of Triton's; None for rows that only inform."""


def rows_of(protocol: str, placement: str, models: str, floors: dict[int, float | None]) -> list[Row]:
    """Return a row for each number of clients, given with its floor; `models` is ours, or ours/Triton's."""
    model, _, triton_model = models.partition("/")
    return [
        Row(protocol, placement, model, triton_model or model, concurrency, floor)
        for concurrency, floor in floors.items()
    ]


# Triton's package has no ONNX backend: its mlp_py runs the same file with ONNX Runtime.
ROWS = (
    *rows_of("http", "isolated", "mlp_onnx/mlp_py", {1: 1.2, 16: 1.5, 64: 1.2}),
    *rows_of("http", "isolated", "mlp_py", {1: 1.0, 16: 1.0, 64: 1.0}),
    *rows_of("http", "isolated", "identity_img", {1: 1.0, 8: 1.0}),
    *rows_of("grpc", "isolated", "mlp_onnx/mlp_py", {1: 1.1, 16: 1.3, 64: 1.2}),
    *rows_of("grpc", "isolated", "identity_img", {1: 1.0, 8: 1.0}),
    *rows_of("http", "embedded", "mlp_onnx/mlp_py", {1: 1.7, 16: 2.0, 64: 2.0}),
    *rows_of("http", "embedded", "identity_img", {1: 1.0, 8: 1.0}),
    *rows_of("grpc", "embedded", "mlp_onnx/mlp_py", {1: 1.3, 16: 1.5, 64: 1.6}),
    *rows_of("grpc", "embedded", "identity_img", {1: 1.0, 8: 1.0}),
    *rows_of("http", "packed", "ensemble_py", {1: 1.5, 16: 1.5, 64: 1.5}),
    *rows_of("http", "packed", "identity_img", {1: 1.0, 8: 1.0}),
    *rows_of("grpc", "packed", "identity_img", {1: 1.0, 8: 1.0}),
)


def models_of(rows: list[Row]) -> tuple[list[str], list[str]]:
    """Return the models that Eagleray and Triton have to load for the rows."""
    return sorted({row.model for row in rows}), sorted({row.triton_model for row in rows})
