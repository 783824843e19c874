"""Whether a hub of models answers, so that a wrong name costs seconds where there is no network.

Decides which names cannot be a hub's, and how long an answer may take. Loads nothing.
"""

from http.client import HTTPException
from ssl import SSLError
from threading import Thread
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

PATIENCE = 5.0  # seconds; the client of the hub tries for about a minute


def may_be_name(text: str) -> bool:
    """Say whether a hub could know this name: `name` or `owner/name`, not a path."""
    parts = text.split("/")
    return len(parts) <= 2 and all(part and part[0] not in ".~" for part in parts) and "\\" not in text


def answers(endpoint: str, patience: float = PATIENCE) -> bool:
    """Ask a hub, through the proxy where one is set; any answer will do.

    Args:
        endpoint: http or https URL.
        patience: seconds, those of finding its address included: only a thread of its own can be left in that.
    """
    found: list[bool] = []
    asking = Thread(target=lambda: found.append(_asked(endpoint, patience)), name="thalweg-hub", daemon=True)
    asking.start()
    asking.join(patience)
    return found == [True]


def _asked(endpoint: str, patience: float) -> bool:
    try:
        with urlopen(Request(endpoint, method="HEAD"), timeout=patience):  # noqa: S310  (the hub's own setting)
            return True
    except HTTPError:
        return True
    except URLError as error:
        return isinstance(error.reason, SSLError)  # it is there: the client has certificates of its own
    except (OSError, ValueError, HTTPException):
        return False
