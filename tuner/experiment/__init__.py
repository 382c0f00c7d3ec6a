"""What an experiment asks for and what users do with it: checks of a spec, create, pause, cancel, preview, lineage."""
