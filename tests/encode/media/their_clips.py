"""A script: the frames of a clip through the video processor of transformers, as a user with torchvision has it.

Where torchvision is not installed, its few functions that the processor uses stand here, as torchvision has them: the
resize of frames of whole numbers is torch's own, with antialias. Arguments: settings as JSON, the clip, where to write.
"""

import enum
import importlib.machinery
import json
import sys
import types
from importlib.util import find_spec

import numpy as np
import torch


class InterpolationMode(enum.Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def resize(image, size, interpolation=InterpolationMode.BILINEAR, antialias=True):
    flat = image.reshape(-1, *image.shape[-3:])
    assert (flat.dtype, interpolation) == (torch.uint8, InterpolationMode.BICUBIC)
    if tuple(size) == tuple(image.shape[-2:]):
        return image
    made = torch.nn.functional.interpolate(flat, size=size, mode="bicubic", align_corners=False, antialias=antialias)
    return made.reshape(*image.shape[:-2], *size)


def normalize(image, mean, std, inplace=False):
    mean, std = (torch.as_tensor(v, dtype=image.dtype)[:, None, None] for v in (mean, std))
    return (image.sub_(mean) if inplace else image.sub(mean)).div_(std)


def stand_in():
    """Put modules named as those of torchvision in their places."""
    made = {}
    for name in ("", ".io", ".transforms", ".transforms.functional", ".transforms.v2", ".transforms.v2.functional"):
        module = types.ModuleType(f"torchvision{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, is_package=True)
        module.__path__, module.__version__ = [], "0.28.0"
        made[module.__name__] = sys.modules[module.__name__] = module
        above, _, last = module.__name__.rpartition(".")
        if above:
            setattr(made[above], last, module)
    made["torchvision.transforms"].InterpolationMode = InterpolationMode
    made["torchvision.transforms.functional"].pil_to_tensor = None
    functions = made["torchvision.transforms.v2.functional"]
    functions.InterpolationMode, functions.resize, functions.normalize = InterpolationMode, resize, normalize
    functions.grayscale_to_rgb = lambda image: image


def main():
    if find_spec("torchvision") is None:
        stand_in()
    import av
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    from transformers.video_utils import VideoMetadata

    settings, clip, into = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
    with av.open(clip) as container:
        rate = float(container.streams.video[0].average_rate)
        frames = np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])
    told = VideoMetadata(total_num_frames=len(frames), fps=rate, duration=len(frames) / rate)
    out = {}
    for name, one in settings.items():
        processor = Qwen3VLVideoProcessor(**one)
        made = processor(
            videos=[frames.transpose(0, 3, 1, 2)], video_metadata=[told], return_tensors="np", return_metadata=True
        )
        out[f"{name}_pixels"], out[f"{name}_grid"] = made["pixel_values_videos"], made["video_grid_thw"]
        out[f"{name}_frames"] = np.array(made["video_metadata"][0].frames_indices)
    np.savez(into, **out)


main()
