"""Kernels put together: what they serve, what is tried first, their steps, what can be tuned."""
