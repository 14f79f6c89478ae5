"""Configurations that clients send with their loads, as the controller reads them."""

import asyncio
from pathlib import Path

import pytest

from protocol.errors import InvalidArgument
from tests.deployments.control.test_model_commands import explicit, failed_at_the_start
from tests.repository_loader.repositories import python_model, write


def test_the_loop_goes_on_while_a_configuration_is_read_and_a_large_one_is_refused(tmp_path: Path) -> None:
    options = explicit(write(tmp_path, python_model("m")))

    async def scenario() -> None:
        _, _, commands = await failed_at_the_start(options)
        for number, config in enumerate(("{", f'{{"name": "{"ż" * (1 << 19)}"}}')):
            loading = asyncio.create_task(commands.load(str(number), "m", config, {}))
            await asyncio.sleep(0)
            assert not loading.done()
            with pytest.raises(InvalidArgument, match=r"^failed to load 'm', Invalid config override: ") as raised:
                await loading
        assert raised.value.message.endswith("the configuration has more than the allowed 1048576 bytes")

    asyncio.run(asyncio.wait_for(scenario(), 60))
