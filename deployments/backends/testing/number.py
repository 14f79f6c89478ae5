"""A number among the parameters of a model of the test backends."""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.parameters import read_integer


def number(config: ModelConfig, name: str) -> int:
    """Return a number of `parameters`, 0 without it or when it is negative."""
    values = {key: value.string_value for key, value in config.parameters.items()}
    return max(0, read_integer(config.name, values, name))
