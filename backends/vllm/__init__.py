"""A vLLM engine beside the proxy: started, cared for, and asked what its memory does."""
