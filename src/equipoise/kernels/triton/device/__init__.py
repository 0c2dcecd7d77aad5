"""Code that Triton compiles for the device."""
