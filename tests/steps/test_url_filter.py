"""Addresses on lists: domain, subdomain, whole address and words, with the reasons of the datatrove package."""

import random

import pytest

from thalweg.core.document import Document
from thalweg.core.errors import ConfigError, SampleError
from thalweg.steps import URLFilter

pytest.importorskip("tldextract")
LISTS = {
    "extra_domains": ["bad.co.uk", "ads.fine.org", "# a note"],
    "extra_urls": ["http://ok.com/one?page=1"],
    "banned_words": ["Casino!", "poker"],
    "banned_subwords": ["free-money", "xxx"],
    "soft_banned_words": ["win", "cash", "prize"],
}


def reason(url, rule=None):
    verdict = (rule or URLFilter(**LISTS)).filter(Document("t", "d", metadata={"url": url}))
    return "" if verdict is True else verdict[1]


def test_each_list_drops_what_it_names_and_says_why():
    assert reason("https://www.bad.co.uk/page") == "domain"
    assert reason("https://ads.fine.org/x") == "subdomain"
    assert reason("https://www.fine.org/x") == ""
    assert reason("http://ok.com/one?page=1") == "url"
    assert reason("http://ok.com/one?page=2") == ""
    assert reason("http://a.com/my-poker-night") == "hard_blacklisted"
    assert reason("http://a.com/mypokernight") == ""
    assert reason("http://a.com/win-cash") == "soft_blacklisted"
    assert reason("http://a.com/win-win") == ""
    assert reason("http://a.com/get-freemoney-now") == "blacklisted_subword"


def test_a_filter_without_a_list_and_a_document_without_an_address_are_refused():
    with pytest.raises(ConfigError, match=r"no list.*extra_domains"):
        URLFilter()
    with pytest.raises(SampleError, match="no url"):
        URLFilter(**LISTS).filter(Document("t", "d7"))


# D5
@pytest.mark.filterwarnings("ignore")
def test_decisions_and_reasons_are_those_of_the_datatrove_package():
    theirs = pytest.importorskip("datatrove.pipeline.filters.url_filter")
    pytest.importorskip("ahocorasick")
    lists = LISTS | {"extra_domains": LISTS["extra_domains"][:2]}
    try:
        peer = theirs.URLFilter(**lists, use_integrated_lists=False)
    except ImportError as error:
        pytest.skip(f"datatrove's filter needs more: {error}")
    rng = random.Random(5)
    hosts = ["bad.co.uk", "x.bad.co.uk", "ads.fine.org", "fine.org", "a.com", "poker.net", "b.xxx.de", "10.0.0.1"]
    words = ["win", "cash", "prize", "poker", "casino", "free", "money", "xx", "x", "Page", "1", "Poker"]
    rule = URLFilter(**LISTS)
    for _ in range(2000):
        path = "".join(rng.choice(words) + rng.choice("-/_.=%") for _ in range(rng.randint(0, 4)))
        url = f"http://{rng.choice(hosts)}/{path}"
        said = peer.filter(Document("t", "d", metadata={"url": url}))
        assert reason(url, rule) == ("" if said is True else said[1]), url
