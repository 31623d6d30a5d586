"""The report of a finished run: tables, figures and the answer in words, as one web page and as Markdown.

Everything is made from the files in the run's folder. Equal files give equal bytes; only `durations.html`
and `durations.md` hold wall-clock numbers, which differ between any two runs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnscale.report.build import build_report

__all__ = ["build_report"]


def __getattr__(name: str) -> Any:
    # Late, so that who wants one light module of this package does not pay for, or depend on, all of it.
    if name == "build_report":
        return import_module("attnscale.report.build").build_report
    raise AttributeError(name)
