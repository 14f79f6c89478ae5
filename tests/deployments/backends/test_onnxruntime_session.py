"""How a session of ONNX Runtime is set up."""

import os

import numpy as np
import psutil
import pytest
from onnx_models import CPU, DOUBLING, load, package_of, run

from deployments.backends.backend import ModelLoadError
from deployments.backends.onnxruntime import OnnxRuntimeBackend
from deployments.core import loader

F = np.float32


def test_session_is_set_up_as_configured(doubling):
    text = DOUBLING + (
        "optimization { graph { level: 2 } } "
        'parameters { key: "intra_op_thread_count" value { string_value: "1" } } '
        'parameters { key: "execution_mode" value { string_value: "1" } } '
        'parameters { key: "enable_mem_pattern" value { string_value: "false" } } '
        'parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "cpu:0" } } '
    )
    (instance, _) = OnnxRuntimeBackend().load(package_of(doubling, text, {"inter_op_thread_count": "3"}), CPU)
    options = instance._model._session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 3)
    assert "DISABLE_ALL" in str(options.graph_optimization_level) and "PARALLEL" in str(options.execution_mode)
    assert not options.enable_mem_pattern and options.enable_cpu_mem_arena
    assert run(instance, {"X": F([[1, 2]])})[0].outputs["Y"].tolist() == [[2, 4]]


@pytest.mark.parametrize(("cores", "threads"), [(2, 2), (8, 8), (12, 8), (16, 0)])
def test_a_session_has_no_more_threads_than_there_are_cores_for_this_process(doubling, monkeypatch, cores, threads):
    """0: ONNX Runtime starts one for each physical core of the machine, which here has 8 of them, with two threads each."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None if logical else 8)
    (instance, _) = load(doubling, DOUBLING)
    options = instance._model._session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (threads, threads)


@pytest.mark.parametrize("spins", ["", "0", "1"])
def test_threads_spin_shortly_unless_told_otherwise(doubling, spins):
    key = "session.intra_op.allow_spinning"
    more = f'parameters {{ key: "{key}" value {{ string_value: "{spins}" }} }}' if spins else ""
    options = load(doubling, DOUBLING + more)[0]._model._session.get_session_options()
    assert options.get_session_config_entry(key) == (spins or "1")
    if spins:
        with pytest.raises(RuntimeError, match="does not have configuration"):
            options.get_session_config_entry("session.intra_op.spin_duration_us")
    else:
        assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "20"


def test_value_of_backend_config_that_cannot_be_read_is_named(doubling):
    with pytest.raises(ModelLoadError, match="'intra_op_thread_count' is not an integer: 'all'"):
        loader.prepare(package_of(doubling, DOUBLING, {"intra_op_thread_count": "all"}), CPU)
