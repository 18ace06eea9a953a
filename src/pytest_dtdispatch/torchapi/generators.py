"""Random states of DTensor and of CUDA devices."""

from __future__ import annotations

import importlib

import torch


def random_tracker_states() -> dict[str, torch.Tensor]:
    """Return the states that DTensor's random tracker keeps, to read and to write.

    Older trackers keep their own; newer ones use the device's generator and give an empty dictionary.
    """
    tracker = importlib.import_module("torch.distributed.tensor._random")._rng_tracker
    states = getattr(tracker, "rng_states", None)
    return states if isinstance(states, dict) else {}


def cuda_generator(device: torch.device) -> torch.Generator:
    """Return the generator that random ops on a CUDA device draw from."""
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator
