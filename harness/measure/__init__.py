"""The measurement protocol: inputs, the timed run, its validity."""
