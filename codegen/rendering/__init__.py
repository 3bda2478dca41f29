"""From a variant to its WGSL text, and the whole of generated/."""
