"""Ordered maps in the background beside torch's DataLoader, torchdata.nodes, SPDL, Grain and the reference's algorithm.

One map over a stream, outputs in the order of the stream: calls that cost nothing, that wait, that hold the
interpreter's lock and that release it, small and large results from processes, JPEG pictures, a loop bound by training.
"""

import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from harness import Case, Side, Work, main
from stream_peers import grain, nodes, reference, spdl, torch_loader
from stream_work import BLOB, CALLS, first, length, running, work

TORCH = "torch==2.13.0"
NODES = (TORCH, "torchdata==0.11.0", "numpy==2.4.6")
SPDL = ("spdl==0.8.0", "numpy==2.4.6")
GRAIN = ("grain==0.2.18",)
LOADER = (TORCH, "numpy==2.4.6")

# ---- ours


def ours(call: str, workers: int, **more: Any) -> Callable[[Path, Mapping[str, Any]], Work]:
    def start(_folder: Path, size: Mapping[str, Any]) -> Work:
        from thalweg.work.budget import ByteBudget
        from thalweg.work.ordered import OrderedMap

        fn = CALLS[call]

        def make() -> Iterable[Any]:
            return OrderedMap(
                range(size["items"]), lambda i: [fn(i)], workers=workers, ahead=256, chunk=None,
                budget=ByteBudget(1 << 30),
            )  # fmt: skip

        return work(make, **more)

    return start


class Outputs:
    """A call as the map wants it: a list of outputs. A class of this module, so that it travels by reference."""

    def __init__(self, fn: Callable[[int], Any]) -> None:
        self.fn = fn

    def __call__(self, item: int) -> list[Any]:
        return [self.fn(item)]


def ours_processes(call: str, *, copy: bool = False, of: Callable[[Any], int] = int) -> Any:
    def start(_folder: Path, size: Mapping[str, Any]) -> Work:
        from thalweg.work.budget import ByteBudget
        from thalweg.work.ordered import OrderedMap
        from thalweg.work.remote import RemoteCalls

        fn = Outputs(CALLS[call])
        calls = RemoteCalls(fn, str, True, copy=copy)
        ahead = 64 if call == "megabyte" else 512
        run = OrderedMap(
            range(size["items"]), fn, workers=2, ahead=ahead, chunk=None, make_runner=calls, budget=ByteBudget(1 << 30)
        )
        return running(run, of)

    return start


def ours_inline(call: str) -> Callable[[Path, Mapping[str, Any]], Work]:
    def start(_folder: Path, size: Mapping[str, Any]) -> Work:
        fn = CALLS[call]
        return running(map(fn, range(size["items"])), int)

    return start


# ---- pictures


def prepare_pictures(folder: Path, _size: Mapping[str, Any]) -> None:
    import io

    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    small = rng.integers(0, 255, (16, 28, 28, 3), np.uint8)
    for k in range(16):
        picture = Image.fromarray(small[k]).resize((224, 224), Image.Resampling.BICUBIC)
        out = io.BytesIO()
        picture.save(out, "JPEG", quality=90)
        (folder / f"{k}.jpg").write_bytes(out.getvalue())


def simple(data: bytes) -> int:
    import simplejpeg

    return int(simplejpeg.decode_jpeg(data).shape[0])


def pillow(data: bytes) -> int:
    import io

    import numpy as np
    from PIL import Image

    return int(np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).shape[0])


def pictures(side: str, decode: str) -> Callable[[Path, Mapping[str, Any]], Work]:
    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        fn = {"simple": simple, "pillow": pillow}[decode]
        blobs = [p.read_bytes() for p in sorted(folder.glob("*.jpg"))]
        items = [blobs[i % len(blobs)] for i in range(size["items"])]

        def by_us() -> Iterable[Any]:
            from thalweg.work.budget import ByteBudget
            from thalweg.work.ordered import OrderedMap

            return OrderedMap(items, lambda d: [fn(d)], workers=2, ahead=64, chunk=None, budget=ByteBudget(1 << 28))

        def by_spdl() -> Iterable[Any]:
            from spdl.pipeline import PipelineBuilder

            built = (
                PipelineBuilder().add_source(items).pipe(fn, concurrency=2, output_order="input").add_sink(64)
                .build(num_threads=3)
            )  # fmt: skip
            with built.auto_stop():
                yield from built.get_iterator(timeout=60)

        return work(by_us if side == "ours" else by_spdl)

    return start


# ---- a loop bound by training


def training(step: float) -> Any:
    """Steps of some seconds in the consumer's thread over 4 samples of a tenth: what share is waiting for data?"""

    def start(_folder: Path, size: Mapping[str, Any]) -> Work:
        import numpy as np

        import thalweg as tw

        def fn(sample: dict[str, Any]) -> dict[str, Any]:
            end = time.perf_counter() + step / 10
            while time.perf_counter() < end:
                zlib.crc32(BLOB * 10)
            return {"input_ids": sample["input_ids"]}

        data = [{"input_ids": np.arange(64, dtype=np.int32)}] * (size["items"] * 4)
        feed = tw.from_stream(data).map(fn, mode="threads", workers=2).batch(4)

        def run() -> Mapping[str, float]:
            loader = tw.Loader(feed, return_tensors="np", prefetch=4)
            waited, n = 0.0, 0
            batches = iter(loader)
            next(batches)
            start = time.perf_counter()
            while True:
                asked = time.perf_counter()
                batch = next(batches, None)
                waited += time.perf_counter() - asked
                if batch is None:
                    break
                n += 1
                time.sleep(step)
            wall = time.perf_counter() - start
            loader.close()
            return {"units": float(n), "share of the time spent waiting": waited / wall}

        return Work(run)

    return start


def sized(full: int, smoke: int = 200) -> dict[str, dict[str, int]]:
    return {"full": {"items": full}, "smoke": {"items": smoke}}


CASES = [
    Case(
        "identity, 8 threads",
        "items",
        {
            "thalweg": Side(ours("identity", 8)),
            "reference algorithm": Side(reference("identity", 8)),
            "torchdata.nodes": Side(nodes("identity", 8), NODES),
            "SPDL": Side(spdl("identity", 8), SPDL),
            "Grain": Side(grain("identity", 8), GRAIN),
            "torch DataLoader": Side(torch_loader("identity", started=False), LOADER),
        },
        sized(20_000),
    ),
    Case(
        "2 us without the lock, 8 threads",
        "items",
        {
            "thalweg": Side(ours("release", 8)),
            "torchdata.nodes": Side(nodes("release", 8), NODES),
            "SPDL": Side(spdl("release", 8), SPDL),
            "Grain": Side(grain("release", 8), GRAIN),
        },
        sized(20_000),
    ),
    Case(
        "waits 5 ms, 16 threads",
        "items",
        {
            "thalweg": Side(ours("wait", 16, floor=0.005 / 16)),
            "reference algorithm": Side(reference("wait", 16, floor=0.005 / 16)),
            "torchdata.nodes": Side(nodes("wait", 16, floor=0.005 / 16), NODES),
            "SPDL": Side(spdl("wait", 16, floor=0.005 / 16), SPDL),
            "Grain": Side(grain("wait", 16, floor=0.005 / 16), GRAIN),
        },
        sized(4_000),
    ),
    Case(
        "Python-bound, 2 processes",
        "items",
        {
            "thalweg": Side(ours_processes("python_bound")),
            "inline": Side(ours_inline("python_bound")),
            "torch DataLoader": Side(torch_loader("python_bound"), LOADER),
        },
        sized(60_000),
        warmup=0,
    ),
    Case(
        "dicts of 1 kB, 2 processes",
        "items",
        {
            "thalweg": Side(ours_processes("small_dict", of=length)),
            "torch DataLoader, batches of 32": Side(torch_loader("small_dict", batch=32, of=length), LOADER),
        },
        sized(200_000),
        warmup=0,
    ),
    Case(
        "arrays of 1 MB, 2 processes",
        "items",
        {
            "thalweg, looked at in place": Side(ours_processes("megabyte", of=first)),
            "thalweg, copied": Side(ours_processes("megabyte", copy=True, of=first)),
            "torch DataLoader": Side(torch_loader("megabyte", of=first), LOADER),
        },
        sized(4_000, 20),
        warmup=0,
    ),
    Case(
        "JPEG 224 px, 2 threads",
        "pictures",
        {
            "thalweg, simplejpeg": Side(pictures("ours", "simple")),
            "thalweg, Pillow": Side(pictures("ours", "pillow")),
            "SPDL, simplejpeg": Side(pictures("spdl", "simple"), (*SPDL, "simplejpeg==1.9.0")),
            "SPDL, Pillow": Side(pictures("spdl", "pillow"), (*SPDL, "pillow==13.0.0")),
        },
        sized(8_000, 40),
        prepare_pictures,
    ),
    Case("training of 4 ms a step", "steps", {"thalweg": Side(training(0.004))}, sized(500, 20)),
    Case("training of 20 ms a step", "steps", {"thalweg": Side(training(0.02))}, sized(250, 10)),
]

if __name__ == "__main__":
    main(__file__, CASES)
