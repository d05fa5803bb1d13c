"""llama.cpp in a child process: the client here, the worker there, the wire between."""
