"""A small data set where a configuration looks for it: real clips and sounds, made here. Decides what is said in it."""

import json
from pathlib import Path

import av
import numpy as np
import soundfile
from PIL import Image


def clip(path: Path, seed: int, frames: int = 24) -> None:
    """Write a moving wave, 12 frames a second."""
    x, y = np.meshgrid(np.linspace(0, 1, 96), np.linspace(0, 1, 64))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=12)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for i in range(frames):
            wave = np.stack([np.sin(9 * x * k + 5 * y + i / 3 + seed) * 100 + 120 for k in (1, 2, 3)], -1)
            picture = Image.fromarray(wave.clip(0, 255).astype(np.uint8))
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode())


def sound(path: Path, seed: int, seconds: float) -> None:
    """Write a tone, 16,000 samples a second."""
    t = np.arange(int(16_000 * seconds)) / 16_000
    soundfile.write(path, (np.sin((200 + 40 * seed) * t) * 0.3).astype(np.float32), 16_000)


def say(text: str, answer: str, **media: list[str]) -> dict:
    turns = [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
    return {"messages": turns, "videos": media.get("videos", []), "audios": media.get("audios", [])}


def make(file: str | Path, dataset_dir: str | Path, count: int = 48) -> Path:
    """Write `count` conversations to a file, with their media below dataset_dir, unless they are there."""
    file, folder = Path(file), Path(dataset_dir) / "clips"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        for i in range(4):
            clip(folder / f"{i}.mp4", i)
            sound(folder / f"{i}.wav", i, 1 + i / 2)
        rows = []
        for i in range(count):
            both = {"videos": [f"clips/{i % 4}.mp4"], "audios": [f"clips/{i % 4}.wav"]}
            rows += [
                say(f"What is number {i}?", f"It is {i}."),
                say("<video><audio>What moves?", f"Wave {i % 4}.", **both),
                say("<audio>What sounds?", f"Tone {i % 4}.", audios=both["audios"]),
            ]
        file.write_text(json.dumps(rows[:count]))
    assert len(json.loads(file.read_text())) == count
    return file


assert say("q", "a")["messages"][-1]["role"] == "assistant"
