"""What runs inside SGLang: the plugin, its probes, and the kernels of the engine without a GPU."""
