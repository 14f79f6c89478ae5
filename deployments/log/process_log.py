"""What Eagleray's own loggers of this process write, and where: Serve's log of the process, and the log file."""

import logging
from typing import Final

from deployments.log.line_format import FORMATTERS, ids_of_trace
from deployments.log.log_file import LogFile
from deployments.log.log_options import LogOptions
from deployments.log.slow_requests import SLOW
from deployments.log.traceback_limit import TracebackLimit

LOGGERS: Final = ("app", "deployments", "repository_loader", "protocol", "eagleray")
_SERVE: Final = "ray.serve"

# Logging reports a line that it cannot write, as on a full disk, to `sys.stderr`: in a replica, Serve's log. Serve
# writes there before it makes a replica, but after it has imported what that is made of.
logging.raiseExceptions = False


class ProcessLog(logging.Handler):
    """The handler of our loggers: a record that is on goes to Serve's handlers, and to the log file.

    Serve configures only its own logger, whose handlers write the process's file in Ray's log folder. In it our lines
    have the form that the settings say; Serve's own lines keep theirs, but for JSON.
    """

    def __init__(self, options: LogOptions) -> None:
        super().__init__()
        self._options = options
        self._limit = TracebackLimit()
        self._file: LogFile | None = None
        self._targets = list(logging.getLogger(_SERVE).handlers)
        self._forms = [_Form(target) for target in self._targets]
        self.apply(options)
        for name in LOGGERS:
            logger = logging.getLogger(name)
            logger.handlers = [*(each for each in logger.handlers if not isinstance(each, ProcessLog)), self]
            logger.propagate = not self._targets

    def apply(self, options: LogOptions) -> None:
        """Log by these options from now on."""
        if self._file is not None and self._file.path != options.log_file:
            self._file.close()
            self._file = None
        if options.log_file and self._file is None:
            self._file = LogFile(options.log_file)
        self._options = options
        SLOW.set_threshold(options.log_slow_requests_ms)
        for form in self._forms:
            form.ours = FORMATTERS[options.log_format]
        if self._file is not None:
            self._file.setFormatter(FORMATTERS[options.log_format])
        for name in LOGGERS:
            logging.getLogger(name).setLevel(options.threshold)

    def is_on(self, record: logging.LogRecord) -> bool:
        """Whether a record is of a level that is logged, for its model if it has one."""
        options = self._options
        if options.models:
            options = options.of(getattr(record, "model", None))
        return options.is_on(record.levelno)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, if it is of a level that is on."""
        if not self.is_on(record) or not self._limit.passes(record):
            return
        for target in self._targets:
            target.handle(record)
        if self._file is not None:
            self._file.handle(record)


class _Form(logging.Formatter):
    """Stands for the formatter of a handler of Serve's: our records, and with JSON all, have another form."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        # Serve collects records in a handler before the one that formats them.
        writer = getattr(handler, "target", None) or handler
        self._serves = writer.formatter or logging.Formatter()
        if isinstance(self._serves, _Form):
            self._serves = self._serves._serves
        self.ours = FORMATTERS["default"]
        writer.setFormatter(self)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        if record.name.partition(".")[0] in LOGGERS or self.ours is FORMATTERS["json"]:
            return self.ours.format(record)
        return self._serves.format(record) + ids_of_trace(
            vars(record)
        )  # what a model has printed may be of a traced request
