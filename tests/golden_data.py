"""Where the golden vectors are: the committed selection, and the whole set where it lies beside us.

The vectors were recorded from openpi itself; tests/golden/README.md says how. A test that takes the
`golden` fixture of a conftest, or parametrises over `golden_roots()`, runs on both.
"""

from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
COMPACT = REPO / "tests" / "golden"
FULL = REPO.parent / "shared" / "golden"


def golden_roots() -> list[Path]:
    """The folders that hold golden vectors here, the committed selection first."""
    return [root for root in (COMPACT, FULL) if root.is_dir()]
