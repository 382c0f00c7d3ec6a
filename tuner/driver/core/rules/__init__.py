"""The decisions that the core itself makes, one module for each kind of event. The functions only read the state."""
