r"""Check that a training step computes the same, whichever method runs it.

It requires packages that this project does not install. Create a virtual environment for it in the root of a
checkout::

    python3.11 -m venv /tmp/models
    /tmp/models/bin/pip install "torch==2.13.*" "transformers==5.*" timm peft pytest pytest-benchmark
    PYTHONPATH=src:. OMP_NUM_THREADS=1 /tmp/models/bin/python benchmarks/training_steps.py [words of names]

It runs on fake process groups on the CPU. Steps whose package is not installed, or that torch itself cannot
run, are listed as skipped.

Losses and parameters are compared bit for bit with those of a plain loop:

* ``call`` and ``compare`` run a step once for the program, and restore what repetitions change: three such
  calls are compared with three plain steps. ``compare`` has two equal trainings, and both are compared.
* ``capture``, ``steps`` and ``watch`` run three steps of the program.
* ``budget`` restores nothing: it is compared with as many plain steps as it ran.

The exit status is 1 if anything differs or raises.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.optim import SGD, AdamW

from pytest_dtdispatch.errors import first_line
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from tests.models.training_steps import METHODS, Build, Training, differences, plain, small_trainings, trained

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "head_dim": 8,
    "attn_implementation": "eager",
}
WIDTH = 31


def language_model(kind: str, **sizes: Any) -> Any:
    """Return a small model of transformers."""
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **sizes)
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def in_parallel(kind: str, **sizes: Any) -> Any:
    """Return a small model of transformers with its own tensor parallel plan, applied when it is loaded."""
    distributed = importlib.import_module("transformers.distributed")
    model = language_model(kind, **sizes)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = distributed.DistributedConfig(tp_size=2)
        return type(model).from_pretrained(folder, distributed_config=config)


def language_training(model: Any, optimizer: Any) -> Training:
    """Return the training of a language model on one batch."""
    torch.manual_seed(1)
    ids = torch.randint(0, SIZES["vocab_size"], (2, 9))
    return trained(model, optimizer, lambda: model(ids, labels=ids, use_cache=False).loss)


def parallel_training(kind: str, **sizes: Any) -> Training:
    model = in_parallel(kind, **sizes)
    return language_training(model, SGD(model.parameters(), lr=0.01, foreach=False))


def lora() -> Training:
    peft = importlib.import_module("peft")
    model = peft.get_peft_model(language_model("Qwen3"), peft.LoraConfig(r=4, target_modules=["q_proj"]))
    return language_training(
        model, AdamW([each for each in model.parameters() if each.requires_grad], lr=0.01)
    )


def mixer() -> Training:
    models = importlib.import_module("timm.models.mlp_mixer")
    torch.manual_seed(0)
    model = models.MlpMixer(num_classes=10, img_size=32, patch_size=8, num_blocks=2, embed_dim=32)
    optimizer, images = SGD(model.parameters(), lr=0.01), torch.rand(2, 3, 32, 32)
    return trained(model, optimizer, lambda: model(images).square().mean())


def large_trainings() -> dict[str, tuple[str, Build]]:
    """Return trainings of models in other packages, each with its package."""
    gpt_oss = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}
    return {
        "Qwen3, its own plan": ("transformers", partial(parallel_training, "Qwen3")),
        "GPT-OSS, its own plan": ("transformers", partial(parallel_training, "GptOss", **gpt_oss)),
        "timm Mixer": ("timm", mixer),
        "LoRA": ("peft", lora),
    }


def reason_to_skip(package: str, build: Build) -> str:
    """Return why a step cannot run here even unmeasured; empty if it can."""
    if package and importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    try:
        plain(build)
    except NotImplementedError as error:
        return f"torch raises: {first_line(error)}"
    return ""


def verdict(build: Build, method: str) -> str:
    """Return the differences that a method causes, or its exception; "equal" if there are none."""
    try:
        return "; ".join(differences(build, method)) or "equal"
    except Exception as error:
        return first_line(error)


def main(words: Sequence[str]) -> int:
    warnings.simplefilter("ignore")
    os.environ.update(WORLD_SIZE="2", RANK="0", LOCAL_RANK="0")  # read by transformers
    owner = ProcessGroupOwner()
    trainings = {
        name: ("", build)
        for name, build in small_trainings(owner.mesh(MeshSpec((2,), "cpu", "fake"))).items()
    }
    is_equal = True
    print(f"{'step':{WIDTH}}", *(f"{method:8}" for method in METHODS))
    for name, (package, build) in {**trainings, **large_trainings()}.items():
        if words and not any(word in name for word in words):
            continue
        if reason := reason_to_skip(package, build):
            print(f"{name:{WIDTH}} skipped: {reason}", flush=True)
            continue
        verdicts = {method: verdict(build, method) for method in METHODS}
        print(f"{name:{WIDTH}}", *(f"{'equal' if text == 'equal' else 'NO':8}" for text in verdicts.values()))
        for method, text in verdicts.items():
            if text != "equal":
                is_equal = False
                print(f"    {method}: {text}")
        sys.stdout.flush()
    owner.close()
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
