"""The use cases of experiments: check a spec, create, pause, cancel, preview, show the lineage."""
