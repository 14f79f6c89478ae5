"""A configuration with a sentence on each of its fields."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.config_sentences import MAX_LINES, config_sentences
from repository_loader.field_rules import FIELDS

TESTS = Path(__file__).parents[1]
CONFIGS = [path for path in sorted((TESTS / "behaviours").glob("*/config.pbtxt")) if "unknown_field" not in str(path)]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.parent.name)
def test_the_lines_are_the_configuration(path: Path) -> None:
    config = text_format.Parse(path.read_text(), ModelConfig())
    lines = config_sentences(config)
    assert text_format.Parse("\n".join(text for text, _ in lines), ModelConfig()) == config


def test_every_field_has_a_sentence_or_is_in_one_that_has() -> None:
    unsaid = []
    for path in CONFIGS:
        spoken: list[str] = []
        for text, sentence in config_sentences(text_format.Parse(path.read_text(), ModelConfig())):
            depth = (len(text) - len(text.lstrip())) // 2
            del spoken[depth:]
            spoken.append(sentence)
            if text.strip() != "}" and not text.strip().startswith("parameters") and not any(spoken):
                unsaid.append(f"{path.parent.name}: {text}")
    assert not unsaid


def test_each_row_of_the_table_of_fields_is_found_by_its_path() -> None:
    config = text_format.Parse("dynamic_batching { max_queue_delay_microseconds: 5 }", ModelConfig())
    rule = FIELDS["dynamic_batching.max_queue_delay_microseconds"]
    assert config_sentences(config)[1] == ("  max_queue_delay_microseconds: 5", rule.meaning)


def test_keys_of_parameters_have_their_own_sentences() -> None:
    config = ModelConfig(backend="onnxruntime")
    keys = ("intra_op_thread_count", "eagleray.replicas", "autoscaling.max_replicas", "eagleray.when.0", "mine")
    for key in keys:
        config.parameters[key].string_value = "1"
    said = {
        text.split('"')[1]: sentence for text, sentence in config_sentences(config) if text.startswith("parameters")
    }
    assert [key for key in keys if not said[key]] == ["mine"]
    assert said["autoscaling.max_replicas"] == said["autoscaling.max_replicas"].strip() != ""


def test_a_long_configuration_is_cut() -> None:
    config = ModelConfig()
    for number in range(MAX_LINES):
        config.parameters[f"key_{number}"].string_value = "x"
    lines = config_sentences(ModelConfig(name="m", parameters=config.parameters))
    assert len(lines) == MAX_LINES + 1 and lines[-1][0] == "# …"
