"""The fuzzer's target that needs the pipeline's compiled module, without the fuzzer: the inputs that it kept."""

from __future__ import annotations

import pytest
from heliograph_spark.decode.rows import COMPILED

from tests.fuzz import corpus
from tests.fuzz.targets import load


@pytest.mark.skipif(not COMPILED, reason="the pipeline's modules are not compiled")
def test_kept_inputs_show_no_defect() -> None:
    target = load("decoder")
    kept = corpus.load("decoder")
    assert kept, "scripts/fuzz --keep writes them"
    for data in [*target.seeds(), *kept]:
        target.run(data)
