"""Reinforcement learning of language models on Slurm clusters, with Megatron-core and SGLang."""

__version__ = "0.1.0"
