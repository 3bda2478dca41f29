"""What one call asks for: masks, lengths, strides, and the numbers that come with it."""
