import re
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.ensemble_validation import check_ensemble
from tests.deployments.schedulers.test_ensemble import Bench, array, model

PAGE = (Path(__file__).parents[2] / "docs" / "ensembles.md").read_text()


@pytest.mark.parametrize(("score", "label"), [(0.5, 2), (0.95, 1)])
def test_the_example_asks_the_large_model_when_the_small_one_is_not_sure(score: float, label: int) -> None:
    found = re.search(r"```pbtxt\n(.*?)```", PAGE, re.DOTALL)
    assert found
    config = text_format.Parse(found[1], ModelConfig())
    small, large = model("small", "X:64", "SCORE:1 LABEL:1", 8), model("large", "X:64", "LABEL:1", 8)
    for output in (small.output[1], large.output[0]):
        output.data_type = config.output[0].data_type
    assert list(check_ensemble(config)) == []
    bench = Bench(config, small, large)
    bench.submit(rows=2, inputs={"IMAGE": array(2, 64)})
    bench.router.answer("small", SCORE=array(2, 1, value=score), LABEL=np.full((2, 1), 1))
    if label == 2:
        bench.router.answer("large", LABEL=np.full((2, 1), 2))
    bench.clock.run()
    np.testing.assert_array_equal(bench.answers.results["r"].outputs["LABEL"], np.full((2, 1), label))
