"""Settings of the analysis stages, apart from the stages so that the workflow reads them without their libraries."""

from pydantic import Field

from attnscale.config import Section, StatisticsConfig


class DifferencesSettings(Section):
    """What the table of differences depends on, besides the evaluations."""

    comparisons: tuple[tuple[str, str], ...] = Field(strict=False)
    """Pairs of an arm and what it is compared with."""
    training_length: int
    statistics: StatisticsConfig
