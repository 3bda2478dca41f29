"""Reads WGSL without a compiler, and checks what no compiler does."""
