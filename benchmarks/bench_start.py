"""What a start costs in CPU time: `import thalweg`, `thalweg --help`, beside the bare interpreter.

Each run starts twenty interpreters one after the other; CPU seconds by twenty are the figure to look at.
"""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import Case, Side, Work, main

STARTS = 20
HELP = "import sys; sys.argv = ['thalweg', '--help']; from thalweg.cli import main; main()"


def starting(code: str) -> Any:
    def start(_folder: Path, size: Mapping[str, Any]) -> Work:
        def run() -> int:
            for _ in range(size["starts"]):
                subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
            return int(size["starts"])

        return Work(run)

    return start


CASES = [
    Case(
        name="starts of an interpreter",
        unit="starts",
        sides={
            "import thalweg": Side(starting("import thalweg")),
            "thalweg --help": Side(starting(HELP)),
            "bare python": Side(starting("pass")),
            "import numpy": Side(starting("import numpy")),
        },
        sizes={"full": {"starts": STARTS}, "smoke": {"starts": 1}},
    )
]

if __name__ == "__main__":
    main(__file__, CASES)
