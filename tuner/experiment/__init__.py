"""The use cases of an experiment: check a spec, create, pause, cancel, preview, show the lineage."""
