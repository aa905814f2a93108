"""Start, watch and stop SGLang servers."""
