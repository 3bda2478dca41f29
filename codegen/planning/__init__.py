"""What is sent to the GPU for one problem: steps, scratch, uniforms, recording."""
