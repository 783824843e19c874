"""The quality rules decide, and give the reasons, that the datatrove package's blocks do on real texts."""

import pytest
from filter_parity import CHAT, OURS, compare, corpora, instructions, pages, sources, theirs, unexplained, verdict

from thalweg.core.document import Document
from thalweg.steps import (
    C4ParagraphFilter,
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from thalweg.steps.filters.words import sentences_of, words_of


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("corpus", [pages, instructions, sources])
@pytest.mark.parametrize("ours", OURS, ids=lambda c: c.__name__)
def test_decisions_and_reasons_equal_theirs(ours, corpus):
    pytest.importorskip("datatrove")
    if corpus is not sources and not CHAT.exists():
        pytest.skip(f"{CHAT} is not here")
    with theirs(words_of, sentences_of) as filters:
        assert unexplained(ours, compare(ours, filters, corpus())) == []


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_decisions_and_reasons_equal_theirs_on_20_000_documents_of_three_corpora():
    if not CHAT.exists():
        pytest.skip(f"{CHAT} is not here")
    found = corpora(20_000)
    assert sum(map(len, found.values())) == 20_000
    with theirs(words_of, sentences_of) as filters:
        for ours in OURS:
            for texts in found.values():
                assert unexplained(ours, compare(ours, filters, texts)) == []


PROSE = "The river bends to the west, and that is where the deepest water of the valley flows. "


@pytest.mark.parametrize(
    ("rule", "text", "reason"),
    [
        (GopherQualityFilter, PROSE * 4, None),
        (GopherQualityFilter, PROSE, "gopher_short_doc"),
        (GopherQualityFilter, "extraordinarily incomprehensible " * 30, "gopher_above_avg_threshold"),
        (GopherQualityFilter, "a b " * 60, "gopher_below_avg_threshold"),
        (GopherQualityFilter, PROSE * 4 + "#" * 20, "gopher_too_many_hashes"),
        (GopherQualityFilter, PROSE * 4 + "wait... " * 20, "gopher_too_many_ellipsis"),
        (GopherQualityFilter, "\n".join(["- " + PROSE] * 5), "gopher_too_many_bullets"),
        (GopherQualityFilter, PROSE * 4 + "4711 " * 60, "gopher_below_alpha_threshold"),
        (GopherQualityFilter, "Wasser fließt immer abwärts " * 20, "gopher_enough_stop_words"),
        (GopherRepetitionFilter, "\n\n".join([PROSE] * 4), "dup_para_frac"),
        (GopherRepetitionFilter, "\n".join([PROSE] * 4), "dup_line_frac"),
        (GopherRepetitionFilter, "one two " * 40, "top_2_gram"),
        (GopherRepetitionFilter, PROSE + "Below the bridge it slows, and gravel settles on the inner bank.", None),
        (FineWebQualityFilter, "one\ntwo\nthree", "line_punct_ratio"),
        (FineWebQualityFilter, "One.\nTwo.\nThree.", "short_line_ratio"),
        (FineWebQualityFilter, f"{PROSE.strip()}\n" * 3, "char_dup_ratio"),
        (FineWebQualityFilter, " \n", "empty"),
        (C4QualityFilter, PROSE * 3, "too_few_sentences"),
        (C4QualityFilter, "int main() { return 0; } is the shortest program.", "curly_bracket"),
        (C4QualityFilter, "Lorem ipsum dolor sit amet.", "lorem_ipsum"),
        (C4ParagraphFilter, f"{PROSE * 3}\n" * 3, None),
        (C4ParagraphFilter, PROSE * 9, "< 3 paragraphs"),
    ],
)
def test_each_rule_gives_its_reason(rule, text, reason):
    assert verdict(rule().filter(Document(text, "x")))[1] == reason


def test_c4_keeps_the_good_lines_and_counts_the_others():
    lines = [PROSE.strip()] * 5 + [
        "no end",
        "Please enable javascript to see this.",
        "Read our privacy policy now.",
        "Too few.",
    ]
    lines.append(PROSE.strip() + "[12]")
    doc, rule = Document("\n".join(lines), "x"), C4QualityFilter()
    assert rule.filter(doc) is True
    assert doc.text == "\n".join([PROSE.strip()] * 6)
    counts = {label: m.total for label, m in rule.stats.stats.items()}
    assert counts == {
        "line-total": 10, "line-kept": 6, "line-filter-no_terminal_punc": 1, "line-filter-javascript": 1,
        "line-filter-policy": 1, "line-filter-too_few_words": 1,
    }  # fmt: skip
