"""The parts of a small Qwen-VL."""

import pytest

pytest.importorskip("PIL")
pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def image_processor():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=28 * 28 * 16)


@pytest.fixture(scope="session")
def feature_extractor():
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor(feature_size=128, sampling_rate=16_000, hop_length=160, chunk_length=30, n_fft=400)
