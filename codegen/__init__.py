"""Specialised WGSL kernels for the backward pass of attention."""
