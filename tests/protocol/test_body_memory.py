import numpy as np
import pytest

from protocol.body_memory import body_memory


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1000, 65_537, (1 << 20) + 8])
def test_memory_for_a_body_has_its_size_and_an_aligned_end(size: int) -> None:
    memory = body_memory(size)
    assert len(memory) == memory.nbytes == size and not memory.readonly
    if size:
        assert (np.frombuffer(memory, np.uint8).__array_interface__["data"][0] + size) % 16 == 0
