"""Where a service was promised, its absence is a failure: THALWEG_REQUIRE=slurm,s3,ray,media,browser, as CI says it.

Elsewhere a test that needs a package which is not installed is skipped, and says which.
"""

import os
import re

import pytest

PACKAGES = {"s3": ("s3fs", "moto", "boto3"), "media": ("PIL", "av", "soundfile"), "ray": ("ray",)}


def judged(report):
    """Make a failure of a skip for want of a package that is required here."""
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        missing = re.search(r"could not import '(\w+)", reason)
        asked = os.environ.get("THALWEG_REQUIRE", "").split(",")
        if missing and any(missing[1] in PACKAGES.get(service, ()) for service in asked):
            report.outcome, report.longrepr = "failed", f"{reason}; THALWEG_REQUIRE says that it is here"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Judge a module that skips itself."""
    return judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Judge a test, or a fixture of it, that skips."""
    return judged((yield))
