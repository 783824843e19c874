"""Real files in every form, made for tests: photographs, sounds and a clip."""

import numpy as np
import pytest


def picture(width, height, seed=0):
    Image = pytest.importorskip("PIL.Image")  # noqa: N806
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    waves = [np.sin(9 * x * k + 5 * y + seed) * 100 + 120 for k in (1, 2, 3)]
    noise = rng.integers(0, 30, (height, width, 3))
    return Image.fromarray((np.stack(waves, -1) + noise).clip(0, 255).astype(np.uint8))


def write(folder):
    """Write all of them into a folder."""
    soundfile = pytest.importorskip("soundfile")
    av = pytest.importorskip("av")
    picture(320, 200, 1).save(folder / "wide.jpg")
    picture(90, 150, 2).save(folder / "tall.png")
    picture(64, 64, 3).convert("L").save(folder / "grey.png")
    t = np.arange(44_100 * 2) / 44_100
    soundfile.write(folder / "stereo.wav", np.stack([np.sin(440 * t), np.cos(330 * t)], -1) * 0.4, 44_100)
    soundfile.write(folder / "mono.flac", np.sin(500 * np.arange(16_000) / 16_000) * 0.3, 16_000)
    with av.open(str(folder / "clip.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for i in range(35):
            frame = av.VideoFrame.from_image(picture(96, 64, i))
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return folder
