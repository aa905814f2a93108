"""SGLang without a GPU: plain-PyTorch kernels, the hooks of CPU mode, and its server environment."""
