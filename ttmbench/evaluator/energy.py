"""Energy and CO2 of tasks, as codecarbon measures or estimates them for the whole machine; nothing is sent anywhere."""

from __future__ import annotations

import logging
import os
from typing import Any

from ttmbench.errors import UsageError
from ttmbench.types import Record

AUTO = "auto"
COUNTRY = "CODECARBON_COUNTRY_ISO_CODE"


class EnergyMeter:
    """Measures the machine while a task is under way.

    Args:
        country: ISO 3166-1 code of three letters; ``auto`` takes that of the environment (`COUNTRY`). Without a country
            there is energy and no CO2.

    Raises:
        UsageError: codecarbon is not installed, or does not know the country.
    """

    def __init__(self, country: str) -> None:
        try:
            from codecarbon import OfflineEmissionsTracker
            from codecarbon.input import DataSource
        except ImportError:
            raise UsageError("--energy needs the package codecarbon: pip install 'ttmbench[energy]'") from None
        self._country = country if country != AUTO else os.environ.get(COUNTRY)
        if self._country is not None and self._country not in DataSource().get_global_energy_mix_data():
            raise UsageError(
                f"--energy: codecarbon does not know the country {self._country}; give an ISO 3166-1 code of three "
                "letters, such as FRA"
            )
        logging.getLogger("codecarbon").setLevel(logging.CRITICAL)
        options = {"output_methods": [], "allow_multiple_runs": True, "log_level": "critical"}
        self._tracker: Any = OfflineEmissionsTracker(country_iso_code=self._country, **options)

    def start(self, task: str) -> None:
        """Begins to measure a task."""
        self._tracker.start_task(task)

    def stop(self, task: str) -> Record:
        """Ends it, and returns what the document records; nothing where codecarbon failed."""
        measured = self._tracker.stop_task(task)
        if measured is None:
            return {}
        co2 = {"co2_kg": float(measured.emissions), "country": self._country} if self._country else {}
        return {"energy_kwh": float(measured.energy_consumed), **co2}
