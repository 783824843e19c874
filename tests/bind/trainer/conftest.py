"""Tests here share a tiny model and its data: `tiny`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
