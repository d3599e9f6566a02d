"""The simulation finds defects that are put back, each within a stated number of seeds; see docs/simulation.md."""

from __future__ import annotations

import pytest

from .defects import DEFECTS, put_back
from .run import quiet, run

#: The seed that found it last, which is tried first.
FOUND = {
    "a silent peer is closed when it has read everything": 86,
    "receipts go out before the sync": 0,
    "metadata of a group that failed is forgotten": 6,
    "names are never synced": 0,
}
WITHIN = 150


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name: str) -> None:
    with quiet(), put_back(name):
        for seed in (FOUND[name], *range(WITHIN)):
            if run(seed).violation is not None:
                return
    raise AssertionError(f"no seed below {WITHIN} finds: {name}")
