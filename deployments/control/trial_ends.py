"""What becomes of trials: models that are ready replace what ran before, those that are not give way to it."""

import asyncio
import logging
from collections.abc import Sequence

from deployments.control.controller_options import ControllerOptions
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import DesiredState, Trial, committed, reverted
from deployments.control.model_commands import load_error, log_failures
from deployments.control.model_table import ModelTable
from deployments.control.status_reader import Verdict

logger = logging.getLogger(__name__)


class TrialEnds:
    """Ends trials in the desired state; one that has ended otherwise meanwhile is passed over."""

    def __init__(self, options: ControllerOptions, state: CurrentState, table: ModelTable) -> None:
        self._options = options
        self._state = state
        self._table = table

    async def take(self, verdicts: Sequence[Verdict]) -> None:
        """Do what verdicts ask for.

        Those that say that all is ready make one change, as each is stored, and told to all, with every model there is.
        """
        await self._succeed([verdict.trial for verdict in verdicts if verdict.succeeds])
        for verdict in verdicts:
            if not verdict.succeeds:
                await self._end(verdict)

    async def _succeed(self, trials: Sequence[Trial]) -> None:
        async with self._state.lock:
            desired = self._state.desired
            ended = [trial for trial in trials if _is_open(trial, desired)]
            if desired is None or not ended:
                return
            for trial in ended:
                self._table.succeed(trial.before)
            await self._state.change(await asyncio.to_thread(committed, self._options, desired, *ended))

    async def _end(self, verdict: Verdict) -> None:
        trial = verdict.trial
        async with self._state.lock:
            desired = self._state.desired
            if desired is None or not _is_open(trial, desired):
                return
            names = ", ".join(trial.before)
            if verdict.reasons:
                error = load_error(trial.asked, verdict.reasons)
                log_failures(verdict.reasons)
                after = await asyncio.to_thread(reverted, self._options, desired, trial, verdict.reasons, error)
            elif trial.postponed:
                logger.warning("there is no room for %s after all, which waits on", names)
                after = await asyncio.to_thread(reverted, self._options, desired, trial, {}, "")
            else:
                logger.warning("there is no room for %s beside what ran before, which goes", names)
                self._table.lose_places(trial.before)
                after = await asyncio.to_thread(committed, self._options, desired, trial)
            await self._state.change(after)


def _is_open(trial: Trial, desired: DesiredState | None) -> bool:
    return desired is not None and any(trial is each for each in desired.trials)
