"""One report of all: every part is there, nothing points outside, and a real browser shows it whole on a phone."""

import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from click.testing import CliRunner

import thalweg as tw
from planted import Letters, feed, talk
from thalweg.check.advice import Costs
from thalweg.check.figures import bars, histogram
from thalweg.check.overview import overview
from thalweg.check.profiles import Profile
from thalweg.cli import cli

BROWSER = next((b for n in ("chromium", "chromium-browser", "google-chrome") if (b := shutil.which(n))), None)


def whole():
    parts = {"talks": feed(), "more": feed(records=[talk(n, 3) for n in range(100, 140)])}
    mixed = tw.mix(parts, weights={"talks": 2, "more": 1}).shuffle().pack(256, overlong="drop").batch(1)
    profile = Profile("x", 10, 2.0, 9, 9, Costs(read=0.02, maps={"map(fn=encode)": 0.1}, train=0.08, waited=0.12))
    return overview(mixed, tokenizer=Letters(), profile=profile)


def test_every_part_is_in_the_report():
    report = whole()
    page = report.html()
    for words in (
        "Tokens of a sample", "Share of padding", "in the loss, in percent", "Tokens looked at by source",
        "Tokens of an epoch by rank", "Share of the time by stage", "<h2>Checks</h2>", "Samples, token by token",
        "prompts off the loss", "packed into rows of 256",
    ):  # fmt: skip
        assert words in page or words in str(report.verdicts), words
    assert page.count("<svg ") == 6
    assert '<span class="loss"' in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "<script" not in page


def test_a_histogram_counts_every_value_and_marks_the_capacity():
    svg = histogram("lengths", np.array([1, 5, 5, 31]), {"row": 32})
    assert sum(int(n) for n in re.findall(r": (\d+)</title>", svg)) == 4
    assert "row 32" in svg
    assert "median 5" in svg
    assert histogram("none", []) == ""
    assert bars("none", {}) == ""


def test_bars_are_as_long_as_their_numbers():
    svg = bars("tokens", {"rank 0": 100, "rank <1>": 50})
    wide = [float(w) for w in re.findall(r'width="([\d.]+)" height', svg)]
    assert wide[0] == 2 * wide[1]
    assert "rank &lt;1&gt;" in svg


def test_the_command_writes_the_report_with_a_profile_in_it(tmp_path):
    file = tmp_path / "feed_of_overview.py"
    file.write_text(
        "import thalweg as tw\nfeed = tw.from_dataset([{'input_ids': [1, 2, n]} for n in range(40)]).batch(2)\n"
    )
    Profile("x", 1, 1.0, 1, 1, Costs(read=1.0)).save(tmp_path / "p.json")
    page = tmp_path / "report.html"
    done = CliRunner().invoke(
        cli, ["doctor", f"{file}:feed", "--html", str(page), "--profile", str(tmp_path / "p.json")]
    )
    assert done.exit_code == 0, done.output
    assert "Share of the time by stage" in page.read_text("utf-8")
    page.unlink()
    for words in (["--html", str(page), "--profile", "nowhere.json"], ["--profile", str(tmp_path / "p.json")]):
        refused = CliRunner().invoke(cli, ["doctor", f"{file}:feed", *words])
        assert refused.exit_code in {1, 2}
        assert refused.stdout == ""
    assert not page.exists()


@pytest.mark.slow
@pytest.mark.skipif(not (BROWSER or "browser" in os.environ.get("THALWEG_REQUIRE", "")), reason="Chromium is missing")
@pytest.mark.parametrize("wide", [390, 1280])
def test_a_real_browser_shows_it_whole_without_scrolling_sideways(wide, tmp_path):
    """Chromium lays the page out; the width of what it laid out must be that of the window."""
    measure = (
        "<script>document.title = [document.documentElement.scrollWidth, innerWidth, document.querySelectorAll('svg')"
        ".length, [...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().width > 100),"
        "getComputedStyle(document.querySelector('.loss')).backgroundColor].join(' ')</script>"
    )
    assert BROWSER, "THALWEG_REQUIRE says that a browser is here"
    page = tmp_path / "report.html"
    page.write_text(whole().html().replace("</body>", f"{measure}</body>"), "utf-8")
    command = [
        BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile",
        f"--window-size={wide},900", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    title = re.search(r"<title>([^<]*)</title>", done.stdout)
    assert title, done.stderr[-1500:]
    scroll, window, drawings, drawn, colour = title.group(1).split(" ", 4)
    assert int(scroll) <= int(window)
    assert int(drawings) == 6
    assert drawn == "true"
    assert colour != "rgba(0, 0, 0, 0)"
