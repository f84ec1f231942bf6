"""Names of the figures, for what only lists them: `catalogue` imports the simulator."""

from typing import Final

FIGURE_NAMES: Final = (
    "andes-rate",
    "andes-overload",
    "tokenflow-a100",
    "tokenflow-4090",
    "tokenflow-h200",
    "annealing-v100-1",
    "annealing-v100-2",
    "annealing-v100-4",
)
"""Those of `catalogue.FIGURES`, in its order."""
