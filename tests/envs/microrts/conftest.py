"""The Java engine of microRTS for tests that compare with it."""

from __future__ import annotations

from typing import Any

import pytest

from rljax.core.errors import RljaxError


@pytest.fixture(scope="session")
def java() -> Any:
    from rljax.run.microrts.install import is_there, microrts_folder
    from rljax.run.microrts.java import start_java

    if not is_there(microrts_folder()):
        pytest.skip("the Java engine of microRTS is not here: rljax.run.microrts.install.fetch_microrts fetches it")
    try:
        return start_java()
    except RljaxError as error:
        pytest.skip(str(error))
