import os
import threading
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from thalweg.core.errors import ConfigError, InputError
from thalweg.encode.qwen import byte_alphabet, qwen_tokenizer
from thalweg.encode.tokens import Vocabulary, load_tokenizer, tokenizer_digest


def test_the_made_tokenizer_has_the_ids_of_the_model_family(qwen):
    assert len(qwen) == 151_669
    assert (qwen.eos_token_id, qwen.pad_token_id) == (151_645, 151_643)
    assert qwen("Hello, world", add_special_tokens=False).input_ids == [9707, 11, 1879]
    assert qwen.decode(qwen("中文 \U0001f600 e\u0301").input_ids) == "中文 \U0001f600 \u00e9"


@pytest.mark.slow
def test_two_processes_that_make_the_tokenizer_at_once_get_one_whole_directory(tmp_path):
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        paths = set(pool.map(qwen_tokenizer, [str(tmp_path)] * 2))
    assert len(paths) == 1
    (folder,) = paths
    assert os.listdir(tmp_path / "tokenizers") == [os.path.basename(folder)]
    assert len(load_tokenizer(folder)) == 151_669


def test_a_path_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(InputError, match="no tokenizer loads from"):
        load_tokenizer(tmp_path)


def test_a_wrong_name_is_refused_soon_where_no_hub_answers(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens
    with pytest.raises(InputError, match=r"^TW200 there is no folder .*nowhere"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"no tokenizer loads from 'nowhere'") as told:
        load_tokenizer("nowhere")
    assert ".. Try" not in str(told.value)
    assert "".join(traceback.format_exception(told.value)).count("Traceback") == 1


def test_a_hub_whose_address_is_never_found_is_not_waited_for(monkeypatch):
    from thalweg.encode import hub

    found = threading.Event()

    def looks(*_, **__):
        found.wait(60)
        raise OSError("no such host")

    monkeypatch.setattr(hub, "urlopen", looks)
    assert not hub.answers("http://hub", patience=0.01)
    found.set()


def test_a_folder_of_ranks_alone_is_refused_with_how_to_convert_them(tmp_path):
    (tmp_path / "mine.tiktoken").write_text("YQ== 0\n")
    with pytest.raises(InputError, match=r"mine\.tiktoken holds ranks.*TikTokenConverter"):
        load_tokenizer(tmp_path)


def test_an_object_that_is_no_tokenizer_is_refused():
    with pytest.raises(ConfigError, match="no tokenizer of transformers"):
        load_tokenizer(3)


@pytest.mark.slow
def test_the_digest_follows_the_vocabulary_and_not_the_truncation(qwen):
    before = tokenizer_digest(qwen)
    qwen("a b c", truncation=True, max_length=2)
    assert tokenizer_digest(qwen) == before
    other = load_tokenizer(qwen_tokenizer())
    other.add_tokens(["<new>"])
    assert tokenizer_digest(other) != before


def test_every_token_stands_for_the_bytes_it_decodes_to(qwen):
    widths = Vocabulary.of(qwen).widths
    backend = qwen.backend_tokenizer
    letter = {c: bytes([b]) for b, c in enumerate(byte_alphabet())}
    for i in [*range(0, 151_643, 997), *range(151_643, 151_669)]:
        word = backend.id_to_token(i)
        raw = word.encode() if i >= 151_643 else b"".join(letter[c] for c in word)
        assert widths[i] == len(raw), word
