"""The Jinja2 templates of the kernels. ``lib/`` holds what several of them share."""
