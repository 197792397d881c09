"""The stages a request goes through; `proxy.pipeline` puts them in order."""
