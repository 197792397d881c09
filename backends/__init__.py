"""Where requests go: upstream servers and the engines that chatfuse runs itself."""
