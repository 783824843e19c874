"""Folders of models: what their files say of the processor is what counts, wherever it stands."""

import json

from thalweg.encode.media.families import Media
from thalweg.encode.media.folders import told, told_of_clips
from thalweg.encode.media.models import media_of
from thalweg.encode.media.references import Folder


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


# B2
def test_a_folder_with_a_processor_config_alone_has_the_parts_that_it_names(
    image_processor, feature_extractor, media_files, tmp_path
):
    sees, hears = image_processor.to_dict(), feature_extractor.to_dict()
    place = Folder(str(media_files))
    whole = Media(image_processor, feature_extractor, folder=place)
    both = {"processor_class": "Qwen2_5OmniProcessor", "image_processor": sees, "feature_extractor": hears}
    found = media_of(str(write(tmp_path / "both", processor_config=both)), folder=place)
    for kind, name in (("image", "tall.png"), ("video", "clip.mp4"), ("audio", "mono.flac")):
        assert found.measure(kind, name) == whole.measure(kind, name)
    assert found.image_processor.to_dict() == image_processor.to_dict()
    assert found.feature_extractor.to_dict() == feature_extractor.to_dict()
    pictures = {"processor_class": "Qwen2VLProcessor", "image_processor": sees}
    found = media_of(str(write(tmp_path / "sees", processor_config=pictures)), folder=place)
    assert found.feature_extractor is None
    assert found.measure("image", "tall.png") == whole.measure("image", "tall.png")
    assert media_of(str(write(tmp_path / "text", processor_config={"processor_class": "Qwen2TokenizerFast"}))) is None
    assert media_of(str(write(tmp_path / "none"))) is None


# B9
def test_a_video_processor_in_a_processor_config_says_how_timed_clips_are_taken(image_processor, media_files, tmp_path):
    clips = {"size": {"shortest_edge": 2048, "longest_edge": 90_000}, "fps": 4, "cap_pixels_per_frame": True,
             "max_video_tokens": 2, "image_mean": [0.1, 0.2, 0.3]}  # fmt: skip
    config = {"processor_class": "Qwen3VLProcessor", "image_processor": image_processor.to_dict()}
    folder = write(tmp_path / "m", processor_config={**config, "video_processor": clips})
    found = media_of(str(folder), folder=Folder(str(media_files)))
    stamps = found.stamps
    assert (stamps.least, stamps.most, stamps.fps, stamps.capped, stamps.tokens) == (2048, 90_000, 4, True, 2)
    assert stamps.mean == (0.1, 0.2, 0.3)
    assert found.measure("video", "clip.mp4").grid[0] == 7  # 14 frames, two a step


def test_where_both_files_name_a_part_the_one_counts_that_transformers_reads(image_processor, tmp_path):
    newer = {**image_processor.to_dict(), "size": {"shortest_edge": 3136, "longest_edge": 7840}}
    folder = write(
        tmp_path / "m",
        preprocessor_config={**image_processor.to_dict(), "patch_size": 99},
        processor_config={"image_processor": newer, "video_processor": {"fps": 3}},
        video_preprocessor_config={"fps": 9},
    )
    assert told(folder)["patch_size"] == 14
    assert told_of_clips(folder) == {"fps": 3}
    assert media_of(str(folder)).image_processor.size["longest_edge"] == 7840
    (folder / "processor_config.json").unlink()
    assert told_of_clips(folder) == {"fps": 9}
    assert told(folder)["patch_size"] == 99
