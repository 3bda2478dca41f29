"""The device underneath: adapters, buffers, pipelines and their caches."""
