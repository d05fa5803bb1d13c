"""Forecast against measured over all drafts: `python -m tests.benchmarks.forecast_accuracy`.

Loads the bundled model and a random one on two virtual cards, split by split, and prints how
far each source was from what was measured, by mode and kind.
"""

import json
import sys
import tempfile
from pathlib import Path

from tests.engines.conftest import DEMO
from tests.engines.forecasting import BUNDLED_SPLITS, RANDOM_SPLITS, Miss, compared
from tests.engines.random_model import write_random
from workbench.domain.forecast import FROM_HEADER, FROM_LLAMA, KINDS
from workbench.engines.llama.forecaster import Forecaster

SOURCES = (FROM_LLAMA, FROM_HEADER)


def main() -> int:
    """Compare and print; 1 if a draft is too far off."""
    misses: list[Miss] = []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "engine.log"
        forecaster = Forecaster(log)
        random_model = write_random(Path(folder) / "random.gguf")
        for model, splits in ((DEMO, BUNDLED_SPLITS), (random_model, RANDOM_SPLITS)):
            for split, contexts in splits:
                misses += compared(model, split, contexts, forecaster, SOURCES, log)
        forecaster.release()
    worst = {
        f"{source}, {mode}": {
            kind: round(max(m.error_mib for m in misses if (m.source, m.tensor, m.kind) == (source, tensor, kind)), 3)
            for kind in KINDS
        }
        for source in SOURCES
        for mode, tensor in (("layer and none", False), ("tensor", True))
    }
    too_far = [f"{m.draft}: {m.card} {m.kind} by {m.source} {m.forecast_mib:.1f}, measured {m.measured_mib:.1f} MiB"
               for m in misses if m.too_far]  # fmt: skip
    drafts = len({m.draft for m in misses})
    print(json.dumps({"drafts": drafts, "worst_error_mib": worst, "too_far": too_far}, indent=2))
    return 1 if too_far else 0


if __name__ == "__main__":
    sys.exit(main())
