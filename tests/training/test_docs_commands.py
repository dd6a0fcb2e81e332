"""The commands of README.md and docs/ that measure or draw with real training, each at its smallest size (20 minutes).

Those that need no training: tests/unit/benchmarks/test_docs_commands.py. The table: `python -m tests.docs_commands run`.
"""

import pytest

from tests import docs_commands
from tests.project import EXHAUSTIVE


@pytest.mark.alone
@EXHAUSTIVE("benchmarks", "docs", "README.md", "control/sweep", "control/doctor", "control/report")
def test_all_that_measure_end_well():
    assert docs_commands.run([]) == 0
