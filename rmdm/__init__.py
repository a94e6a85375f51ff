"""Recursive masked diffusion models: the same transformer block, applied L times within each denoising step."""

from rmdm.checkpoint import load, save, shipped

__all__ = ["load", "save", "shipped"]
