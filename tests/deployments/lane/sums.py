"""A model with sequences, whose sums say which requests it has had."""

import asyncio

import orjson
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.core import loader
from deployments.core.clock import LoopClock
from deployments.core.core import Core
from deployments.lane.slow_codec import SlowCodec
from deployments.replica.served_model import ServedModel
from protocol.http_infer import HttpInferCodec
from protocol.limits import DEFAULT_LIMITS
from repository_loader.normalisation import normalise
from repository_loader.package import InstanceSpec, ModelPackage
from tests.deployments.fakes import slow_queue

SUMS = """
    backend: "dyna_sequence" max_batch_size: 8
    input { name: "INPUT" data_type: TYPE_INT32 dims: 1 } output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }
    sequence_batching { oldest { max_candidate_sequences: 20000 } max_sequence_idle_microseconds: 60000000
        control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
        control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }
        control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
        control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } }
"""


async def sums():
    """Return a model of sums, loaded as a replica loads it."""
    config = text_format.Parse(SUMS, ModelConfig())
    config.name = "echo"
    list(normalise(config, ()))
    clock = LoopClock(asyncio.get_running_loop())
    package = ModelPackage("echo", 1, config, "", "", "")
    model = await loader.load(package, [InstanceSpec("echo_0", "CPU", 0)], clock, Core(clock))
    codecs = (HttpInferCodec(model.signature, "1", DEFAULT_LIMITS),)
    served = ServedModel(model, codecs, SlowCodec(codecs, slow_queue()))
    served.interface = ""  # the harness's: it takes the place of what is there
    return served


def body(sequence_id, value, *, start=False, end=False):
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [value]}
    parameters = {"sequence_id": sequence_id, "sequence_start": start, "sequence_end": end}
    return orjson.dumps({"inputs": [tensor], "parameters": parameters})
