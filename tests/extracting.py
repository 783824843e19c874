"""An extractor for tests, in a module that worker processes can import: pages may hang or kill their process."""

import os
import signal
import time

from thalweg.steps import Trafilatura


class Careful(Trafilatura):
    """Trafilatura that obeys two words."""

    def extract(self, text):
        """Hang, die, or extract."""
        if text == "HANG":
            self.hang()
        if text == "DIE":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().extract(text)

    @staticmethod
    def hang():
        """Never come back."""
        while True:
            time.sleep(3600)
