"""What is kept of configurations."""

import tracemalloc

from app.metrics.config_facts import ConfigFacts, config_facts

CONFIG_BYTES = 100_000


def config(max_batch_size: int) -> str:
    return f'{{"max_batch_size":{max_batch_size},"metric_tags":{{"team":"{"x" * CONFIG_BYTES}"}}}}'


def test_of_a_model_that_is_loaded_anew_the_last_configuration_is_kept() -> None:
    tracemalloc.start()
    try:
        for size in range(50):
            assert config_facts("m", config(size)).max_batch_size == size
        assert tracemalloc.get_traced_memory()[0] < 5 * CONFIG_BYTES
    finally:
        tracemalloc.stop()


def test_models_with_the_same_configuration_and_with_none_have_its_facts() -> None:
    assert config_facts("a", config(1)) == config_facts("b", config(1))
    assert config_facts("a", "") == ConfigFacts() and config_facts("b", config(1)).max_batch_size == 1


def test_tags_whose_labels_would_be_the_same_are_one_label() -> None:
    text = '{"metric_tags": {"a-b": "1", "a.b": "2", "a_b": "3", "c": "4"}}'
    assert config_facts("tagged", text).tags == (("_a_b", "3"), ("_c", "4"))
