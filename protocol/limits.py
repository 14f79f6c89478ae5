"""What a request may ask for before it is refused; every bound of the codecs in one place."""

import sys
from dataclasses import dataclass
from typing import Self

from protocol.by_name import ByName

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits(ByName):
    """Bounds on one request, all inclusive; one above is refused with 400.

    `http_max_input_size_bytes` is Triton's `--http-max-input-size`: it bounds the JSON part of a body, and each tensor
    made from it. Tensors that follow the JSON part in binary are bounded by the transport alone, as in Triton.
    """

    http_max_input_size_bytes: int = 64 * MIB
    json_max_depth: int = 100
    json_max_elements: int = 16 * MIB
    max_inputs: int = 1024
    max_outputs: int = 1024
    max_parameters: int = 64
    max_tensor_rank: int = 32
    max_dim: int = 2**31 - 1
    max_element_count: int = 2**31 - 1
    max_bytes_element_bytes: int = 64 * MIB
    max_correlation_id_bytes: int = 128
    max_classification_elements: int = 1_000_000
    header_cache_entries: int = 256
    header_cache_key_bytes: int = 4096

    @classmethod
    def of_input_size(cls, size_bytes: int) -> Self:
        """Return the limits for an `--http-max-input-size`: those that would refuse a body of that size follow it."""
        default = cls()
        return cls(
            http_max_input_size_bytes=size_bytes,
            json_max_elements=max(default.json_max_elements, size_bytes // 4),
            max_bytes_element_bytes=max(default.max_bytes_element_bytes, size_bytes),
        )


DEFAULT_LIMITS = Limits()

UNBOUNDED = Limits(
    http_max_input_size_bytes=sys.maxsize, json_max_elements=sys.maxsize, max_bytes_element_bytes=sys.maxsize
)
"""For answers of our own models, which no client has sent."""
