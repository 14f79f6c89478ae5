"""The codecs with which a model version takes requests from lanes, and from the ingress of its process."""

from deployments.lane.wire import WireCodec
from deployments.replica.device_memory import visible_gpus
from deployments.replica.hosted_model import HostedModel
from deployments.replica.shared_memory import Regions
from protocol.grpc_infer import GrpcInferCodec
from protocol.grpc_stream import GrpcStreamCodec
from protocol.http_infer import HttpInferCodec
from protocol.limits import Limits
from protocol.signature import Signature
from repository_loader.gpu_inputs import keeps_inputs_on_gpus


def wire_codecs(
    signature: Signature,
    version: str,
    limits: Limits,
    labels: dict[str, list[str]],
    regions: Regions,
    *,
    on_gpus: bool,
) -> tuple[WireCodec, ...]:
    """Return a model version's codecs, in the order of the wire forms."""
    given = regions, regions if on_gpus else None
    grpc = GrpcInferCodec(signature, version, limits, labels, *given)
    return HttpInferCodec(signature, version, limits, labels, *given), grpc, GrpcStreamCodec(grpc)


def input_gpus(hosted: HostedModel) -> tuple[str, ...]:
    """Return the GPUs of this process from whose memory a model takes inputs as they are; blocks."""
    config = hosted.package.config
    on_gpus = bool(hosted.specs) and all(keeps_inputs_on_gpus(config, spec) for spec in hosted.specs)
    return visible_gpus() if on_gpus else ()
