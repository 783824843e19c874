"""Megatron's files as a source: the same tokens as its own reader gives, blends by their weights."""

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import ConfigError, InputError
from thalweg.store.formats.megatron import BinIdxWriter

WORDS = {"web": 300, "code": 120}


@pytest.fixture
def corpora(tmp_path):
    rng = np.random.default_rng(0)
    for name, n in WORDS.items():
        with BinIdxWriter(tmp_path / name, vocab_size=1000) as writer:
            for _ in range(n):
                writer.write({"input_ids": rng.integers(1, 900, rng.integers(1, 80))})
    return tmp_path


def test_tokens_and_lengths_are_those_of_megatrons_own_reader(corpora):
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    theirs = indexed.IndexedDataset(str(corpora / "web"))
    feed = tw.from_megatron(corpora / "web")
    source = feed.stages[0].source
    assert source.lengths.tolist() == theirs.sequence_lengths.tolist()
    order = np.random.default_rng(1).permutation(len(theirs))
    got = source.read(order)["input_ids"]
    assert got.values.dtype == np.int32
    for at, i in enumerate(order.tolist()):
        assert got[at].tolist() == theirs[i].tolist()


def test_a_pretraining_row_holds_every_token_and_the_table_counts_its_labels(corpora):
    feed = tw.from_megatron(str(corpora / "web.idx")).shuffle().pack(128, policy="concat_split")
    total = feed.stages[0].source.lengths.sum()
    loader = tw.Loader(feed.batch(2, collate="megatron"), tail="pad", return_tensors="np")
    batches = list(loader)
    assert sum(b.info.num_tokens for b in batches) == total
    assert all(b.info.step_label_tokens == b.info.num_label_tokens == b["loss_mask"].sum() for b in batches)


def test_a_blend_list_is_a_mix_by_tokens(corpora):
    web, code = str(corpora / "web"), str(corpora / "code")
    for blend in (["0.7", web, "0.3", code], f"70 {web} 30 {code}"):
        loader = tw.Loader(tw.from_megatron(blend).shuffle().batch(1), return_tensors="np")
        tokens = {web: 0, code: 0}
        for b in loader:
            tokens[b.info.sources[0][0]] += b.info.num_tokens
        assert tokens[web] / sum(tokens.values()) == pytest.approx(0.7, abs=0.03)
    assert "mix" in str(tw.from_megatron([web, code]))
    assert tw.from_megatron([web]).fingerprint == tw.from_megatron(web).fingerprint


@pytest.mark.parametrize("blend", [[], ["0.5", "web", "code"], ["web", "0.5"], ["1", "web", "1", "web"]])
def test_what_is_no_blend_is_refused(corpora, blend):
    with pytest.raises(ConfigError, match="blend"):
        tw.from_megatron([str(corpora / b) if b in WORDS else b for b in blend])


def test_other_data_has_another_fingerprint_and_a_missing_pair_is_named(corpora, tmp_path):
    prints = {name: tw.from_megatron(corpora / name).fingerprint for name in WORDS}
    assert len(set(prints.values())) == 2
    data = np.fromfile(corpora / "web.bin", np.uint16)
    data[0] += 1
    data.tofile(corpora / "web.bin")
    assert tw.from_megatron(corpora / "web").fingerprint != prints["web"]
    with pytest.raises(InputError, match="no such index"):
        tw.from_megatron(tmp_path / "nothing")


def test_an_index_that_points_outside_its_data_is_refused(corpora):
    raw = bytearray((corpora / "web.idx").read_bytes())
    at = 34 + 4 * WORDS["web"] + 8 * 7
    for place, words in ((1 << 40, "its index says"), (-8, "places below 0")):
        raw[at : at + 8] = place.to_bytes(8, "little", signed=True)
        (corpora / "web.idx").write_bytes(bytes(raw))
        with pytest.raises(InputError, match=words):
            tw.from_megatron(str(corpora / "web"))
