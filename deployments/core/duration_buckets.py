"""The buckets of Eagleray's own latency histograms."""

from typing import Final

BOUNDS_NS: Final = [step * 10**power for power in range(5, 11) for step in (1, 2, 3, 5)]
"""100 µs to 50 s, four to each power of ten: a quantile is known to its half, by interpolation better."""
BOUNDS_S: Final = tuple(f"{bound / 1e9:.4f}".rstrip("0").rstrip(".") for bound in BOUNDS_NS)
