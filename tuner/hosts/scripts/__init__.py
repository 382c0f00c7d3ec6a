"""The driver host of a script or notebook: in a thread, or on Ray and kept between calls."""
