import numpy as np
import pytest

from protocol.datatypes import BY_CONFIG_NAME, BY_ENUM, BY_NAME, of_array


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"BF16", "BYTES"}))
def test_arrays_name_their_datatype_in_either_byte_order(name: str) -> None:
    array = np.zeros(1, BY_NAME[name].numpy)
    assert of_array(array) is BY_NAME[name]
    assert of_array(array.astype(array.dtype.newbyteorder(">"))) is BY_NAME[name]
    assert array.dtype.itemsize == BY_NAME[name].byte_size


@pytest.mark.parametrize("dtype", ["O", "S3", "U3"])
def test_strings_of_all_kinds_are_bytes(dtype: str) -> None:
    assert of_array(np.zeros(1, dtype)).name == "BYTES"


@pytest.mark.parametrize("dtype", ["c8", "M8[s]", "V4"])
def test_other_types_have_no_datatype(dtype: str) -> None:
    with pytest.raises(KeyError):
        of_array(np.zeros(1, dtype))


def test_every_row_is_found_by_each_of_its_names() -> None:
    assert len(BY_NAME) == len(BY_CONFIG_NAME) == len(BY_ENUM) == 14
    assert BY_CONFIG_NAME["TYPE_STRING"] is BY_ENUM[13] is BY_NAME["BYTES"]
