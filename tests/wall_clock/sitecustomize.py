"""A wall clock that a test sets: every Python process that has this folder on its PYTHONPATH follows it.

The file at WALL_CLOCK_FILE holds by how many nanoseconds it is ahead, as a 64-bit integer. What is not Python (raylet,
GCS, the kernel) goes by the machine's own clock.
"""

import ctypes
import datetime
import gc
import mmap
import os
import time
from functools import partial
from typing import Any

with open(os.environ["WALL_CLOCK_FILE"], "rb") as _file:
    _ahead_ns = memoryview(mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)).cast("q")

_time_ns, _clock_gettime_ns = time.time_ns, time.clock_gettime_ns


def _now_ns() -> int:
    return _time_ns() + _ahead_ns[0]


def _now_s() -> float:
    return _now_ns() / 1e9


def _gettime_ns(clock: int) -> int:
    return _now_ns() if clock == time.CLOCK_REALTIME else _clock_gettime_ns(clock)


def _by_default_now(function: Any, secs: float | None = None) -> Any:
    return function(_now_s() if secs is None else secs)


def _formatted(function: Any, form: str, parts: Any = None) -> str:
    return str(function(form, time.localtime() if parts is None else parts))


# As the functions of the module they are no methods where a class has them: `logging.Formatter.converter`.
for _name, _function in (
    ("time", _now_s),
    ("time_ns", _now_ns),
    ("clock_gettime_ns", _gettime_ns),
    ("clock_gettime", lambda clock: _gettime_ns(clock) / 1e9),
    ("localtime", partial(_by_default_now, time.localtime)),
    ("gmtime", partial(_by_default_now, time.gmtime)),
    ("ctime", partial(_by_default_now, time.ctime)),
    ("strftime", partial(_formatted, time.strftime)),
):
    setattr(time, _name, partial(_function))


def _replace(kind: type, **functions: Any) -> None:
    """Give a built-in class other class methods: a class in its place would not be that of the values there are."""
    members = gc.get_referents(kind.__dict__)[0]
    members.update({name: classmethod(function) for name, function in functions.items()})
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


_replace(datetime.date, today=lambda cls: cls.fromtimestamp(_now_s()))
_replace(
    datetime.datetime,
    now=lambda cls, tz=None: cls.fromtimestamp(_now_s(), tz),
    utcnow=lambda cls: cls.fromtimestamp(_now_s(), datetime.UTC).replace(tzinfo=None),
    today=lambda cls: cls.fromtimestamp(_now_s()),
)
