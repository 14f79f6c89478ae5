import pytest

from deployments.schedulers.implicit_states import ImplicitStates, StateKeeper, default_states
from protocol.errors import Internal
from repository_loader.package import ModelPackage
from tests.deployments.fakes import Answers, config_of

STATE = 'state { input_name: "S" output_name: "S_OUT" data_type: TYPE_FP32 dims: [ 2, -1 ] }'


def config_with(max_batch_size=0):
    return config_of(f"max_batch_size: {max_batch_size} sequence_batching {{ {STATE} }}")


@pytest.mark.parametrize(("max_batch_size", "shape"), [(0, (2, 1)), (1, (1, 2, 1)), (4, (1, 2, 1))])
def test_a_state_has_a_row_where_its_model_batches(max_batch_size, shape):
    config = config_with(max_batch_size)
    begun = ImplicitStates(ModelPackage("m", 1, config, "", "", "")).begin()
    assert begun["S"].shape == default_states(config)["S"].shape == shape
    assert not begun["S"].any()


def test_an_error_of_a_decoupled_model_changes_no_state_and_is_passed_on():
    states = ImplicitStates(ModelPackage("m", 1, config_with(), "", "", ""))
    answers, kept = Answers(), states.begin()
    before = dict(kept)
    request = answers.request("r")
    StateKeeper(states, kept, None, request.reply)(request, Internal("no"))
    assert answers.error("r") == "Internal: no" and kept == before
