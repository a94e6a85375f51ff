"""Recursive masked diffusion models: the same transformer block, applied L times within each denoising step."""
